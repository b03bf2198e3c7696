"""The agent's loop, played by a scripted policy."""

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import threading

import numpy as np
from absl.testing import absltest, parameterized

from awm_jax import types
from awm_jax.agent import prompts
from awm_jax.agent.rollout import RolloutSettings, each_alone, run_rollouts
from awm_jax.training.batch import training_sequences
from awm_jax.types import Finding, Memory, Message, Page, Question, Sample, ToolCall

QUESTION = Question("q0", "rivers.pdf", "How wide is the Cam?", "42", "Int", (3, 7))
FULL = RolloutSettings(context="full")


def call(name, **arguments):
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


def search(query="width of Cam"):
    return call("search_pages", query=query)


def note(page=3, finding="width of Cam is 42"):
    return call("update_memory", source_page=page, finding=finding)


def answer(text="42"):
    return call("answer", answer=text)


def find(document, query, top_k):
    return [7, 3, 5, 1][:top_k]


def render(document, number):
    return Page(document, number, np.zeros((2, 2, 3), np.uint8), f"{document}/{number}")


def encode(parts):
    """Bytes as token ids; a page is one token beyond them."""
    ids = []
    for part in parts:
        ids += [256 + part.number] if isinstance(part, Page) else list(part.encode())
    return ids


class Scripted:
    """Plays given texts, by seed; keeps the prompts, and ids token by token as a policy does."""

    def __init__(self, scripts):
        self.scripts = scripts
        self.prompts = []
        self.rounds = []

    def __call__(self, prompts_now, *, temperature):
        self.rounds.append((len(prompts_now), temperature))
        return [self.sample(prompt) for prompt in prompts_now]

    def sample(self, prompt):
        self.prompts.append(prompt)
        *seed, turn = prompt.seed
        said = self.scripts[tuple(seed)][turn]
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        ids, pages, fresh = [], [], []
        for message in prompt.messages:
            if isinstance(message, Sample):
                # All before it was shown when it was sampled.
                ids = [*message.prompt_ids, *message.token_ids]
                pages, fresh = list(message.pages), []
            else:
                fresh += [f"<{message.role}>", *message.content, *map(repr, message.calls)]
        ids += encode(fresh)
        pages += [part for part in fresh if isinstance(part, Page)]
        new = [] if reason == "context_full" else [*text.encode(), 0]
        return Sample(
            np.array(ids, np.int32),
            np.array(new, np.int32),
            np.full(len(new), -0.5, np.float32),
            text,
            reason,
            tuple(pages),
        )


def play(*texts, settings=RolloutSettings(), find=find, render=render):  # noqa: B008
    policy = Scripted({(5,): texts})
    [trajectory] = run_rollouts(
        [(QUESTION, 0, (5,))], policy, search=find, render=render, settings=settings
    )
    return trajectory, policy


def opening(memory):
    user = prompts.question_text(QUESTION.text, memory)
    return (Message("system", (prompts.AGENT_SYSTEM,)), Message("user", (user,)))


def numbers(content):
    return [part.number if isinstance(part, Page) else part for part in content]


class ContextTest(parameterized.TestCase):
    def test_a_retrieval_starts_a_context_with_memory_and_newest_pages(self):
        found = {"a": [7, 3], "b": [5]}
        trajectory, policy = play(
            search("a"),
            note(3, "x") + search("b"),
            note(5, "y") + answer("42, 17"),
            find=lambda document, query, top_k: found[query],
        )
        first, second, third = (prompt.messages for prompt in policy.prompts)
        self.assertEqual(first, opening(Memory()))
        self.assertEqual(second[:2], opening(Memory()))
        self.assertEqual(
            second[2], Message("assistant", (), (ToolCall("search_pages", {"query": "a"}),))
        )
        self.assertEqual(numbers(second[3].content), ["Page 7:", 7, "Page 3:", 3])
        self.assertLen(second, 4)
        self.assertEqual(third[:2], opening(Memory((Finding(3, "x"),))))
        self.assertEqual(third[2].calls, (ToolCall("search_pages", {"query": "b"}),))
        self.assertEqual(third[3].role, "tool")
        self.assertEqual(numbers(third[3].content), ["Page 5:", 5])
        self.assertLen(third, 4)
        self.assertEqual([turn.context for turn in trajectory.turns], [0, 1, 2])
        self.assertEqual(trajectory.status, types.ANSWERED)
        self.assertEqual(trajectory.final_answer, "42, 17")
        self.assertEqual(trajectory.memory.text, "[page 3] x\n[page 5] y")
        self.assertEqual([len(turn.memory.findings) for turn in trajectory.turns], [0, 1, 2])
        self.assertEqual(
            [[each.name for each in turn.calls] for turn in trajectory.turns],
            [["search_pages"], ["update_memory", "search_pages"], ["update_memory", "answer"]],
        )
        self.assertEqual(numbers(trajectory.turns[0].observation), ["Page 7:", 7, "Page 3:", 3])
        self.assertTrue(all(prompt.tools == prompts.AGENT_TOOLS for prompt in policy.prompts))
        self.assertEqual([prompt.seed for prompt in policy.prompts], [(5, 0), (5, 1), (5, 2)])

    def test_a_note_alone_stays_in_its_context(self):
        trajectory, policy = play(search(), note(), answer())
        self.assertEqual(
            policy.prompts[2].messages,
            (
                *policy.prompts[1].messages,
                trajectory.turns[1].sample,
                Message("tool", ("Noted.",)),
            ),
        )
        self.assertEqual([turn.context for turn in trajectory.turns], [0, 1, 1])

    def test_a_full_context_drops_nothing(self):
        trajectory, policy = play(
            search("a"), note() + search("b"), note(5, "y"), answer(), settings=FULL
        )
        for earlier, later, turn in zip(
            policy.prompts, policy.prompts[1:], trajectory.turns, strict=False
        ):
            self.assertEqual(later.messages[: len(earlier.messages)], earlier.messages)
            self.assertIs(later.messages[len(earlier.messages)], turn.sample)
        roles = [m.role for m in policy.prompts[2].messages[-2:]]
        self.assertEqual(roles, ["tool", "tool"])
        self.assertEqual(policy.prompts[2].messages[-2].content, ("Noted.",))
        self.assertEqual({turn.context for turn in trajectory.turns}, {0})

    @parameterized.parameters("memory", "full")
    def test_ids_of_a_context_extend_each_other(self, context):
        trajectory, _ = play(
            search("a"),
            "hm",
            note(),
            note(7, "z") + search("b"),
            answer(),
            note(5, "y"),
            answer(),
            settings=RolloutSettings(context=context),
        )
        self.assertEqual(trajectory.status, types.ANSWERED)
        sequences = training_sequences(trajectory, 0)
        self.assertLen(sequences, 3 if context == "memory" else 1)
        sampled = sum(len(turn.sample.token_ids) for turn in trajectory.turns)
        self.assertEqual(sum(sequence.trained.sum() for sequence in sequences), sampled)
        shown = [[page.number for page in sequence.pages] for sequence in sequences]
        once = [7, 3, 5]
        self.assertEqual(shown, [[], once, once] if context == "memory" else [once + once])

    def test_what_was_refused_is_told_in_the_new_context(self):
        trajectory, policy = play(
            search("a"), note() + note(9, "y") + "<tool_call>oh</tool_call>" + search("b"), note()
            , answer(),
        )  # fmt: skip
        told = [message.content[0] for message in policy.prompts[2].messages[3:]]
        self.assertEqual(
            told,
            [
                "A tool call is empty. Write its name and arguments as JSON.",
                "Not noted: page 9 was not shown. Shown: 7, 3, 5.",
                "Page 7:",
            ],
        )
        self.assertEqual(trajectory.turns[1].violations, tuple(told[:2]))


class StatusTest(parameterized.TestCase):
    def test_an_answer_in_the_last_step_counts(self):
        trajectory, _ = play(*[search(), note()] * 7, answer())
        self.assertLen(trajectory.turns, 15)
        self.assertEqual((trajectory.status, trajectory.final_answer), (types.ANSWERED, "42"))

    def test_step_budget(self):
        trajectory, policy = play(*[search(), note()] * 8)
        self.assertLen(policy.rounds, 15)
        self.assertLen(trajectory.memory.findings, 7)
        self.assertEqual((trajectory.status, trajectory.final_answer), (types.STEP_BUDGET, ""))
        self.assertTrue(trajectory.valid)

    def test_three_messages_running_without_a_call_are_malformed(self):
        trajectory, policy = play("42", search(), "42", note(), "4", "<tool_call>{", "42")
        self.assertLen(trajectory.turns, 7)
        self.assertEqual((trajectory.status, trajectory.final_answer), (types.MALFORMED, ""))
        self.assertEqual(trajectory.memory.text, "[page 3] width of Cam is 42")
        self.assertTrue(trajectory.valid)
        self.assertEqual(
            policy.prompts[1].messages[-1], Message("tool", ("No tool call found. Call a tool.",))
        )

    def test_calls_of_unknown_tools_are_no_malformed_messages(self):
        trajectory, _ = play(*[call("look", page=3)] * 4, search(), note(), answer())
        self.assertEqual(trajectory.status, types.ANSWERED)
        self.assertRegex(trajectory.turns[0].violations[0], "No tool is named 'look'")
        self.assertEmpty(trajectory.turns[0].calls)

    def test_context_full(self):
        trajectory, _ = play(search(), note(), ("", "context_full"))
        self.assertEqual((trajectory.status, trajectory.final_answer), (types.CONTEXT_FULL, ""))
        self.assertLen(trajectory.turns, 2)
        self.assertLen(trajectory.memory.findings, 1)
        self.assertRegex(trajectory.error, "prompt of step 3")
        self.assertTrue(trajectory.valid)

    def test_a_message_that_was_cut_off_is_told_so(self):
        trajectory, _ = play(search(), (note()[:-30], "length"), note(), answer())
        self.assertEqual(trajectory.turns[1].violations[-1], "The message was cut off. Write less.")

    @parameterized.named_parameters(
        ("search", {"find": lambda *_: [][0]}, "search of rivers.pdf .* IndexError"),
        ("render", {"render": lambda *_: 1 / 0}, "page 7 of rivers.pdf .* ZeroDivisionError"),
        ("numbers", {"find": lambda *_: ["7th"]}, "search of rivers.pdf .* ValueError"),
    )
    def test_tool_error(self, broken, expected):
        trajectory, _ = play(search(), **broken)
        self.assertEqual(trajectory.status, types.TOOL_ERROR)
        self.assertRegex(trajectory.error, expected)
        self.assertLen(trajectory.turns, 1)
        self.assertFalse(trajectory.valid)

    def test_a_tool_error_ends_its_own_rollout_alone(self):
        def find_or_break(document, query, top_k):
            if query == "break":
                raise OSError("server gone")
            return [3]

        policy = Scripted(
            {(i,): [search("break" if i == 1 else "a"), note() + answer()] for i in range(3)}
        )
        tasks = [(QUESTION, i, (i,)) for i in range(3)]
        trajectories = run_rollouts(tasks, policy, search=find_or_break, render=render)
        self.assertEqual([t.status for t in trajectories], ["answered", "tool_error", "answered"])
        self.assertEqual(policy.rounds, [(3, 1.0), (2, 1.0)])

    @parameterized.parameters(
        ("find", "search of rivers.pdf .* no result in 0.05 s"),
        ("render", "page 7 of rivers.pdf .* no result in 0.05 s"),
    )
    def test_a_tool_that_hangs_ends_its_own_rollout_alone(self, hung, expected):
        release = threading.Event()
        self.addCleanup(release.set)

        def hang_for(question, function):
            def call(document, *arguments):
                if document == question.document:
                    release.wait()
                return function(document, *arguments)

            return call

        tools = {"find": find, "render": render}
        tools[hung] = hang_for(QUESTION, tools[hung])
        other = dataclasses.replace(QUESTION, document="lakes.pdf")
        trajectories = run_rollouts(
            [(QUESTION, 0, (0,)), (other, 0, (1,))],
            Scripted({(i,): [search(), note() + answer()] for i in range(2)}),
            search=tools["find"],
            render=tools["render"],
            settings=RolloutSettings(tool_timeout_s=0.05),
        )
        self.assertEqual([t.status for t in trajectories], [types.TOOL_ERROR, types.ANSWERED])
        self.assertRegex(trajectories[0].error, expected)
        self.assertFalse(trajectories[0].valid)

    def test_what_generate_raises_is_passed_on(self):
        with self.assertRaisesRegex(KeyError, "9"):
            run_rollouts([(QUESTION, 0, (9,))], Scripted({}), search=find, render=render)
        with self.assertRaisesRegex(ValueError, "0 samples for 1 prompts"):
            run_rollouts(
                [(QUESTION, 0, (9,))], lambda *_, **__: [], search=find, render=render
            )  # fmt: skip


class OrderTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("answer_before_the_note", answer(), "answer was not done: first note a finding"),
        ("search_before_the_note", search(), "search_pages was not done: first note a finding"),
        ("forty_one_words", note(finding="a " * 41) + answer(), "41 words"),
        ("page_not_shown", note(page=1) + answer(), "page 1 was not shown"),
        ("no_page", note(page="none") + answer(), "source_page must be one whole number"),
        ("empty_finding", note(finding=" ") + answer(), "finding must be a text"),
    )
    def test_nothing_is_done_before_the_note(self, text, expected):
        trajectory, _ = play(search(), text, note(), answer("late"))
        broken = trajectory.turns[1]
        self.assertRegex(broken.violations[0], expected)
        self.assertEmpty(broken.calls)
        self.assertEmpty(broken.memory.findings)
        self.assertEqual(broken.observation, broken.violations)
        self.assertEqual((trajectory.final_answer, len(trajectory.turns)), ("late", 4))

    def test_nothing_is_done_after_a_search_in_the_same_message(self):
        trajectory, _ = play(search() + note() + search("b") + answer(), note(), answer())
        self.assertEqual([each.name for each in trajectory.turns[0].calls], ["search_pages"])
        self.assertEqual(
            trajectory.turns[0].violations,
            tuple(
                f"{name} was not done: look at the pages first."
                for name in ("update_memory", "search_pages", "answer")
            ),
        )
        self.assertLen(trajectory.turns, 3)

    def test_nothing_is_done_after_an_answer(self):
        trajectory, _ = play(search(), note() + answer() + answer("43") + search())
        self.assertEqual(trajectory.final_answer, "42")
        self.assertLen(trajectory.turns[1].violations, 2)

    def test_a_note_needs_a_page_and_an_answer_needs_no_note(self):
        trajectory, _ = play(note(), answer("Not answerable"))
        self.assertRegex(trajectory.turns[0].violations[0], "no page was shown yet")
        self.assertEqual(trajectory.final_answer, "Not answerable")

    def test_a_search_without_pages_needs_no_note(self):
        trajectory, policy = play(search(), answer(), find=lambda *_: [])
        self.assertEqual(trajectory.status, types.ANSWERED)
        self.assertEqual(policy.prompts[1].messages[-1].content, ("No page was found.",))
        self.assertEqual([turn.context for turn in trajectory.turns], [0, 0])

    def test_a_query_may_be_repeated_and_earlier_pages_cited(self):
        found = iter([[7], [5], [7]])
        trajectory, _ = play(
            search(), note(7), search(), note(7), search(), note(7), answer(),
            find=lambda *_: next(found),
        )  # fmt: skip
        self.assertEqual(trajectory.status, types.ANSWERED)
        self.assertEmpty([v for turn in trajectory.turns for v in turn.violations])
        self.assertLen(trajectory.memory.findings, 3)

    def test_a_query_beyond_reason_is_the_policys_fault(self):
        trajectory, _ = play(search("a" * 1001), answer(), find=lambda *_: 1 / 0)
        self.assertEqual(trajectory.status, types.ANSWERED)
        self.assertRegex(trajectory.turns[0].violations[0], "1001 characters")

    def test_calls_of_one_message_are_done_in_order(self):
        trajectory, _ = play(search(), note(3, "a") + note(7, "b") + note(3, "a") + answer())
        self.assertEqual(trajectory.memory.text, "[page 3] a\n[page 7] b\n[page 3] a")
        self.assertEqual(trajectory.turns[1].observation, ("Noted.",) * 3)


class BatchTest(parameterized.TestCase):
    def test_a_rollout_does_not_depend_on_its_neighbours(self):
        said = [search("a"), search("b"), note(), note(3, "x") + search("c"), "hm", "<tool_call>{"]
        said += [note(7, "y") + answer("1"), answer("2"), note(1, "z"), call("look")]

        def policy(prompts_now, *, temperature):
            # What is said depends on all that a prompt holds.
            samples = []
            for prompt in prompts_now:
                shown = [
                    m.text if isinstance(m, Sample) else str(m.content) for m in prompt.messages
                ]
                digest = hashlib.sha256(repr((prompt.seed, shown)).encode()).digest()
                text = said[digest[0] % len(said)]
                empty = np.zeros(0, np.int32)
                samples.append(Sample(empty, empty, empty.astype(np.float32), text, "stop"))
            return samples

        pages = {}

        def render_once(document, number):
            return pages.setdefault(number, render(document, number))

        def run(tasks, **how):
            trajectories = run_rollouts(tasks, policy, search=find, render=render_once, **how)
            return [
                (t.rollout, t.status, t.final_answer, t.memory.text, t.error)
                + tuple((turn.context, turn.sample.text, turn.observation) for turn in t.turns)
                for t in trajectories
            ]

        tasks = [(QUESTION, i, (3, i)) for i in range(40)]
        together = run(tasks)
        self.assertEqual(
            {status for _, status, *_ in together}, {"answered", "malformed", "step_budget"}
        )
        self.assertEqual(together, [run([task])[0] for task in tasks])
        self.assertEqual(together, run(tasks[::-1])[::-1])
        self.assertEqual(together, run(tasks, settings=RolloutSettings(max_live=3)))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertEqual(together, run(tasks, map_tools=pool.map))

    def test_at_most_max_live_are_open_and_each_end_is_reported(self):
        lengths = [1, 3, 1, 2]
        scripts = {
            (i,): [*[search(), note()] * 2][: n - 1] + [answer(str(i))]
            for i, n in enumerate(lengths)
        }
        scripts[1,] = [search(), note(), answer("1")]
        scripts[3,] = [search(), note() + answer("3")]
        policy = Scripted(scripts)
        finished = []
        trajectories = run_rollouts(
            [(QUESTION, i, (i,)) for i in range(4)],
            policy,
            search=find,
            render=render,
            settings=RolloutSettings(max_live=2),
            on_finish=lambda index, trajectory: finished.append((index, trajectory)),
        )
        self.assertEqual([size for size, _ in policy.rounds], [2, 2, 2, 1])
        self.assertEqual([index for index, _ in finished], [0, 2, 1, 3])
        self.assertEqual([t.final_answer for t in trajectories], ["0", "1", "2", "3"])
        self.assertIs(dict(finished)[3], trajectories[3])

    def test_no_tasks(self):
        self.assertEqual(run_rollouts([], Scripted({}), search=find, render=render), [])

    def test_temperature_and_top_k_are_the_settings(self):
        asked = []

        def find_and_tell(document, query, top_k):
            asked.append((document, query, top_k))
            return [3]

        _, policy = play(
            search(), note() + answer(), find=find_and_tell,
            settings=RolloutSettings(top_k=5, temperature=0.25),
        )  # fmt: skip
        self.assertEqual(asked, [("rivers.pdf", "width of Cam", 5)])
        self.assertEqual(policy.rounds, [(1, 0.25)] * 2)

    def test_thoughts_are_no_calls(self):
        trajectory, _ = play(search(), f"<think>{answer('43')}</think>{note()}{answer()}")
        self.assertEqual(trajectory.final_answer, "42")

    @parameterized.parameters(
        {"max_steps": 0}, {"top_k": 0}, {"max_words": -1}, {"max_live": 0}, {"temperature": -0.1},
        {"context": "none"}, {"tool_timeout_s": 0},
    )  # fmt: skip
    def test_settings_that_make_no_sense(self, **settings):
        with self.assertRaisesRegex(ValueError, "expected"):
            RolloutSettings(**settings)


class EachAloneTest(absltest.TestCase):
    TASKS = tuple((QUESTION, i, (i,)) for i in range(6))

    def policy(self):
        return Scripted({(i,): [search(), note() + answer(str(i))] for i in range(6)})

    def test_the_trajectories_are_those_of_lock_step(self):
        roll_out = functools.partial(run_rollouts, search=find, render=render)
        alone = each_alone(roll_out, self.policy(), at_once=3)(self.TASKS)
        together = roll_out(self.TASKS, self.policy())
        self.assertEqual(
            [(t.rollout, t.final_answer, t.memory, t.status) for t in alone],
            [(t.rollout, t.final_answer, t.memory, t.status) for t in together],
        )
        self.assertEqual([t.final_answer for t in alone], list("012345"))

    def test_nobody_waits_for_a_slow_reply(self):
        policy, others_ended = self.policy(), threading.Event()
        ended = []

        def reply(prompts_now, *, temperature):
            [prompt] = prompts_now
            if prompt.seed == (0, 0):
                self.assertTrue(others_ended.wait(timeout=30))
            return policy(prompts_now, temperature=temperature)

        def finish(index, trajectory):
            ended.append(trajectory.final_answer)
            if len(ended) == 5:
                others_ended.set()

        roll_out = functools.partial(run_rollouts, search=find, render=render, on_finish=finish)
        each_alone(roll_out, reply, at_once=2)(self.TASKS)
        self.assertEqual(ended, list("123450"))

    def test_the_first_exception_ends_all(self):
        asked = []

        def reply(prompts_now, *, temperature):
            asked.append(prompts_now[0].seed)
            raise RuntimeError(f"no policy for {prompts_now[0].seed}")

        roll_out = functools.partial(run_rollouts, search=find, render=render)
        with self.assertRaisesRegex(RuntimeError, "no policy for"):
            each_alone(roll_out, reply, at_once=1)(self.TASKS)
        self.assertLen(asked, 1)


if __name__ == "__main__":
    absltest.main()
