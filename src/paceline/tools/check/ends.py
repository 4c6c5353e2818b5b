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
from ..findings import Finding
from .environment import CheckedEnv, EnvFactory
from .episodes import Episode, PlayStats
from .player import Player, as_bool
from .rules import RULES

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


def about_ends(stats: PlayStats, limit: int | None, self_reset: bool) -> list[Finding]:
    """`limit` is the time limit that is known from outside."""
    ended = stats.ended
    if not ended:
        if not stats.steps:
            return []
        if limit is None:
            level: Any = "risky" if stats.steps >= MANY_STEPS else "note"
            return [RULES.found("ends-never", level, steps=stats.steps)]
        return [unseen(stats, limit)]
    findings = []
    if self_reset or stats.final_in_info:
        findings.append(RULES.found("ends-self-reset"))
    if len(ended) >= FEW:
        findings += _about_many(ended, stats.tracks)
    if not findings:
        lengths = [episode.length for episode in ended]
        terminated = sum(episode.terminated for episode in ended)
        counts = {"episodes": len(ended), "terminated": terminated}
        facts = {**counts, "truncated": len(ended) - terminated}
        extremes = {"shortest": min(lengths), "longest": max(lengths)}
        findings.append(RULES.found("ends-ok", **facts, **extremes))
    return findings


def unseen(stats: PlayStats, limit: int | None) -> Finding:
    return RULES.found("ends-unseen", steps=stats.steps, limit=limit or "unknown")


def _about_many(ended: list[Episode], tracks: list[list[Array]]) -> Iterator[Finding]:
    episodes, lengths = len(ended), [episode.length for episode in ended]
    if all(episode.terminated and episode.truncated for episode in ended):
        yield RULES.found("ends-both-flags", episodes=episodes)
    if set(lengths) == {1}:
        yield RULES.found("ends-first-step", episodes=episodes)
    elif lengths[0] > 1 and episodes > FEW and set(lengths[1:]) == {1}:
        yield RULES.found("ends-stay-ended", length=lengths[0], episodes=episodes - 1)
    length, count = time_limit(ended)
    if count:
        shown = length < SHORT or shows_time(tracks)
        code = "ends-horizon" if shown else "ends-time-limit"
        yield RULES.found(code, length=length, count=count, episodes=episodes)


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
    if len(whole) < 2 or len({track[0].size for track in whole}) != 1:
        return False
    common = min(len(track) for track in whole)
    stacked = np.stack([np.stack(track[:common]) for track in whole])
    same = (np.abs(stacked - stacked[:1]) <= 1e-6 * (1 + np.abs(stacked[:1]))).all((0, 1))
    steps = np.diff(stacked[0], axis=0)
    return bool((same & ((steps > 0).all(0) | (steps < 0).all(0))).any())


def resets_itself(factory: EnvFactory, spec: ActionSpec, seconds: float) -> bool:
    """Whether the step that ends an episode calls the environment's own reset()."""
    until, calls = time.monotonic() + seconds, 0
    env = CheckedEnv(factory)
    inner = env.env.unwrapped
    reset = inner.reset

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return reset(*args, **kwargs)

    with suppress(AttributeError):  # of a class with slots
        inner.reset = counted
    player = Player(env, spec, factory.request.seed, actions=2)
    found = False
    for _ in range(SEARCHED):
        calls = 0
        first, result, _ = player.next()
        if as_bool(result.terminated) or as_bool(result.truncated):
            found = calls > 0 and not first
            break
        if time.monotonic() > until:
            break
    env.discard()
    return found
