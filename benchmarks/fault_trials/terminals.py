"""Area `resources`: terminals that close, resize and are typed into."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable

from .harness import PACED, Case, Trial, lost, wait_for, words

DONE = (0,)


def on_terminal(then: Callable[[Case, int], None]) -> Callable[[Case], None]:
    """Instead of how a trial is started: on a terminal of its own."""

    def during(case: Case) -> None:
        master, slave = pty.openpty()
        case.process.wait(30)
        process = subprocess.Popen(
            case.command(case.trial.args if case.trial.args != "list" else f"train {PACED}"),
            cwd=case.here,
            env=case.environment(FAULT_PACE="0.004", TERM="xterm"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        seen = bytearray()

        def read() -> None:
            try:
                while data := os.read(master, 65536):
                    seen.extend(data)
            except OSError:
                return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if not wait_for(lambda: case.reports() > 2 or process.poll() is not None, 40):
            raise words("it did not begin on a terminal")
        then(case, master)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            raise lost("on a terminal it did not end") from None
        if b"Traceback" in seen:
            raise words("a traceback on the terminal")
        if code not in (0, 75, -1):
            raise words(f"exit code {code} on a terminal")

    return during


def _close(case: Case, master: int) -> None:
    os.close(master)


def _control(letter: bytes) -> Callable[[Case, int], None]:
    return lambda case, master: os.write(master, letter) and None


def _resize(case: Case, master: int) -> None:
    for rows, columns in ((1, 1), (0, 0), (500, 500), (3, 2000)):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        time.sleep(0.3)


def _paused(case: Case, master: int) -> None:
    os.write(master, b"\x13")
    time.sleep(1)
    os.write(master, b"\x11")


def _type(case: Case, master: int) -> None:
    os.write(master, b"hello\x04\x1b[A" * 200)


def trials() -> list[Trial]:
    rows: dict[str, tuple[Callable[[Case, int], None], bool]] = {
        "terminal closed": (_close, True),
        "Ctrl-C": (_control(b"\x03"), False),
        "Ctrl-D": (_control(b"\x04"), False),
        "terminal resized": (_resize, False),
        "typed into": (_type, False),
        "Ctrl-S, Ctrl-Q": (
            _paused,
            False,
        ),
    }
    return [
        Trial(
            "resources",
            f"terminal: {name}",
            "list",
            DONE,
            during=on_terminal(then),
            resume="serial",
            known=known,
            timeout=90.0,
        )
        for name, (then, known) in rows.items()
    ]
