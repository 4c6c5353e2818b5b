"""How episodes end: by themselves, by a time limit, or not at all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ...envs.spaces import ActionSpec
from ...rollout import Array
from ..findings import Finding, Level
from .environment import CheckedEnv, EnvFactory
from .episodes import Episode, PlayStats
from .player import Player
from .rules import found

FEW = 4
"""Fewer episodes prove nothing."""
MANY_STEPS = 1_000
"""Without any end, they are suspicious."""
SHORT = 20
"""Steps of a task that may well have a fixed number of them."""
NEIGHBORS = 10
"""Lengths just below the longest, with which it is compared."""
MEAN_RATIO, MAX_RATIO = 5, 2
"""Times as many episodes as a neighbor has on average, and at most, that are not by chance."""
SEARCHED = 2_000
"""Steps within which an end has to come."""


def about_ends(
    stats: PlayStats, factory: EnvFactory, spec: ActionSpec, limit: int | None, seconds: float
) -> Iterator[Finding]:
    """`limit` is the time limit that is known from outside."""
    ended = stats.ended
    if not ended and limit is None and factory.single:
        level: Level = "risky" if stats.steps >= MANY_STEPS else "note"
        yield found("ends-never", level, steps=stats.steps)
    elif not ended:
        yield found("ends-unseen", steps=stats.steps, limit=limit or "unknown")
    elif stats.shows_next:
        yield found("ends-shows-next")
    elif findings := [*_about_resets(stats, factory, spec, seconds), *_about_lengths(ended)]:
        yield from findings
    else:
        lengths = [episode.length for episode in ended]
        terminated = sum(episode.terminated for episode in ended)
        yield found(
            "ends-ok",
            episodes=len(ended),
            terminated=terminated,
            truncated=len(ended) - terminated,
            shortest=min(lengths),
            longest=max(lengths),
        )


def _about_resets(
    stats: PlayStats, factory: EnvFactory, spec: ActionSpec, seconds: float
) -> Iterator[Finding]:
    by_itself = any(episode.terminated or episode.truncated for episode in stats.ended)
    looked_at = by_itself and factory.single
    if stats.final_in_info or (looked_at and resets_itself(factory, spec, seconds)):
        yield found("ends-self-reset")


def _about_lengths(ended: list[Episode]) -> Iterator[Finding]:
    episodes, lengths = len(ended), [episode.length for episode in ended]
    if episodes < FEW:
        return
    if all(episode.terminated and episode.truncated for episode in ended):
        yield found("ends-both-flags", episodes=episodes)
    if set(lengths) == {1}:
        yield found("ends-first-step", episodes=episodes)
    elif lengths[0] > 1 and episodes > FEW and set(lengths[1:]) == {1}:
        yield found("ends-stay-ended", length=lengths[0], episodes=episodes - 1)
    length, count = time_limit(ended)
    if count:
        shown = length < SHORT or shows_time([episode.track for episode in ended])
        code = "ends-horizon" if shown else "ends-time-limit"
        yield found(code, length=length, count=count, episodes=episodes)


def time_limit(ended: list[Episode]) -> tuple[int, int]:
    """The longest length, and how many episodes terminated there if that is not by chance."""
    terminated = Counter(episode.length for episode in ended if episode.terminated)
    longest = max(episode.length for episode in ended)
    if longest == 1 or all(episode.truncated for episode in ended):
        return longest, 0
    count = terminated[longest]
    near = [terminated[length] for length in range(max(1, longest - NEIGHBORS), longest)]
    least = max(FEW, MEAN_RATIO * sum(near) / len(near), MAX_RATIO * max(near))
    return longest, count if count >= least else 0


def shows_time(tracks: list[list[Array]]) -> bool:
    """Whether a number of the observation only rises or falls, the same in every episode."""
    whole = [track for track in tracks if len(track) > 2]
    sizes = {numbers.size for track in whole for numbers in track}
    if len(whole) < 2 or len(sizes) != 1:
        return False
    common = min(len(track) for track in whole)
    stacked = np.stack([np.stack(track[:common]) for track in whole])
    same = (np.abs(stacked - stacked[:1]) <= 1e-6 * (1 + np.abs(stacked[:1]))).all((0, 1))
    steps = np.diff(stacked[0], axis=0)
    return bool((same & ((steps > 0).all(0) | (steps < 0).all(0))).any())


def resets_itself(factory: EnvFactory, spec: ActionSpec, seconds: float) -> bool:
    """Whether the step that ends an episode calls the environment's own reset()."""
    until, calls = time.monotonic() + seconds, 0
    with CheckedEnv(factory) as env:
        inner = env.env.unwrapped
        reset = inner.reset

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return reset(*args, **kwargs)

        with suppress(AttributeError):  # of a class with slots
            inner.reset = counted
        player = Player(env, spec, factory.request.seed, actions=2)
        for _ in range(SEARCHED):
            calls = 0
            if player.next().ends:
                return calls > 0
            if time.monotonic() > until:
                break
    return False
