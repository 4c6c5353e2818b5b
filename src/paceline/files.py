"""The files of a run: written whole or not at all, and never read or written through a link.

A run may come from a stranger; what lies in it must not lead out of it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

TEMPORARY = ".tmp-"


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All of a plain file; `OSError` for a link, a pipe, or more than `most` bytes."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        if most is not None and found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, which is too many")
        return file.read()


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    handle = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
    )
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        temporary.unlink(missing_ok=True)
        write_synced(temporary, data)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
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
