"""Every check of one environment in turn, each within its time, on instances of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from ...config.text import listed
from ...envs.spaces import ActionSpec, action_spec, observation_spec
from ...errors import BadInput
from ..findings import FindingLog
from .action_bounds import about_bounds, try_bounds
from .compare import digest
from .ends import about_ends, resets_itself
from .environment import CallFailed, CheckedEnv, EnvFactory
from .episodes import PlayStats, play_randomly
from .player import Player
from .rules import RULES
from .seeding import Reference, about_seeding, make_reference
from .values import brief_space

BLOCKING = ("make", "reset", "step", "observation", "reward", "mask")
"""Topics of faults with which steps fail, so that nothing can be measured."""


class Examination:
    """Examines one environment; findings go to the log."""

    def __init__(
        self,
        factory: EnvFactory,
        log: FindingLog,
        progress: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self._factory, self._log, self._progress = factory, log, progress
        self._seconds = factory.request.seconds
        self.facts: dict[str, Any] = {}
        self.reference: Reference | None = None
        """what another process should see too; None where not even this one did"""

    def run(self) -> bool:
        """Whether the environment can be measured."""
        log = self._log
        self._progress("making it")
        try:
            spec = self._try_once()
        except CallFailed as failed:
            log.add(failed.finding)
            return False
        self._progress("playing at random")
        stats = play_randomly(self._factory, spec, log, self._seconds)
        self.facts |= {"steps": stats.steps, "episodes": len(stats.ended)}
        if not log.findings:
            log.add(RULES.found("observation-ok", results=stats.results))
        log.add(*about_bounds(spec))
        checks: dict[str, Callable[[], None]] = {
            "comparing seeds": lambda: self._check_seeding(spec),
            "trying actions at their bounds": lambda: self._try_bounds(spec),
            "looking at ends": lambda: self._check_ends(stats, spec),
        }
        for name, check in checks.items():
            self._progress(name)
            try:
                check()
            except CallFailed as failed:
                log.add(failed.finding)
        self._check_processes()
        return not log.has("wrong", *BLOCKING)

    def _try_once(self) -> ActionSpec:
        """The spaces, one reset, one step and close(); what fails here makes the rest useless."""
        checked, seed = CheckedEnv(self._factory), self._factory.request.seed
        env = checked.env
        spaces = {n: getattr(env, n, None) for n in ("observation_space", "action_space")}
        self.facts |= {
            "observation": brief_space(spaces["observation_space"]),
            "action": brief_space(spaces["action_space"]),
            "time_limit": checked.time_limit,
        }
        for name, space in spaces.items():
            if space is None:
                raise CallFailed(RULES.found("space-missing", name=name))
        try:
            spec = action_spec(env.action_space)
            observation_spec(env.observation_space, spec, checked.reset(seed).info)
        except BadInput as error:
            raise CallFailed(RULES.found("space-unusable", error=str(error))) from error
        player = Player(checked, spec, seed)
        for _ in range(2):
            player.next()
        try:
            checked.close()
        except CallFailed as failed:
            self._log.add(failed.finding)
        return spec

    def _check_seeding(self, spec: ActionSpec) -> None:
        reference = make_reference(self._factory, spec, self._seconds / 4)
        inexact = False
        for finding in about_seeding(self._factory, spec, reference):
            self._log.add(finding)
            inexact = inexact or finding.code == "seeding-inexact"
        if not inexact and not self._log.has("risky", "seeding", "copies"):
            self.reference = reference

    def _try_bounds(self, spec: ActionSpec) -> None:
        try_bounds(self._factory, spec, self._seconds / 4, self._log)

    def _check_ends(self, stats: PlayStats, spec: ActionSpec) -> None:
        if not stats.ended and self._log.has("risky", "step", "reset"):
            return  # it never got that far
        self_reset = False
        if any(episode.terminated or episode.truncated for episode in stats.ended):
            self_reset = resets_itself(self._factory, spec, self._seconds / 4)
        self._log.add(*about_ends(stats, self.facts["time_limit"], self_reset))

    def _check_processes(self) -> None:
        """Everything has been closed by now."""
        left = psutil.Process().children(recursive=True)
        if left and not self._log.has("risky", "step", "reset", "close"):
            names = sorted({process.name() for process in left})
            self._log.add(RULES.found("close-processes", count=len(left), names=listed(names)))


def replay(factory: EnvFactory) -> str:
    """Digest of the reference, which another process has made, when it is played here."""
    env = CheckedEnv(factory)
    player = Player(env, action_spec(env.env.action_space), factory.request.seed)
    found = digest(player.records(factory.request.replay))
    env.discard()
    return found
