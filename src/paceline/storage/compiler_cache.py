"""Directory in which torch keeps compiled steps, and the C++ compiler that it uses."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import BadInput

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Set before torch is imported, or it makes a directory of its own choice in /tmp."""


def compiled_cache() -> str:
    """Directory of compiled steps, shared by all runs of this user."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home directory
        base = _private_folder()
    return str(Path(base) / "paceline" / "compiled")


def _private_folder() -> Path:
    """In the temporary folder; what is compiled is executed, so nobody else may write there."""
    try:
        folder = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        ours = found.st_uid == os.getuid() and not found.st_mode & 0o077
        safe = ours and stat.S_ISDIR(found.st_mode)
        return folder if safe else Path(tempfile.mkdtemp(prefix="paceline-"))
    except OSError as error:
        raise BadInput(
            f"this user has no home directory, and no temporary one can be made "
            f"({error.strerror}); set HOME or XDG_CACHE_HOME"
        ) from None


def wanted_compiler(cxx: str | None, system: str = sys.platform) -> str:
    """The only C++ compiler that torch looks for; `cxx` is the value of CXX, if set."""
    return cxx or ("clang++" if system == "darwin" else "g++")
