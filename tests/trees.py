"""Processes of a trainer: the forkserver that it starts, and the workers that this forks."""

from __future__ import annotations

from contextlib import suppress

import psutil


def family(trainer=None):
    """All descendants of a process, of this one by default."""
    return psutil.Process(trainer).children(recursive=True)


def forkserver(trainer=None):
    for child in psutil.Process(trainer).children():
        with suppress(psutil.Error):
            if "forkserver" in " ".join(child.cmdline()):
                return child
    return None


def workers(trainer=None):
    """In the order in which they were started."""
    server = forkserver(trainer)
    return sorted(server.children(), key=lambda child: child.pid) if server else []


def gone(processes, within):
    return not psutil.wait_procs(processes, timeout=within)[1]
