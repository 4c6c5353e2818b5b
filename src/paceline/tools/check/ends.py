"""How episodes end: by themselves, by a time limit, at all; and what a step after that does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...rollout import Array
from .episodes import EpisodeSeen, Walked
from .finding import Finding

FEW = 4
"""Episodes from which nothing is concluded."""
MANY_STEPS = 1_000
"""Without any end, that are suspicious."""
SHORT = 20
"""Steps of a task that may well have a fixed number of them."""
NEAR = 10
"""Lengths just below the longest, with which it is compared."""
PILE, PEAK = 5, 2
"""Times as many episodes as such a length has on average, and has at most, that are no chance."""

BOOTSTRAP = (
    "after terminated the future counts as worth nothing, so that states near the limit are "
    "undervalued, which the policy can't see coming"
)


def about_ends(seen: Walked, limit: int | None, resets_itself: bool) -> Iterator[Finding]:
    """Findings, or one that says how episodes went; `limit` is a time limit known from outside."""
    ended = seen.ended
    lengths = [episode.length for episode in ended]
    found = [
        *_without_end(seen, limit),
        *([_resetting()] if resets_itself or seen.told_final else []),
        *_as_one(ended),
        *_limited(ended, seen.tracks),
    ]
    if ended and set(lengths) == {1} and len(ended) >= FEW:
        found.append(_all_at_once(len(ended)))
    elif lengths and lengths[0] > 1 and len(ended) > FEW and set(lengths[1:]) == {1}:
        found.append(_never_again(lengths))
    yield from found
    if ended and not found:
        yield Finding("ok", "ends", _told(ended))
    elif limit is not None and not found:
        yield unseen(seen, f"; the time limit is {limit:,}")


def unseen(seen: Walked, more: str = "") -> Finding:
    """Nothing is known of ends where there was none."""
    return Finding(
        "note",
        "ends",
        f"no episode ended in {seen.steps:,} random steps, so that ends were not checked{more}",
        "a time limit reported as terminated, or a reset within the last step, would not be seen",
        "look at it for longer, with --seconds 20 or more, or at shorter episodes, with "
        "--env.time-limit",
    )


def _told(ended: list[EpisodeSeen]) -> str:
    lengths = [episode.length for episode in ended]
    terminated = sum(episode.terminated for episode in ended)
    spread = (
        f"{min(lengths):,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    )
    return (
        f"{len(ended):,} episode{'s' * (len(ended) > 1)} of {spread} steps: {terminated:,} "
        f"terminated, {len(ended) - terminated:,} cut off"
    )


def _without_end(seen: Walked, limit: int | None) -> Iterator[Finding]:
    if seen.ended or limit is not None or not seen.steps:
        return
    yield Finding(
        "risky" if seen.steps >= MANY_STEPS else "note",
        "ends",
        f"no episode ended in {seen.steps:,} random steps, and there is no time limit",
        "a run would see one endless episode: no return to report, and few states near the start",
        "give a limit with --env.time-limit 1000, or max_episode_steps=1000 where it is registered",
    )


def _resetting() -> Finding:
    return Finding(
        "wrong",
        "ends",
        "the step that ends an episode also begins the next one: the environment resets itself",
        "the observation returned is the first of the next episode, and a cut-off episode is "
        "valued by it",
        "return the last observation of the episode, and leave resetting to the caller",
    )


def _as_one(ended: list[EpisodeSeen]) -> Iterator[Finding]:
    if len(ended) >= FEW and all(episode.terminated and episode.truncated for episode in ended):
        yield Finding(
            "risky",
            "ends",
            f"terminated and truncated were both true at the end of all {len(ended)} episodes",
            "terminated wins, so that an episode which was only cut off counts as worth nothing "
            "from there on",
            "set terminated where the task is over, truncated where only time has run out",
        )


def _limited(ended: list[EpisodeSeen], tracks: list[list[Array]]) -> Iterator[Finding]:
    """Ends that pile up at the longest length of all are those of a clock."""
    if len(ended) < FEW or all(episode.truncated for episode in ended):
        return
    terminated = Counter(episode.length for episode in ended if episode.terminated)
    longest = max(episode.length for episode in ended)
    piled = terminated[longest]
    before = [terminated[length] for length in range(max(1, longest - NEAR), longest)]
    if longest == 1 or piled < max(FEW, PILE * sum(before) / len(before), PEAK * max(before)):
        return
    everyone = "all" if piled == len(ended) else f"{piled} of"
    said = f"{everyone} {len(ended)} episodes ended after exactly {longest:,} steps, by terminated"
    if longest < SHORT or shows_time(tracks):
        why = "that is right if the task itself is over then, and wrong if only time has run out"
        fix = (
            "if it is a time limit, return it as truncated; a task whose own horizon it is, and "
            "whose observation tells the time that is left, is right as it is"
        )
        yield Finding("note", "ends", said, why, fix)
    else:
        fix = (
            f"return it as truncated, or leave it out and write --env.time-limit {longest}; if it "
            "is the task's own horizon, terminated is right, but let the observation tell the "
            "time that is left"
        )
        yield Finding("risky", "ends", f"{said}, as if by a time limit", BOOTSTRAP, fix)


def shows_time(tracks: list[list[Array]]) -> bool:
    """Whether a number of the observation goes one way, the same way in every episode."""
    whole = [track for track in tracks if len(track) > 2]
    if len(whole) < 2 or len({track[0].size for track in whole}) != 1:
        return False
    common = min(len(track) for track in whole)
    stacked = np.stack([np.stack(track[:common]) for track in whole])
    alike = (np.abs(stacked - stacked[:1]) <= 1e-6 * (1 + np.abs(stacked[:1]))).all((0, 1))
    steps = np.diff(stacked[0], axis=0)
    return bool((alike & ((steps > 0).all(0) | (steps < 0).all(0))).any())


def _all_at_once(number: int) -> Finding:
    return Finding(
        "note",
        "ends",
        f"all {number} episodes ended with their first step",
        "that is right for a bandit; in any other task nothing can be learnt about what follows",
        "see what makes the first step end the episode",
    )


def _never_again(lengths: list[int]) -> Finding:
    return Finding(
        "wrong",
        "ends",
        f"the first episode had {lengths[0]:,} steps, and all {len(lengths) - 1} after it only one",
        "nothing but the first step of an episode would ever be learnt",
        "set everything back in reset(), also what says that the episode is over",
    )
