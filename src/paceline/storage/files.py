"""Files of a run: written whole or not at all, never read or written through a symbolic link.

A run may come from a stranger; nothing in it may lead to a file outside of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp-"
MAX_LINE = 2**20
"""Bytes of a line."""


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:  # it was deleted
        return "/"


_STARTED_IN = _working_directory()


def absolute(path: str | Path) -> str:
    return str(Path(_working_directory()) / path)


def shown(path: str | Path) -> str:
    """For messages: relative to the user's working directory, if it lies in it.

    If an environment has changed the working directory, only the absolute path is unambiguous.
    """
    inside = _working_directory() == _STARTED_IN and Path(path).is_relative_to(_STARTED_IN)
    return str(Path(path).relative_to(_STARTED_IN) if inside else path)


def irregular(path: Path, folder: bool | None = None) -> str | None:
    """Why `path` is neither a regular file nor a directory; None if it is, or does not exist.

    `folder` says which of the two is required; None allows both.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    if folder is not True and stat.S_ISREG(mode):
        return None
    if folder is not False and stat.S_ISDIR(mode):
        return None
    return "is not a directory" if folder else "is not a regular file"


def open_plain(path: Path, max_bytes: int | None = None, links: bool = False) -> BinaryIO:
    """Open a regular file to read; follow `links` only where the user has named the path."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    file = os.fdopen(handle, "rb")
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    if max_bytes is not None and found.st_size > max_bytes:
        file.close()
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, more than {max_bytes:,}")
    return file


def read_plain(path: Path, max_bytes: int | None = None) -> bytes:
    """All of a regular file; `OSError` for a link, a pipe, or more than `max_bytes`."""
    with open_plain(path, max_bytes) as file:
        return file.read()


def read_lines(path: Path, max_bytes: int | None = None) -> Iterator[bytes]:
    """The lines of a regular file; `OSError` as for `read_plain`, or if one is too long."""
    with open_plain(path, max_bytes) as file:
        while line := file.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise OSError(errno.EFBIG, f"it has a line of more than {MAX_LINE:,} bytes")
            yield line


def write_synced(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a new file, in one piece or several, and wait until it is on disk."""
    with path.open("xb") as file:  # "x" does not follow links
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically: a reader sees the old contents or the new."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_synced(temporary, data)
        temporary.replace(path)
        sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(folder: Path) -> None:
    """Wait until the directory's entries are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
