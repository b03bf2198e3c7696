"""How much of a policy's capacity many conversations use, in lock step and each alone.

The policy is scripted and answers each message after a time of its own, in the process or behind
a server in another; capacity is what it would do were `--at-once` messages always under way.
Documents, pages, search and notes are the tiny world's. Prints one JSON object.
"""

import argparse
import concurrent.futures
import functools
import http.server
import json
import multiprocessing
import pathlib
import re
import resource
import tempfile
import threading
import time

import numpy as np

from awm_jax import servers
from awm_jax.agent import rollout
from awm_jax.datasets import tiny_teacher, tiny_world
from awm_jax.documents import index, pdf
from awm_jax.policy_served import make_served_generate

MODEL = "scripted"


def reply_seconds(seed, spread):
    """50 ms, or between 50 (1 - spread) and 50 (1 + spread), by the prompt's seed."""
    return 0.05 * np.random.default_rng(seed).uniform(1 - spread, 1 + spread)


def in_process(teacher, spread, waits, at_once):
    """Each message takes its time; `at_once` at most are under way."""
    slots = threading.BoundedSemaphore(at_once)

    def one(prompt, temperature):
        seconds = reply_seconds(prompt.seed, spread)
        with slots:
            waits.append(seconds)
            time.sleep(seconds)
            return teacher([prompt], temperature=temperature)[0]

    pool = concurrent.futures.ThreadPoolExecutor(at_once)

    def generate(prompts, *, temperature):
        if len(prompts) == 1:
            return [one(prompts[0], temperature)]
        return list(pool.map(lambda prompt: one(prompt, temperature), prompts))

    return generate


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.05)
        parts = [p for m in body["messages"] if m["role"] == "user" for p in m["content"]]
        shown = [re.search(r"Page (\d+):", p.get("text", "")) for p in parts if isinstance(p, dict)]
        calls = [("search_pages", {"query": "width"})]
        if found := [int(match[1]) for match in shown if match]:
            calls = [("update_memory", {"source_page": found[0], "finding": "width is 42"})]
            calls.append(("answer", {"answer": "42"}))
        said = "\n".join(
            f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>"
            for n, a in calls
        )
        choice = {"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        reply = json.dumps({"model": MODEL, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256


def _serve(port):
    server = _Server(("127.0.0.1", 0), _Handler)
    port.send(server.server_address[1])
    server.serve_forever()


def measured(play, tasks, seconds_busy, at_once):
    """Wall and CPU seconds of this process, and the share of the capacity that was used."""
    play(tasks[:1])
    cpu, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    before = seconds_busy()
    trajectories = play(tasks)
    wall = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    messages = sum(len(t.turns) for t in trajectories)
    return {
        "rollouts": len(trajectories),
        "answered": sum(t.status == "answered" for t in trajectories),
        "messages": messages,
        "wall_s": wall,
        "cpu_ms_a_message": 1e3
        * (used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime)
        / messages,
        "share_of_capacity": (seconds_busy() - before) / (wall * at_once),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=4096)
    options = parser.parse_args()
    at_once, found = options.at_once, {"at_once": options.at_once}
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(sender,), daemon=True
    )
    process.start()
    port = receiver.recv()
    with tempfile.TemporaryDirectory() as folder:
        questions = tiny_world.make_world(pathlib.Path(folder), "dev", seed=0, documents=16)
        documents, _ = pdf.open_documents(
            pathlib.Path(folder) / "documents", [q.document for q in questions]
        )
        documents_in_order = list(documents.values())
        client = index.open_client(":memory:")
        index.build_index(client, documents_in_order)
        search = index.make_search(client, documents_in_order)
        render = pdf.make_render(documents, max_pixels=96 * 128)
        for document in documents_in_order:
            for number in range(1, document.page_count + 1):
                render(document.id, number)
        teacher = tiny_teacher.scripted_teacher(
            questions, seed=0, generic_last=0.5, generic_earlier=0.5
        )
        tasks = [
            (questions[i % len(questions)], i, (0, i % len(questions), i))
            for i in range(options.rollouts)
        ]
        roll_out = functools.partial(rollout.run_rollouts, search=search, render=render)
        for name, spread in (("50 ms", 0.0), ("5 to 95 ms", 0.9)):
            waits = []
            generate = in_process(teacher, spread, waits, at_once)
            limits = rollout.RolloutSettings(max_live=at_once)
            lock_step = functools.partial(roll_out, generate=generate, settings=limits)
            alone = rollout.each_alone(roll_out, generate, at_once=2 * at_once)
            for how, play in (("lock step", lock_step), ("each alone", alone)):
                found[f"{name}, {how}"] = measured(play, tasks, lambda w=waits: sum(w), at_once)
        server = servers.Server(f"http://127.0.0.1:{port}/v1", MODEL, concurrency=at_once)
        replies = []
        generate = make_served_generate(
            server, max_tokens=64, on_reply=lambda prompt, reply: replies.append(0.05)
        )
        alone = rollout.each_alone(roll_out, generate, at_once=2 * at_once)
        found["50 ms over HTTP, each alone"] = measured(alone, tasks, lambda: sum(replies), at_once)
        client.close()
    process.terminate()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
