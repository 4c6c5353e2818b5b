"""Random play: every result checked, and what many results together show."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from ...envs.spaces import ACTION_MASK, ActionSpec
from ...rollout import Array
from ..findings import Finding, FindingLog
from .compare import flat_numbers, identical
from .environment import CallFailed, CheckedEnv, EnvFactory, StepResult
from .player import Played, Player, as_bool
from .rules import RULES
from .values import FaultCounter, faults

STEPS = 5_000
MIN_STEPS = 5
MAX_FAILURES = 3
TRACKS = 6
"""Episodes whose observations are kept, to see whether they show the time."""
MAX_FEATURES = 5_000
"""Numbers of an observation that is not taken for an image."""
MAX_NUMBERS = 2_000_000
"""Of all tracks."""
LARGE = 1e3
"""Of an observation's numbers and of rewards."""
FINAL_KEYS = ("final_observation", "final_obs", "terminal_observation")


@dataclass
class Episode:
    """Length, and the flags that the environment itself set at the end."""

    length: int = 0
    terminated: bool = False
    truncated: bool = False
    ended: bool = False


@dataclass
class PlayStats:
    """What random play has shown."""

    steps: int = 0
    results: int = 0
    episodes: list[Episode] = field(default_factory=list)
    tracks: list[list[Array]] = field(default_factory=list)
    """[episode][time] numbers of its observations"""
    max_obs: float = 0.0
    """largest absolute number observed, where the space is a Box"""
    max_reward: float = 0.0
    obs_varied: bool = False
    obs_aliased: bool = False
    """an observation changed after it had been returned"""
    action_changed: bool = False
    """step() wrote into its action"""
    final_in_info: bool = False
    """the last observation came in info, so that another took its place"""
    mask_in_reset: bool | None = None
    """whether the first reset gave a mask in info; None before it"""
    mask_differs: str = ""
    """the call whose info, unlike that of the first reset, had a mask or had none"""

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended]


class ResultInspector:
    """Checks the results of one environment and gathers statistics."""

    def __init__(self, spec: ActionSpec, counter: FaultCounter) -> None:
        self._spec, self._faults, self.stats = spec, counter, PlayStats()
        self._last: tuple[Any, Any] | None = None
        """the last observation, and a copy made when it came"""
        self._first_obs: Any = None

    def inspect(self, played: Played, space: gym.Space[Any]) -> None:
        stats, result = self.stats, played.result
        if played.first:
            stats.episodes.append(Episode())
            if len(stats.tracks) < TRACKS:
                stats.tracks.append([])
        episode = stats.episodes[-1]
        stats.results += 1
        stats.steps += not played.first
        episode.length += not played.first
        for fault in faults(result, space, self._spec, played.over):
            self._faults.add(fault, episode.length)
        self._compare_observations(result.obs)
        self._look_for_mask(played)
        self._measure(result, space)
        if played.over:
            episode.ended = True
            episode.terminated = as_bool(result.terminated)
            episode.truncated = as_bool(result.truncated)
            stats.final_in_info |= any(key in result.info for key in FINAL_KEYS)

    def new_instance(self) -> None:
        """The next result is of another instance."""
        self._last = None

    def _compare_observations(self, obs: Any) -> None:
        stats = self.stats
        stats.obs_aliased |= self._last is not None and not identical(*self._last)
        kept = copy.deepcopy(obs)
        self._last = (obs, kept)
        if self._first_obs is None:
            self._first_obs = kept
        stats.obs_varied = stats.obs_varied or not identical(self._first_obs, kept)

    def _look_for_mask(self, played: Played) -> None:
        stats, given = self.stats, ACTION_MASK in played.result.info
        if stats.mask_in_reset is None:
            stats.mask_in_reset = given
        elif not played.over and given != stats.mask_in_reset and self._spec.choices:
            stats.mask_differs = stats.mask_differs or ("reset" if played.first else "step")

    def _measure(self, result: StepResult, space: gym.Space[Any]) -> None:
        stats = self.stats
        reward = flat_numbers(result.reward)
        stats.max_reward = max(stats.max_reward, _largest(reward))
        box = isinstance(space, gym.spaces.Box)
        if box and int(np.prod(space.shape)) > MAX_FEATURES:  # type: ignore[arg-type]
            return  # an image: neither its scale nor a clock in it matters
        numbers = flat_numbers(result.obs)
        if box:
            stats.max_obs = max(stats.max_obs, _largest(numbers))
        if len(stats.episodes) <= len(stats.tracks):
            track = stats.tracks[len(stats.episodes) - 1]
            if (len(track) + 1) * numbers.size <= MAX_NUMBERS // TRACKS:
                track.append(numbers)


def _largest(numbers: Array) -> float:
    """Largest finite absolute value."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def play_randomly(
    factory: EnvFactory, spec: ActionSpec, log: FindingLog, seconds: float
) -> PlayStats:
    """Play until there are enough steps or the time is over; after a failure in a new instance."""
    until, counter = time.monotonic() + seconds, FaultCounter()
    inspector = ResultInspector(spec, counter)
    stats = inspector.stats
    for failures in range(MAX_FAILURES):
        inspector.new_instance()
        try:
            env = CheckedEnv(factory)
            player = Player(env, spec, factory.request.seed + failures, actions=failures)
            while stats.steps < STEPS and (time.monotonic() < until or stats.steps < MIN_STEPS):
                inspector.inspect(player.next(), env.env.observation_space)
            stats.action_changed |= player.changed_action
            env.discard()
            break
        except CallFailed as failed:
            log.add(failed.finding)
    log.add(*counter.findings(stats.results), *about_play(stats))
    return stats


def about_play(stats: PlayStats) -> Iterator[Finding]:
    """What only many results together show."""
    if stats.obs_aliased:
        yield RULES.found("observation-aliased")
    if stats.mask_differs:
        code = "mask-lost" if stats.mask_in_reset else "mask-late"
        yield RULES.found(code, call=stats.mask_differs)
    if stats.action_changed:
        yield RULES.found("action-changed")
    if not stats.obs_varied and stats.steps >= MIN_STEPS:
        yield RULES.found("observation-constant", steps=stats.steps)
    if not stats.max_reward and stats.steps >= MIN_STEPS:
        yield RULES.found("reward-zero", steps=stats.steps)
    if stats.max_obs > LARGE:
        yield RULES.found("observation-large", value=stats.max_obs)
    if stats.max_reward > LARGE:
        yield RULES.found("reward-large", value=stats.max_reward)
