"""PDFs read and drawn in processes of their own, so that no page can hang or end the run.

`run` is what commands give to `documents.pdf`. A worker is a fresh interpreter that imports that
module and nothing of the caller: neither JAX, which may not be forked, nor a script without a
main guard. What it answers is parsed as JSON and pixels, never unpickled: it has read the file
of a stranger.
"""

import atexit
import contextlib
import functools
import json
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Any

import numpy as np

from awm_jax.documents import pdf

# PyMuPDF imports models for page layout where it finds them: half of the time to start.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    "sys.modules['pymupdf.layout'] = sys.modules['pymupdf4llm'] = None;"
    "from awm_jax.documents import workers; workers.serve(int(sys.argv[1]))"
)
_FUNCTIONS = {function.__name__: function for function in (pdf.read_pdf, pdf.draw_page)}
_ERRORS = {error.__name__: error for error in (pdf.PageError, pdf.DocumentError)}


def serve(descriptor: int) -> None:
    """A worker's whole life: does what it is asked on a socket until that is closed."""
    # The parent decides what a signal to all of the run's processes means.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The kernel keeps the time limit. It holds inside MuPDF, where no Python handler runs, and
    # also after the parent has died.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with contextlib.suppress(EOFError, OSError), connection.Connection(descriptor) as link:
        link.send_bytes(b"ready")
        while True:
            seconds, name, arguments = json.loads(link.recv_bytes())
            signal.setitimer(signal.ITIMER_REAL, seconds)
            answer, pixels = _answer(_FUNCTIONS[name], arguments)
            signal.setitimer(signal.ITIMER_REAL, 0)
            link.send_bytes(json.dumps(answer).encode())
            link.send_bytes(pixels)


def _answer(function: Callable[..., Any], arguments: list) -> tuple[dict[str, Any], bytes]:
    try:
        value = function(*arguments)
    except tuple(_ERRORS.values()) as error:
        return {"error": type(error).__name__, "message": str(error)}, b""
    if isinstance(value, np.ndarray):
        return {"shape": value.shape}, value.tobytes()
    return {"value": value}, b""


class _Worker:
    """One process, and the socket to it."""

    def __init__(self):
        self.link, far = connection.Pipe()
        with far:
            number = far.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(number), json.dumps(sys.path)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                # Not reached by a Ctrl-C at the terminal, which the run may want to survive.
                start_new_session=True,
            )
        self.done = 0
        try:
            self.link.recv_bytes()
        except BaseException as error:
            code = self.end()
            if not isinstance(error, EOFError | OSError):
                raise
            raise RuntimeError(f"the worker for pages did not start (exit code {code})") from error

    def ask(self, seconds: float, name: str, arguments: tuple) -> tuple[dict[str, Any], bytes]:
        """The answer and the pixels; `EOFError` or `OSError` where the process ends over it."""
        self.done += 1
        self.link.send_bytes(json.dumps([seconds, name, arguments]).encode())
        return json.loads(self.link.recv_bytes()), self.link.recv_bytes()

    def end(self) -> int:
        """Ends the process at once, if it has not ended; its exit code, negative for a signal."""
        self.link.close()
        # A process that closed the socket has ended, or is about to: its own code is the reason.
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=1)
        self.process.kill()
        return self.process.wait()


@contextlib.contextmanager
def run_in_workers(
    workers: int = 1, *, seconds: float = 60, calls_a_worker: int = 500
) -> Iterator[pdf.Run]:
    """A `pdf.Run` in other processes, for any number of threads; the results are the same.

    A call that takes too long or ends its process is a `PageError`, as is a page that MuPDF
    refuses; the next call gets a new process. Processes start when they are first needed (some
    0.8 s of CPU each) and end with the context.

    Args:
      workers: how many calls run at once. Each process takes 100 MB and more.
      seconds: of wall time for one call. Generous: a page that a busy machine draws too late
        is not seen by the policy.
      calls_a_worker: after so many a process is replaced, so that what MuPDF leaks is returned.
    """
    if workers < 1 or seconds <= 0 or calls_a_worker < 1:
        raise ValueError(
            "expected workers >= 1, seconds > 0 and calls_a_worker >= 1,"
            f" found {workers}, {seconds} and {calls_a_worker}"
        )
    # The place that was used last is first in line, so that a second process starts only where
    # two are wanted at once.
    places: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
    for _ in range(workers):
        places.put(None)
    closed = False

    def run(function: Callable[..., Any], *arguments) -> Any:
        worker, fit = places.get(), False
        try:
            if closed:
                raise RuntimeError(f"{arguments[0]}: the workers that read it were closed")
            worker = worker or _Worker()
            try:
                answer, pixels = worker.ask(seconds, function.__name__, arguments)
            except (EOFError, OSError) as error:
                code = worker.end()
                late = code == -signal.SIGALRM
                why = f"took longer than {seconds:g} s" if late else f"ended its process ({code})"
                raise pdf.PageError(why) from error
            fit = worker.done < calls_a_worker
        finally:
            if worker is not None and not fit:
                worker.end()
            places.put(worker if fit else None)
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["message"])
        if "shape" in answer:
            return np.frombuffer(pixels, np.uint8).reshape(answer["shape"])
        return answer["value"]

    try:
        yield run
    finally:
        closed = True
        for worker in [places.get() for _ in range(workers)]:
            if worker is not None:
                worker.end()
            # Whoever waits for a place is told.
            places.put(None)


@functools.cache
def _of_this_process() -> pdf.Run:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(run_in_workers())


def run(function: Callable[..., Any], *arguments) -> Any:
    """A `pdf.Run` in the one worker that this process keeps; it starts with the first call."""
    return _of_this_process()(function, *arguments)
