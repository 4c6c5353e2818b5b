"""One process at a time writes a run, or what a command measures."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadInput
from .files import shown

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing the same run; the kernel lets go when this one ends."""
    check_path("output_dir", str(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(folder / LOCK, flags, 0o666), "rb")
    except OSError as error:
        raise BadInput(f"output_dir {shown(folder)} can't be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"{shown(folder)} is being written by another process; wait for it"
            ) from None
        _locks.add(file.fileno())
        try:
            yield
        finally:
            _locks.discard(file.fileno())


_locks: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _let_go() -> None:
    """In what an environment has forked, which may outlive this process, and its lock with it."""
    for lock in _locks:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, lock)
        os.close(nothing)


os.register_at_fork(after_in_child=_let_go)


def check_path(name: str, path: str) -> None:
    try:
        if "\0" not in path and os.fsencode(path):
            return
    except UnicodeError:
        pass
    raise BadInput(f"{name} is {path!r}, which no file system takes; write a plain path")
