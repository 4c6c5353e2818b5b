"""A command whose standard output is a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios


def shown_on_terminal(shell, *arguments, **variables):
    """All bytes that the command writes to a terminal of 60 columns; it has to succeed."""
    reader, writer = pty.openpty()
    environment = shell.environment(TERM="xterm", COLUMNS="60") | variables
    environment.pop("NO_COLOR", None)
    process = shell.start(*arguments, stdout=writer, env=environment)
    os.close(writer)
    shown = b"".join(parts(reader))
    os.close(reader)
    assert process.wait(timeout=60) == 0, process.stderr.read()
    process.stderr.close()
    return shown


def parts(terminal):
    """What is written to the terminal, as it comes, until the other end is closed."""
    try:
        while part := os.read(terminal, 65536):
            yield part
    except OSError:
        pass


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
