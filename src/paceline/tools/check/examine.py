"""Every check of one environment in turn, each within its time, on instances of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from ...config.text import listed
from ...envs.spaces import ActionSpec, action_spec, observation_spec
from ...errors import BadInput
from ..findings import Finding, FindingLog
from .compare import digest, flat_numbers
from .ends import about_ends
from .environment import CallFailed, CheckedEnv, EnvFactory
from .episodes import PlayStats, play_randomly
from .player import Player, action_mask
from .rules import found
from .seeding import about_seeding, make_reference
from .speed import Measured
from .values import brief_space

BLOCKING = ("make", "reset", "step", "observation", "reward", "mask")
"""Topics of faults with which steps fail, so that nothing can be measured."""
LARGE_RANGE = 1e6
STEPS_EACH = 5
"""Steps with one action at its bound."""


@dataclass
class Outcome:
    """What an examination or a measurement has led to, beside findings."""

    facts: dict[str, Any] = field(default_factory=dict)
    """spaces, time limit, and how much was played"""
    measurable: bool = False
    results: int = 0
    """of the reference that another process should see too; 0 where not even this one did"""
    digest: str = ""
    """of those results"""
    measured: Measured | None = None


def examine(
    factory: EnvFactory, log: FindingLog, progress: Callable[[str], Any] = lambda _: None
) -> Outcome:
    """Findings go to the log as they are made."""
    outcome, seconds = Outcome(), factory.request.seconds
    progress("making it")
    try:
        spec = _try_once(factory, log, outcome)
    except CallFailed as failed:
        log.add(failed.finding)
        return outcome
    progress("playing at random")
    stats = play_randomly(factory, spec, log, seconds)
    outcome.facts |= {"steps": stats.steps, "episodes": len(stats.ended)}
    if not log.findings:
        log.add(found("observation-ok", results=stats.results))
    if not factory.single:
        log.add(found("make-batch"))
    log.add(*about_bounds(spec))
    checks: dict[str, Callable[[], None]] = {
        "comparing seeds": lambda: _compare_seeds(factory, spec, log, outcome),
        "trying actions at their bounds": lambda: try_bounds(factory, spec, seconds / 4, log),
        "looking at ends": lambda: _look_at_ends(factory, spec, log, stats, outcome),
    }
    for name, check in checks.items():
        progress(name)
        try:
            check()
        except CallFailed as failed:
            log.add(failed.finding)
    left = psutil.Process().children(recursive=True)  # everything has been closed by now
    if left and not log.has("risky", "step", "reset", "close"):
        names = sorted({process.name() for process in left})
        log.add(found("close-processes", count=len(left), names=listed(names)))
    outcome.measurable = not log.has("wrong", *BLOCKING)
    return outcome


def _try_once(factory: EnvFactory, log: FindingLog, outcome: Outcome) -> ActionSpec:
    """The spaces, one reset, one step and close(); what fails here makes the rest useless."""
    checked, seed = CheckedEnv(factory), factory.request.seed
    env = checked.env
    spaces = {n: getattr(env, n, None) for n in ("observation_space", "action_space")}
    outcome.facts |= {
        "observation": brief_space(spaces["observation_space"]),
        "action": brief_space(spaces["action_space"]),
        "time_limit": checked.time_limit,
    }
    for name, space in spaces.items():
        if space is None:
            raise CallFailed(found("space-missing", name=name))
    try:
        spec = action_spec(env.action_space)
        observation_spec(env.observation_space, spec, checked.reset(seed).info)
    except BadInput as error:
        raise CallFailed(found("space-unusable", error=str(error))) from error
    Player(checked, spec, seed).results(2)
    try:
        checked.close()
    except CallFailed as failed:
        log.add(failed.finding)
    return spec


def _compare_seeds(
    factory: EnvFactory, spec: ActionSpec, log: FindingLog, outcome: Outcome
) -> None:
    reference = make_reference(factory, spec, factory.request.seconds / 4)
    for finding in about_seeding(factory, spec, reference):  # which may fail in between
        log.add(finding)
    codes = {finding.code for finding in log.findings}
    if "seeding-inexact" not in codes and not log.has("risky", "seeding", "copies"):
        outcome.results, outcome.digest = len(reference.results), digest(reference.results)


def _look_at_ends(
    factory: EnvFactory, spec: ActionSpec, log: FindingLog, stats: PlayStats, outcome: Outcome
) -> None:
    if not stats.ended and log.has("risky", "step", "reset"):
        return  # it never got that far
    limit, seconds = outcome.facts["time_limit"], factory.request.seconds / 4
    log.add(*about_ends(stats, factory, spec, limit, seconds))


def about_bounds(spec: ActionSpec) -> Iterator[Finding]:
    """What the bounds of a Box do to a policy, whose −1 … 1 is scaled to them."""
    low, high = np.array(spec.low), np.array(spec.high)  # empty where it is no Box
    finite = np.isfinite(low) & np.isfinite(high)
    if not finite.all():
        yield found("action-unbounded", count=int((~finite).sum()), size=spec.size)
    width = float((high - low)[finite].max(initial=0.0))
    if width > LARGE_RANGE:
        yield found("action-range", width=width)
    if (low >= high).any():
        entry = int(np.argmax(low >= high))
        yield found("action-empty-range", entry=entry, low=float(low[entry]))


def try_bounds(factory: EnvFactory, spec: ActionSpec, seconds: float, log: FindingLog) -> None:
    """A few steps with each extreme action; after a failure in a new instance."""
    until = time.monotonic() + seconds
    env = CheckedEnv(factory)
    extremes = Player(env, spec, factory.request.seed).extreme_actions()
    for number, (name, action) in enumerate(extremes.items()):
        if time.monotonic() > until and number > 1:
            break
        try:
            result = env.reset(factory.request.seed + number)
            for _ in range(STEPS_EACH):
                mask = action_mask(result, spec)
                if mask is not None and not mask.all():
                    break  # it may be forbidden here; random play tries it where it is not
                result = env.step(action)
                if not np.isfinite(flat_numbers((result.obs, result.reward))).all():
                    log.add(found("action-nan", name=name, step=env.age, place=name))
                    break
                if result.ends:
                    break
        except CallFailed as failed:
            if not log.has("risky", "step", "reset"):
                log.add(found("action-raises", name=name, text=failed.finding.text, place=name))
            env = CheckedEnv(factory)
    env.discard()
