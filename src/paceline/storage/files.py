"""The files of a run: written whole or not at all, and never read or written through a link.

A run may come from a stranger; what lies in it must not lead out of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp-"
LONGEST_LINE = 2**20
"""Bytes of the longest line that is read."""


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:  # it was deleted
        return "/"


_STARTED_IN = _here()


def absolute(path: str | Path) -> str:
    return str(Path(_here()) / path)


def shown(path: str | Path) -> str:
    """As its user would write it: short where it lies in the directory they are in.

    An environment may have changed that; then only the whole path is sure to be right.
    """
    inside = _here() == _STARTED_IN and Path(path).is_relative_to(_STARTED_IN)
    return str(Path(path).relative_to(_STARTED_IN) if inside else path)


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All of a plain file; `OSError` for a link, a pipe, or more than `most` bytes."""
    with open_plain(path, most) as file:
        return file.read()


def read_lines(path: Path, most: int | None = None) -> Iterator[bytes]:
    """The lines of a plain file, one at a time; `OSError` as of `read_plain`, or for a huge one."""
    with open_plain(path, most) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise OSError(errno.EFBIG, f"it has a line of more than {LONGEST_LINE:,} bytes")
            yield line


def open_plain(path: Path, most: int | None = None, links: bool = False) -> BinaryIO:
    """A plain file, to be read; through `links` only where its user has named it."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    file = os.fdopen(handle, "rb")
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a plain file")
    if most is not None and found.st_size > most:
        file.close()
        raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, which is too many")
    return file


def write_synced(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a new file, in one piece or several, and wait until the disk has it."""
    with path.open("xb") as file:  # not through a link either
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part."""
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
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def strange(path: Path, folder: bool | None = None) -> str | None:
    """Why `path` is neither a plain file nor a directory; None if it is one, or is not there.

    `folder` says which of both it has to be, if that matters.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return "is a link to somewhere else"
    if folder is not True and stat.S_ISREG(mode):
        return None
    if folder is not False and stat.S_ISDIR(mode):
        return None
    return "is not a directory" if folder else "is not a plain file"
