"""Seeds: the same one gives the same episodes, whatever happened before and beside them."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config.text import listed
from ...envs.spaces import ActionSpec
from ..findings import Finding
from .compare import Record, drift_apart, first_difference
from .environment import CheckedEnv, EnvFactory
from .player import Player
from .rules import RULES

RECORDS, MIN_RECORDS = 200, 6
"""Results of a history."""
USED = 4
"""Results after which an instance counts as used."""
ROUNDING, SETTLING = 1e-5, 0.01
"""Relative differences: of another order of computation, and of a solver that starts elsewhere."""


@dataclass(frozen=True)
class Reference:
    """A history to compare others with, and the shared generators that making it has touched."""

    records: list[Record]
    in_reset: list[str]
    in_step: list[str]

    @property
    def generators(self) -> str:
        touched = {*self.in_reset, *self.in_step}
        return listed(sorted(touched)) if touched else ""


def make_reference(factory: EnvFactory, spec: ActionSpec, seconds: float) -> Reference:
    """Played in a fresh instance, within the time that there is."""
    env, until = CheckedEnv(factory), time.monotonic() + seconds
    player = Player(env, spec, factory.request.seed)
    before = generator_states()
    records = [player.record()]
    after_reset = generator_states()
    while len(records) < RECORDS and (time.monotonic() < until or len(records) < MIN_RECORDS):
        records.append(player.record())
    env.discard()
    in_reset = touched_generators(before, after_reset)
    return Reference(records, in_reset, touched_generators(after_reset, generator_states()))


def about_seeding(factory: EnvFactory, spec: ActionSpec, known: Reference) -> Iterator[Finding]:
    """The reference against other instances, seeds and actions."""
    seed, number = factory.request.seed, len(known.records)
    env = CheckedEnv(factory)

    def play(of_seed: int, actions: int = 0, results: int = number) -> list[Record]:
        return Player(env, spec, of_seed, actions).records(results)

    again = play(seed)
    if difference := first_difference(known.records, again):
        facts = {"seed": seed, "difference": difference}
        if drift_apart(known.records, again, ROUNDING):
            yield RULES.found("seeding-inexact", **facts)
        else:
            yield RULES.found("seeding-differs", **facts, cause=_cause(known, env, seed))
        env.discard()
        return
    if known.generators:
        call = "reset" if known.in_reset else "step"
        yield RULES.found("seeding-shared", call=call, generators=known.generators)
    play(seed + 1, results=USED)
    later = play(seed)
    carried = first_difference(known.records, later)
    others = [play(seed + 2)]
    if carried:
        drifts = drift_apart(known.records, later, SETTLING)
        code = "seeding-drifts" if drifts else "seeding-carried-over"
        yield RULES.found(code, seed=seed, difference=carried)
    else:
        beside, other = _side_by_side(factory, spec, number)
        others.append(other)
        if difference := first_difference(known.records, beside):
            yield RULES.found("copies-interfere", difference=difference)
    if not any(first_difference(known.records, other) for other in others):
        yield RULES.found("seeding-constant", seeds=len(others) + 1, results=number)
    elif not carried:
        yield RULES.found("seeding-ok", results=number, others=", and other seeds give others")
    if first_difference(known.records, play(seed, actions=1)) is None:
        yield RULES.found("action-ignored", results=number)
    env.discard()


def _side_by_side(
    factory: EnvFactory, spec: ActionSpec, number: int
) -> tuple[list[Record], list[Record]]:
    """The reference's seed and the next one, in two instances stepped in turns."""
    envs = CheckedEnv(factory), CheckedEnv(factory)
    players = [Player(env, spec, factory.request.seed + i) for i, env in enumerate(envs)]
    pairs = [(players[0].record(), players[1].record()) for _ in range(number)]
    for env in envs:
        env.discard()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _cause(known: Reference, env: CheckedEnv, seed: int) -> str:
    """Why a second instance may have given another episode."""
    if known.generators:
        return f"it draws from {known.generators}, which no seed of an episode reaches"
    env.reset(seed)
    if getattr(env.env.unwrapped, "_np_random_seed", seed) != seed:
        return "reset() does not call super().reset(seed=seed), which seeds self.np_random"
    return "it draws from a generator without a seed, a clock, or something all instances share"


GENERATORS = {
    "random": "Python's random",
    "numpy": "numpy's np.random",
    "torch": "torch's global generator",
}
"""Random generators that everything in a process shares."""


def generator_states() -> dict[str, Any]:
    """What differs after one of them was used or seeded."""
    states: dict[str, Any] = {"random": random.getstate()}
    legacy: Any = np.random.get_state(legacy=False)
    states["numpy"] = (legacy["state"]["key"].tobytes(), legacy["state"]["pos"], legacy["gauss"])
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def touched_generators(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of those that have changed."""
    return [GENERATORS[name] for name in before if before[name] != after[name]]
