"""A lock on an output directory: one process at a time writes it."""

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
    """Hold the lock of `folder`, which is made; the kernel releases it when the process ends."""
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
                f"{shown(folder)} is being written by another process; wait for it to end"
            ) from None
        _locks.add(file.fileno())
        try:
            yield
        finally:
            _locks.discard(file.fileno())


_locks: set[int] = set()
"""File descriptors of the locks that this process holds."""


def _release_in_child() -> None:
    """A process forked by an environment may outlive this one, and must not keep its locks."""
    for lock in _locks:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, lock)
        os.close(null)


os.register_at_fork(after_in_child=_release_in_child)


def check_path(name: str, path: str) -> None:
    """Refuse a path that no file system can represent."""
    try:
        if "\0" not in path and os.fsencode(path):
            return
    except UnicodeError:
        pass
    raise BadInput(f"{name} is {path!r}, which can't be a path")
