"""Headless Chromium, driven over its debugging pipe: nothing but the browser is needed."""

import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
_NAMED_KEYS = {
    "Enter": {"text": "\r", "windowsVirtualKeyCode": 13},
    "Escape": {"windowsVirtualKeyCode": 27},
}
_PATIENCE_S = 120.0


def executable() -> str | None:
    """The browser: what CHROMIUM names, else the first that is installed; None without one."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab.

    Attributes:
      messages: what scripts and the browser wrote to the console, and uncaught errors.
      requests: URLs that were asked for, but `data:` and the page itself.
    """

    def __init__(self, send: int, receive: int):
        self._send, self._receive = send, receive
        self._ids = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._loaded: set[str] = set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        # Keys go to the page even where its window is not in front.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], deadline - time.monotonic())
            data = os.read(self._receive, 1 << 20) if ready else b""
            if not data:
                what = "has ended" if ready else f"said nothing for {_PATIENCE_S:.0f} s"
                raise RuntimeError(f"the browser {what}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.messages.append(str([a.get("value") for a in parameters["args"]]))
            case "Runtime.exceptionThrown":
                self.messages.append(str(parameters["exceptionDetails"].get("exception")))
            case "Log.entryAdded":
                self.messages.append(parameters["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.messages.append(f"dialog: {parameters['message']}")
            case "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith("data:") and parameters.get("type") != "Document":
                    self.requests.append(url)
            case "Page.lifecycleEvent" if parameters["name"] == "load":
                self._loaded.add(parameters["loaderId"])

    def open(self, path: pathlib.Path, *, fragment: str = "") -> None:
        """Opens a file and waits until it has loaded."""
        # By way of an empty page: one file with another fragment would not be loaded anew.
        for url in ("about:blank", path.resolve().as_uri() + fragment):
            loader = self.call("Page.navigate", url=url)["loaderId"]
            while loader not in self._loaded:
                self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key, by its name or character."""
        fields = {"key": key, "text": key} if len(key) == 1 else {"key": key, "code": key}
        fields |= _NAMED_KEYS.get(key, {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def click(self, selector: str) -> None:
        """Clicks with the mouse into the middle of the first element that matches."""
        place = self.evaluate(
            "(e => { e.scrollIntoView({ block: 'center' }); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def first_paint_ms(self) -> float:
        """Milliseconds from navigation to the first contentful paint."""
        name = "first-contentful-paint"
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            found = self.evaluate(f"performance.getEntriesByName('{name}').map(e => e.startTime)")
            if found:
                return found[0]
            time.sleep(0.05)
        raise RuntimeError("the page was not painted")


def _high_pipe() -> tuple[int, int]:
    """A pipe's two ends, clear of the descriptors 3 and 4 that the browser gets."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return high


@contextlib.contextmanager
def running(*, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """A browser with one tab, ended on the way out; its profile is a folder that goes with it."""
    to_browser, from_us = _high_pipe()
    to_us, from_browser = _high_pipe()
    command = [executable(), *_FLAGS, f"--window-size={width},{height}"]
    # The browser reads its pipe as descriptor 3 and writes it as 4. Not by a shell: dash cannot
    # duplicate descriptors above 9.
    start = (
        f"import os, sys; os.dup2({to_browser}, 3); os.dup2({from_browser}, 4); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", start, *command],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(from_us, to_us)
    finally:
        process.terminate()
        process.wait()
        os.close(from_us)
        os.close(to_us)
