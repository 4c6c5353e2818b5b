"""A real browser for tests: Chromium without a window, spoken to through two pipes.

It writes down what it was not asked for: messages on the console, exceptions, and every request.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
WITHIN = 20.0
"""Seconds that any one answer may take."""
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    # One process draws all pages, so that no test finds one that another has started.
    "--renderer-process-limit=1",
    "--disable-features=SpareRendererForSitePerProcess",
)
KEYS = {"Enter": ("Enter", 13, "\r"), " ": ("Space", 32, " "), "ArrowLeft": ("ArrowLeft", 37, "")}


def found():
    """The path of a browser on this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser, whose files are in `folder` until it is closed."""

    def __init__(self, folder):
        self.problems, self.requests = [], []
        self._folder, self._buffer, self._session, self._sent = Path(folder), b"", None, 0
        self._answers, self._loaded = {}, False
        self._process, self._write, self._read = _start(self._folder)

    def __enter__(self):
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Kill all of its processes, and remove its files."""
        every = []
        with suppress(psutil.NoSuchProcess):
            every = [self._process, *self._process.children(recursive=True)]
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in every:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _, stayed = psutil.wait_procs(every, timeout=WITHIN)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)
        assert not stayed, f"the browser is still there: {stayed}"

    def open(self, path, width=1400, height=900, dark=False, mobile=False):
        """Load a file, and wait until it is there; what the page before did is forgotten."""
        self.view(width, height, dark, mobile)
        self.problems.clear()
        self.requests.clear()
        self._loaded = False
        self._own = Path(path).as_uri()
        self._call("Page.navigate", url=self._own)
        self._until(lambda: self._loaded, f"{path} to load")
        self.move(0, 0)
        return self

    def view(self, width, height=900, dark=False, mobile=False):
        size = {"width": width, "height": height, "screenWidth": width, "screenHeight": height}
        look = {"deviceScaleFactor": 1, "mobile": mobile}
        self._call("Emulation.setDeviceMetricsOverride", **size, **look)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="", features=[scheme])

    def print_view(self):
        self._call("Emulation.setEmulatedMedia", media="print", features=[])

    def js(self, expression):
        """The value of an expression, which is waited for if it is a promise."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def scripts(self, run):
        """Whether pages that are opened from now on may run scripts."""
        self._call("Emulation.setScriptExecutionDisabled", value=not run)

    def move(self, x, y):
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def place(self, selector):
        """Scroll to an element; left, top, width and height of it in the window."""
        return self.js(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return [box.left, box.top, box.width, box.height]; })()"
        )

    def click(self, selector):
        left, top, width, height = self.place(selector)
        at = {"x": left + width / 2, "y": top + height / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, **at)

    def press(self, selector, key):
        """Focus an element, and press a key."""
        self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        code, number, text = KEYS[key]
        given = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self._call("Input.dispatchKeyEvent", type="keyDown", **given, text=text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **given)

    def _call(self, method, **params):
        self._sent += 1
        number, message = self._sent, {"id": self._sent, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        self._until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _until(self, condition, what):
        deadline = time.monotonic() + WITHIN
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"waited {WITHIN} s for {what}"
            if not select.select([self._read], [], [], left)[0]:
                continue
            data = os.read(self._read, 1 << 20)
            assert data, f"the browser ended while waiting for {what}"
            *whole, self._buffer = (self._buffer + data).split(b"\0")
            for message in whole:
                self._note(json.loads(message))

    def _note(self, message):
        """Keep an answer for who asked, and of events those that tests ask about."""
        if "id" in message:
            self._answers[message["id"]] = message
            return
        kind, params = message["method"], message["params"]
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.problems.append(params)
        elif kind == "Network.requestWillBeSent" and params["request"]["url"] != self._own:
            self.requests.append(params["request"]["url"])


def _start(folder):
    """The process, at the head of a session of its own, and our ends of its pipes 3 and 4."""
    folder.mkdir(parents=True, exist_ok=True)
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    command = [found(), *FLAGS, *root, f"--user-data-dir={folder}", "about:blank"]
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
    actions = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    actions += [(os.POSIX_SPAWN_DUP2, end, to) for end, to in zip(theirs, (3, 4), strict=True)]
    home = {"HOME": str(folder), "TMPDIR": str(folder), "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
    environment = {**os.environ, **home}
    pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsid=True)
    for end in (theirs_in, theirs_out, *theirs):
        os.close(end)
    return psutil.Process(pid), ours_out, ours_in
