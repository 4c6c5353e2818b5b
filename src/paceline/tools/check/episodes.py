"""Random play: every result checked, and what many results together show."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from ...envs.spaces import ACTION_MASK, ActionSpec
from ...rollout import Array
from ..findings import Finding, FindingLog
from .compare import StepResult, as_bool, flat_numbers, identical
from .environment import SHOWS_NEXT, CallFailed, CheckedEnv, EnvFactory
from .player import Player
from .rules import found
from .values import Fault, faults

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
NOT_OF_BATCHES = ("observation-dtype",)
"""Faults that don't show in what a batch has stored already."""


@dataclass
class Episode:
    """Length, and the flags that the environment itself set at the end."""

    length: int = 0
    terminated: bool = False
    truncated: bool = False
    ended: bool = False
    track: list[Array] = field(default_factory=list)
    """[time] numbers of its observations"""


@dataclass
class PlayStats:
    """What random play has shown."""

    steps: int = 0
    results: int = 0
    episodes: list[Episode] = field(default_factory=list)
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
    shows_next: bool = False
    """the last step of an episode showed the first observation of the next one"""
    mask_in_reset: bool | None = None
    """whether the first reset gave a mask in info; None before it"""
    mask_differs: str = ""
    """the call whose info, unlike that of the first reset, had a mask or had none"""
    faults: dict[tuple[str, str], tuple[Fault, int]] = field(default_factory=dict)
    """by code and place: the first, and the step of its episode, which counts from the reset"""
    fault_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    first_obs: Any = None
    last_obs: tuple[Any, Any] | None = None
    """the last observation of this instance, and a copy made when it came"""

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended]

    def add(self, result: StepResult, space: gym.Space[Any], spec: ActionSpec) -> None:
        """Take in one more result."""
        first, over = result.first, result.over
        if first:
            self.episodes.append(Episode())
        episode = self.episodes[-1]
        self.results += 1
        self.steps += not first
        episode.length += not first
        for fault in faults(result, space, spec):
            self.faults.setdefault((fault.code, fault.place), (fault, episode.length))
            self.fault_counts[fault.code, fault.place] += 1
        self._compare_observations(result.obs)
        given = ACTION_MASK in result.info
        if self.mask_in_reset is None:
            self.mask_in_reset = given
        elif spec.choices and not over and given != self.mask_in_reset:
            self.mask_differs = self.mask_differs or ("reset" if first else "step")
        self.max_reward = max(self.max_reward, _largest(flat_numbers(result.reward)))
        self._measure(result.obs, space, episode.track)
        if over:
            episode.ended = True
            episode.terminated = as_bool(result.terminated)
            episode.truncated = as_bool(result.truncated)
            self.final_in_info |= any(key in result.info for key in FINAL_KEYS)
            self.shows_next |= SHOWS_NEXT in result.info

    def _compare_observations(self, obs: Any) -> None:
        self.obs_aliased |= self.last_obs is not None and not identical(*self.last_obs)
        kept = copy.deepcopy(obs)
        self.last_obs = (obs, kept)
        if self.first_obs is None:
            self.first_obs = kept
        self.obs_varied = self.obs_varied or not identical(self.first_obs, kept)

    def _measure(self, obs: Any, space: gym.Space[Any], track: list[Array]) -> None:
        box = isinstance(space, gym.spaces.Box)
        if box and int(np.prod(space.shape)) > MAX_FEATURES:  # type: ignore[arg-type]
            return  # an image: neither its scale nor a clock in it matters
        numbers = flat_numbers(obs)
        if box:
            self.max_obs = max(self.max_obs, _largest(numbers))
        fits = (len(track) + 1) * numbers.size <= MAX_NUMBERS // TRACKS
        if len(self.episodes) <= TRACKS and fits:
            track.append(numbers)


def _largest(numbers: Array) -> float:
    """Largest finite absolute value."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def play_randomly(
    factory: EnvFactory, spec: ActionSpec, log: FindingLog, seconds: float
) -> PlayStats:
    """Play until there are enough steps or the time is over; after a failure in a new instance."""
    until, stats = time.monotonic() + seconds, PlayStats()
    for failures in range(MAX_FAILURES):
        stats.last_obs = None
        try:
            with CheckedEnv(factory) as env:
                player = Player(env, spec, factory.request.seed + failures, actions=failures)
                while stats.steps < STEPS and (time.monotonic() < until or stats.steps < MIN_STEPS):
                    stats.add(player.next(), env.env.observation_space, spec)
                stats.action_changed |= player.changed_action
                break
        except CallFailed as failed:
            log.add(failed.finding)
    log.add(*about_faults(stats, () if factory.single else NOT_OF_BATCHES), *about_play(stats))
    return stats


def about_faults(stats: PlayStats, ignored: tuple[str, ...]) -> Iterator[Finding]:
    """Of each code and place the first fault, and how often it was seen."""
    for (code, place), (fault, step) in stats.faults.items():
        also_far = code == "observation-near" and ("observation-outside", place) in stats.faults
        if code in ignored or also_far:
            continue
        times = stats.fault_counts[code, place]
        seen = f"first at step {step} of an episode" if step else "after reset"
        if times > 1:
            seen += f"; {times:,} times in {stats.results:,} results"
        yield found(code, **fault.facts, place=place, step=step, seen=seen)


def about_play(stats: PlayStats) -> Iterator[Finding]:
    """What only many results together show."""
    if stats.obs_aliased:
        yield found("observation-aliased")
    if stats.mask_differs:
        yield found("mask-lost" if stats.mask_in_reset else "mask-late", call=stats.mask_differs)
    if stats.action_changed:
        yield found("action-changed")
    if not stats.obs_varied and stats.steps >= MIN_STEPS:
        yield found("observation-constant", steps=stats.steps)
    if not stats.max_reward and stats.steps >= MIN_STEPS:
        yield found("reward-zero", steps=stats.steps)
    if stats.max_obs > LARGE:
        yield found("observation-large", value=stats.max_obs)
    if stats.max_reward > LARGE:
        yield found("reward-large", value=stats.max_reward)
