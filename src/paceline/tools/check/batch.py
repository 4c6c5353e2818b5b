"""Suites that step many environments as one: a few columns, examined as a run sees their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym

from ...envs.adapters import ObservationAdapter
from ...envs.spaces import ACTION_MASK
from ..findings import Finding, FindingLog
from . import episodes
from .ends import about_ends, unseen
from .environment import EnvFactory, StepResult
from .episodes import MIN_STEPS, PlayStats, ResultInspector, about_play
from .player import Played
from .request import CALLS
from .rules import RULES
from .speed import ColumnStepper
from .values import FaultCounter, brief_space

COLUMNS = 4
ROWS = 200
"""Played again to compare seeds."""
UNSEEN = ("observation-dtype",)
"""Faults that don't show in what has been stored already."""


def examine_batch(
    factory: EnvFactory, log: FindingLog, progress: Callable[[str], Any]
) -> dict[str, Any]:
    """Facts about the batch; findings go to the log."""
    factory.heartbeat.call = CALLS.index("step")
    progress("playing at random")
    counter = FaultCounter(*UNSEEN)
    with closing(ColumnStepper(factory, COLUMNS)) as stepper:
        columns = stepper.columns
        facts = {
            "observation": brief_space(columns.observation_space),
            "action": brief_space(columns.action_space),
        }
        stats, shows_next = _play(stepper, counter, factory.request.seconds)
    log.add(*counter.findings(stats.results), *about_play(stats))
    if not log.findings:
        log.add(RULES.found("observation-ok", results=stats.results))
    if not stats.ended:
        log.add(unseen(stats, None))
    elif shows_next:
        log.add(RULES.found("ends-shows-next"))
    else:
        log.add(*about_ends(stats, None, self_reset=False))
    progress("comparing seeds")
    log.add(_about_seeds(factory))
    return {**facts, "steps": stats.steps, "episodes": len(stats.ended)}


def _play(stepper: ColumnStepper, counter: FaultCounter, seconds: float) -> tuple[PlayStats, bool]:
    """Statistics of all columns, and whether ends show the next episode's first observation."""
    columns, out = stepper.columns, stepper.out
    inspectors = [ResultInspector(columns.act_spec, counter) for _ in range(columns.num_envs)]
    space = _without_mask(columns.observation_space)
    read = ObservationAdapter(columns.obs_spec).read
    until, rows, shows_next = time.monotonic() + seconds, 0, False
    max_rows = episodes.STEPS // columns.num_envs

    def observations() -> Iterator[tuple[int, Any]]:
        batched = read(out.obs[-1])
        return ((i, _column(batched, i)) for i in range(columns.num_envs))

    for i, obs in observations():
        inspectors[i].inspect(Played(True, StepResult(obs, {}), False), space)
    while rows < max_rows and (time.monotonic() < until or rows < MIN_STEPS):
        stepper.step()
        rows += 1
        for i, obs in observations():
            flags = bool(out.terminated[0, i]), bool(out.truncated[0, i])
            over, first = any(flags), bool(out.first[-1, i])
            shows_next = shows_next or (over and first)
            if out.valid[0, i]:
                result = StepResult(obs, {}, float(out.reward[0, i]), *flags)
                inspectors[i].inspect(Played(False, result, over), space)
            if first:
                inspectors[i].inspect(Played(True, StepResult(obs, {}), False), space)
    return _joined([inspector.stats for inspector in inspectors]), shows_next


def _column(batched: Any, i: int) -> Any:
    """The part of one column in a structure of arrays."""
    if isinstance(batched, dict):
        return {key: _column(part, i) for key, part in batched.items()}
    if isinstance(batched, tuple):
        return tuple(_column(part, i) for part in batched)
    return batched[i]


def _without_mask(space: gym.Space[Any]) -> gym.Space[Any]:
    """A mask of actions is stored apart."""
    if not isinstance(space, gym.spaces.Dict):
        return space
    return gym.spaces.Dict({key: part for key, part in space.items() if key != ACTION_MASK})


def _joined(stats: list[PlayStats]) -> PlayStats:
    return PlayStats(
        steps=sum(one.steps for one in stats),
        results=sum(one.results for one in stats),
        episodes=[episode for one in stats for episode in one.episodes],
        tracks=[track for one in stats for track in one.tracks],
        max_obs=max(one.max_obs for one in stats),
        max_reward=max(one.max_reward for one in stats),
        obs_varied=any(one.obs_varied for one in stats),
    )


def _about_seeds(factory: EnvFactory) -> Finding:
    seed = factory.request.seed
    first = _rows(factory, seed, ROWS, until=time.monotonic() + factory.request.seconds / 4)
    again, other = (_rows(factory, seed + more, len(first) - 1) for more in (0, 1))
    if first != again:
        row = next(n for n, (one, two) in enumerate(zip(first, again, strict=True)) if one != two)
        return RULES.found("seeding-batch", row=row)
    if first == other and len(first) > ROWS:
        return RULES.found("seeding-constant", seeds=2, results=ROWS)
    others = ", and another seed gives others" if first != other else ""
    return RULES.found("seeding-ok", results=len(first) - 1, others=others)


def _rows(factory: EnvFactory, seed: int, rows: int, until: float | None = None) -> list[bytes]:
    """The bytes of so many rows, or of those in the time, with the same actions for any seed."""
    with closing(ColumnStepper(factory, COLUMNS, seed)) as stepper:
        out, split = stepper.out, stepper.columns.obs_spec.split
        found: list[bytes] = []
        while True:
            flags = (out.reward, out.terminated, out.truncated, out.valid) if found else ()
            parts = (*split(out.obs[-1]).values(), *flags)
            found.append(b"".join(part.tobytes() for part in parts))
            late = until is not None and time.monotonic() > until
            if len(found) > (MIN_STEPS if late else rows):
                return found
            stepper.step()
