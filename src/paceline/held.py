"""HeldRun: a run directory while it is written, which somebody may move or delete."""

from __future__ import annotations

import errno
import logging
import os
from itertools import count
from pathlib import Path

from .config import Config
from .errors import StoppedEarly
from .files import read_plain, replace_file, shown
from .rundir import CONFIG, MOST_BYTES, RUN, write_config

log = logging.getLogger("paceline")


class HeldRun:
    """Known by a descriptor, so that it is found where it was moved to, and missed when deleted."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self._config = folder, config
        self._handle = _opened(folder)
        self._facts = read_plain(folder / RUN, MOST_BYTES)
        self._put_back: set[str] = set()
        self.lost: str | None = None
        """what has befallen it, if the run can't go on there"""

    def close(self) -> None:
        os.close(self._handle)

    def remember_facts(self) -> None:
        """run.json has changed."""
        self._facts = read_plain(self.folder / RUN, MOST_BYTES)

    def check(self) -> bool:
        """Whether it was moved or deleted since the last time; what can be mended is mended."""
        place = self._place()
        if place is None:
            self._make_again()
        elif place != self.folder:
            self.lost = f"{shown(self.folder)} was moved to {shown(place)} while it trained"
            self.folder = place
        else:
            self._put_back_files()
            return False
        return True

    def _place(self) -> Path | None:
        """Where the directory is now; None if it was deleted, or nobody can say."""
        if self._is_at(self.folder):
            return self.folder
        try:
            found = Path(f"/proc/self/fd/{self._handle}").readlink()
        except OSError:  # not on this system
            return None
        return found if self._is_at(found) else None

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(path.stat(), os.fstat(self._handle))
        except OSError as error:  # others are of a disk that does not answer
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

    def _make_again(self) -> None:
        """All but what was learnt; nothing else that has its name now is touched."""
        before = self.folder
        names = (before.with_name(f"{before.name}-{n}") if n > 1 else before for n in count(1))
        place = next(path for path in names if not os.path.lexists(path))
        try:
            place.mkdir(parents=True)
            replace_file(place / RUN, self._facts)
            write_config(place, self._config)
            os.close(self._handle)
            self._handle = _opened(place)
        except OSError as error:
            raise StoppedEarly(
                f"{shown(before)} was deleted while it trained, and can't be made again: "
                f"{error.strerror}"
            ) from None
        self.folder = place
        self.lost = f"{shown(before)} was deleted while it trained; it is saved anew"

    def _put_back_files(self) -> None:
        for name in (CONFIG, RUN):
            if name in self._put_back or os.path.lexists(self.folder / name):
                continue
            self._put_back.add(name)
            log.warning("%s was deleted; it is written again", shown(self.folder / name))
            try:
                if name == RUN:
                    replace_file(self.folder / RUN, self._facts)
                else:
                    write_config(self.folder, self._config)
            except OSError as error:
                log.warning("%s can't be written: %s", shown(self.folder), error.strerror)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
