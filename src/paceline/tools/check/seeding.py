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
from ...envs.spaces import ActionSpec, action_spec
from ..findings import Finding
from .compare import StepResult, digest, drift_apart, first_difference
from .environment import CheckedEnv, EnvFactory
from .player import Player
from .rules import found

RESULTS, MIN_RESULTS = 200, 6
"""Results of a history."""
USED = 4
"""Results after which an instance counts as used."""
ROUNDING, SETTLING = 1e-5, 0.01
"""Relative differences: of another order of computation, and of a solver that starts elsewhere."""


@dataclass(frozen=True)
class Reference:
    """A history to compare others with, and the shared generators that making it has touched."""

    results: list[StepResult]
    call: str
    """the first that touched one: reset or step"""
    generators: str
    """their names; empty if none was touched"""


def make_reference(factory: EnvFactory, spec: ActionSpec, seconds: float) -> Reference:
    """Played in a fresh instance, within the time that there is."""
    with CheckedEnv(factory) as env:
        until = time.monotonic() + seconds
        player = Player(env, spec, factory.request.seed)
        before = generator_states()
        results = [player.next().copied()]
        after_reset = generator_states()
        while len(results) < RESULTS and (time.monotonic() < until or len(results) < MIN_RESULTS):
            results.append(player.next().copied())
    touched = touched_generators(before, generator_states())
    in_reset = bool(touched_generators(before, after_reset))
    return Reference(results, "reset" if in_reset else "step", listed(touched) if touched else "")


def replay(factory: EnvFactory) -> str:
    """Digest of the reference, which another process has made, when it is played here."""
    with CheckedEnv(factory) as env:
        player = Player(env, action_spec(env.env.action_space), factory.request.seed)
        return digest(player.results(factory.request.replay))


def about_seeding(factory: EnvFactory, spec: ActionSpec, known: Reference) -> Iterator[Finding]:
    """The reference against other instances, seeds and actions."""
    seed, results = factory.request.seed, known.results
    with CheckedEnv(factory) as env:

        def play(of_seed: int, actions: int = 0, number: int = len(results)) -> list[StepResult]:
            return Player(env, spec, of_seed, actions).results(number)

        again = play(seed)
        if difference := first_difference(results, again):
            facts = {"seed": seed, "difference": difference}
            if drift_apart(results, again, ROUNDING):
                yield found("seeding-inexact", **facts)
            elif factory.single:
                yield found("seeding-differs", **facts, cause=_cause(known, env, seed))
            else:
                yield found("seeding-batch", **facts)
            return
        if known.generators:
            yield found("seeding-shared", call=known.call, generators=known.generators)
        play(seed + 1, number=USED)
        later, others = play(seed), [play(seed + 2)]
        if carried := first_difference(results, later):
            drifts = drift_apart(results, later, SETTLING)
            code = "seeding-drifts" if drifts else "seeding-carried-over"
            yield found(code, seed=seed, difference=carried)
        else:
            beside, other = _side_by_side(factory, spec, len(results))
            others.append(other)
            if difference := first_difference(results, beside):
                yield found("copies-interfere", difference=difference)
        if not any(first_difference(results, other) for other in others):
            yield found("seeding-constant", seeds=len(others) + 1, results=len(results))
        elif not carried:
            yield found("seeding-ok", results=len(results))
        if first_difference(results, play(seed, actions=1)) is None:
            yield found("action-ignored", results=len(results))


def _side_by_side(factory: EnvFactory, spec: ActionSpec, number: int) -> list[list[StepResult]]:
    """The reference's seed and the next one, in two instances stepped in turns."""
    with CheckedEnv(factory) as one, CheckedEnv(factory) as other:
        players = [
            Player(env, spec, factory.request.seed + i) for i, env in enumerate((one, other))
        ]
        turns = [[player.next().copied() for player in players] for _ in range(number)]
    return [[turn[i] for turn in turns] for i in range(2)]


def _cause(known: Reference, env: CheckedEnv, seed: int) -> str:
    """Why a second instance may have given another episode."""
    if known.generators:
        return f"it draws from {known.generators}, which no seed of an episode reaches"
    env.reset(seed)
    if getattr(env.env.unwrapped, "_np_random_seed", seed) != seed:
        return "reset() does not call super().reset(seed=seed), which seeds self.np_random"
    return "it draws from a generator without a seed, a clock, or something all instances share"


def generator_states() -> dict[str, Any]:
    """Of random generators that everything in a process shares: what differs after use."""
    legacy: Any = np.random.get_state(legacy=False)
    numpy_state = legacy["state"]["key"].tobytes(), legacy["state"]["pos"], legacy["gauss"]
    states = {"Python's random": random.getstate(), "numpy's np.random": numpy_state}
    if torch := sys.modules.get("torch"):
        states["torch's global generator"] = torch.get_rng_state().numpy().tobytes()
    return states


def touched_generators(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of those that have changed."""
    return [name for name in before if before[name] != after[name]]
