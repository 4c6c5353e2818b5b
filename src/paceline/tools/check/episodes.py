"""The walk: many random steps, each answer looked at, each episode's end remembered."""

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
from .compare import alike, flat_numbers
from .environment import Answer, Instance
from .finding import Broken, Finding, Notebook
from .player import Player, true
from .subject import Subject
from .values import Faults, faults

STEPS = 5_000
LEAST_STEPS = 5
MOST_FAILURES = 3
TRACKS = 6
"""Episodes whose observations are kept, to see whether they show the time."""
MOST_FEATURES = 5_000
MOST_NUMBERS = 2_000_000
"""Of a track."""
FINAL_KEYS = ("final_observation", "final_obs", "terminal_observation")


@dataclass
class EpisodeSeen:
    """How one episode went; the flags are the environment's own."""

    length: int = 0
    terminated: bool = False
    truncated: bool = False
    ended: bool = False


@dataclass
class Walked:
    """What the walk has gathered."""

    steps: int = 0
    answers: int = 0
    episodes: list[EpisodeSeen] = field(default_factory=list)
    tracks: list[list[Array]] = field(default_factory=list)
    """[episode][time] numbers of its observations"""
    rewarded: bool = False
    """a reward was not 0"""
    largest: float = 0.0
    """of the numbers observed, where the space is a Box"""
    largest_reward: float = 0.0
    moved: bool = False
    """observations were not all the same"""
    aliased: bool = False
    """an observation changed after it had been returned"""
    changed_action: bool = False
    """a step wrote into the action that it was given"""
    told_final: bool = False
    """the last observation came in info, so that another took its place"""
    fresh_masks: bool | None = None
    """whether the resets gave a mask in info; None before the first"""
    lost_mask: str = ""
    """where a mask was missing, or came too late"""

    @property
    def ended(self) -> list[EpisodeSeen]:
        return [episode for episode in self.episodes if episode.ended]


class Lookout:
    """Looks at what one environment answers, episode after episode."""

    def __init__(self, spec: ActionSpec, kept: Faults) -> None:
        self._spec, self._faults, self.seen = spec, kept, Walked()
        self._before: tuple[Any, Any] | None = None
        """the last observation, and a copy of it from then"""
        self._first: Any = None

    def see(self, answer: Answer, space: gym.Space[Any], begins: bool, over: bool) -> None:
        """The next answer, which begins an episode or ends one, or neither."""
        seen = self.seen
        if begins:
            seen.episodes.append(EpisodeSeen())
            if len(seen.tracks) < TRACKS:
                seen.tracks.append([])
        episode = seen.episodes[-1]
        seen.answers += 1
        seen.steps += not begins
        episode.length += not begins
        when = "after reset" if begins else f"first at step {episode.length} of an episode"
        for fault in faults(answer, space, self._spec, over):
            self._faults.note(fault, when)
        self._look_for_alias(answer.obs)
        self._look_for_mask(answer, begins, over)
        self._look_at_reward(answer.reward)
        self._track(answer.obs, space)
        if over:
            episode.ended = True
            episode.terminated = true(answer.terminated)
            episode.truncated = true(answer.truncated)
            seen.told_final = seen.told_final or any(key in answer.info for key in FINAL_KEYS)

    def forget(self) -> None:
        """What comes next is another instance's."""
        self._before = None

    def _look_at_reward(self, reward: Any) -> None:
        try:
            size = abs(float(reward))
        except (TypeError, ValueError):
            return
        self.seen.rewarded = self.seen.rewarded or size != 0
        largest = max(self.seen.largest_reward, size if np.isfinite(size) else 0.0)
        self.seen.largest_reward = largest

    def _look_for_alias(self, obs: Any) -> None:
        seen = self.seen
        if self._before is not None and not alike(*self._before):
            seen.aliased = True
        self._before = (obs, copy.deepcopy(obs))
        if self._first is None:
            self._first = self._before[1]
        seen.moved = seen.moved or not alike(self._first, self._before[1])

    def _look_for_mask(self, answer: Answer, begins: bool, over: bool) -> None:
        seen, given = self.seen, ACTION_MASK in answer.info
        if begins and seen.fresh_masks is None:
            seen.fresh_masks = given
        elif not over and given != seen.fresh_masks and self._spec.choices:
            where = "reset()" if begins else "step()"
            seen.lost_mask = seen.lost_mask or f"the info of {where} has {'one' * given or 'none'}"

    def _track(self, obs: Any, space: gym.Space[Any]) -> None:
        if isinstance(space, gym.spaces.Box) and int(np.prod(space.shape)) > MOST_FEATURES:
            return  # of a picture neither the size of its numbers nor a clock in it is of interest
        numbers = flat_numbers(obs)
        if isinstance(space, gym.spaces.Box) and numbers.size:
            largest = float(np.abs(numbers).max())
            self.seen.largest = max(self.seen.largest, largest if np.isfinite(largest) else 0.0)
        episode = len(self.seen.episodes) - 1
        if episode < len(self.seen.tracks):
            track = self.seen.tracks[episode]
            if (len(track) + 1) * numbers.size <= MOST_NUMBERS // TRACKS:
                track.append(numbers)


class Walk:
    """Random play in one instance, until there are steps enough or the time is over."""

    def __init__(self, subject: Subject, spec: ActionSpec, notebook: Notebook) -> None:
        self._subject, self._spec, self._notebook = subject, spec, notebook
        self._faults = Faults()
        self._lookout = Lookout(spec, self._faults)
        self.seen = self._lookout.seen

    def go(self, seconds: float) -> Walked:
        until, failures = time.monotonic() + seconds, 0
        try:
            while failures < MOST_FAILURES:
                try:
                    instance = Instance(self._subject)
                    self._play(instance, until, failures)
                    instance.leave()
                    break
                except Broken as broken:
                    self._notebook.add(broken.finding)
                    failures += 1
        finally:
            self._notebook.add(*self._faults.findings(self.seen.answers))
        return self.seen

    def _play(self, instance: Instance, until: float, failures: int) -> None:
        """After a failure other episodes are played."""
        seed = self._subject.request.seed + failures
        seen, player = self.seen, Player(instance, self._spec, seed, actions=failures)
        self._lookout.forget()
        while seen.steps < STEPS and (time.monotonic() < until or seen.steps < LEAST_STEPS):
            begins, answer, over = player.next()
            self._lookout.see(answer, instance.env.observation_space, begins, over)
        seen.changed_action = seen.changed_action or player.changed_action


def about_returned(seen: Walked) -> Iterator[Finding]:
    """What only many answers together tell."""
    if seen.aliased:
        yield Finding(
            "note",
            "observation",
            "an observation that had been returned was changed by the next step: the same array "
            "is returned again and again",
            "Paceline copies it at once, but wrappers and other libraries that keep observations "
            "would learn from one that was not seen",
            "return self.state.copy(), or build a new array at every step",
        )
    if seen.lost_mask and seen.fresh_masks:
        yield Finding(
            "risky",
            "mask",
            f"the info of the first reset() has an {ACTION_MASK}, and {seen.lost_mask}",
            "where it is missing, everything is allowed",
            f"give an {ACTION_MASK} in every info, of reset() and of step()",
        )
    elif seen.lost_mask:
        yield Finding(
            "wrong",
            "mask",
            f"the info of the first reset() has no {ACTION_MASK}, and {seen.lost_mask}",
            "masks are found by the first reset; those that come later are not used",
            f"give an {ACTION_MASK} in the info of reset() too",
        )
    if seen.changed_action:
        yield Finding(
            "note",
            "actions",
            "step() changed the action that it was given",
            "Paceline gives it a copy, but a library that keeps actions would learn from others "
            "than it chose",
            "leave the action as it is: action = np.clip(action, low, high), without out=",
        )
    if not seen.moved and seen.steps >= LEAST_STEPS:
        yield Finding(
            "note",
            "observation",
            f"the observation was the same in all {seen.steps:,} steps",
            "a policy that always sees the same can only learn one answer",
            "see to it that observations are built anew from the state",
        )
    if not seen.rewarded and seen.steps >= LEAST_STEPS:
        yield Finding(
            "note",
            "reward",
            f"the reward was 0 in all {seen.steps:,} steps with random actions",
            "until something is rewarded, an on-policy learner has nothing to learn from",
            "reward progress on the way to the goal, or begin some episodes near it",
        )
