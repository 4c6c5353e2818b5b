"""A command whose standard output is a terminal."""

from __future__ import annotations

import os
import pty


def shown_on_terminal(shell, *arguments, **variables):
    """All bytes that the command writes to a terminal of 60 columns; it has to succeed."""
    reader, writer = pty.openpty()
    environment = shell.environment(TERM="xterm", COLUMNS="60") | variables
    environment.pop("NO_COLOR", None)
    process = shell.start(*arguments, stdout=writer, env=environment)
    os.close(writer)
    shown = b""
    try:
        while part := os.read(reader, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(reader)
    assert process.wait(timeout=60) == 0, process.stderr.read()
    process.stderr.close()
    return shown
