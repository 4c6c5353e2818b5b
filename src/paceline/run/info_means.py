"""InfoMeans: numbers in the `info` of episodes' last steps, averaged over episodes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ..config.schema import LogInfo
from ..config.text import printable
from ..envs.info import MOST_FOUND
from ..rollout import FEW_NUMBERS

log = logging.getLogger("paceline")

PREFIX = "info_"
"""Of a number whose own name another metric has."""


class InfoMeans:
    """The mean of each number over the episodes that have it.

    With `log_info` "auto", `names` are those seen so far, and if they are too many, there are no
    means.
    """

    def __init__(
        self, log_info: LogInfo, names: list[str] | None = None, taken: Collection[str] = ()
    ) -> None:
        """`taken` are the names of other metrics."""
        self._chosen, self._taken = log_info != "auto", taken
        if log_info != "auto":
            names = list(log_info)
        self.names = [] if names is None else names
        self._numbers: dict[str, list[float]] = {}
        self._episodes, self._logged = 0, False

    def add(self, info: Mapping[str, float]) -> None:
        """Count an episode."""
        self._episodes += 1
        for name, number in info.items():
            if name not in self.names and not self._chosen and len(self.names) < MOST_FOUND:
                self.names.append(name)
            if name in self.names and not self.too_many:
                self._numbers.setdefault(name, []).append(number)

    @property
    def too_many(self) -> bool:
        """Whether there are more numbers than are logged without being chosen."""
        return not self._chosen and len(self.names) > FEW_NUMBERS

    def take(self) -> dict[str, float | None]:
        """The means over the episodes since the last call, by the names of their metrics; None
        where no episode had a number."""
        numbers, self._numbers = self._numbers, {}
        if self.too_many:
            return {}
        means: dict[str, float | None] = dict.fromkeys(map(self._metric, self.names))
        for name, values in numbers.items():
            means[self._metric(name)] = sum(values) / len(values)
        return means

    def _metric(self, name: str) -> str:
        return f"{PREFIX}{name}" if name in self._taken else name

    def log_missing(self) -> None:
        """Once there are episodes, log which numbers have no means, and why; before `take`."""
        if self._logged or not self._episodes:
            return
        self._logged = self._chosen or self.too_many
        if self.too_many:
            log.info(
                f"episodes end with more than {FEW_NUMBERS} numbers in info "
                f"({printable(', '.join(self.names))[:500]}), so none is logged; choose some with "
                "--log-info a,b"
            )
        for name in self.names if self._chosen else ():
            if name not in self._numbers:
                log.warning(
                    f"log_info: no episode so far had a number {name!r} in the info of its last "
                    "step; --log-info auto shows which there are"
                )
