"""Bursts: short real trainings, and what they say about the constants of the model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..config import Config
from ..envs.maker import World
from ..rollout import Array, Rollout
from .launch import train
from .measure import Lines, measured, read_lines
from .model import (
    WORST,
    Constants,
    Phases,
    Shape,
    agreeing,
    crowding,
    learning,
    predicted,
    sampling,
)

WARMUP = 0.15
"""Share of a burst's time that is not counted."""
LONGEST_ROLLOUT = 32
"""Steps after which actions are drawn anew, when environments are stepped alone."""


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """Environments stepped alone, with random actions: seconds of one step and of one reset."""

    step: float
    reset: float

    def of(self, steps: float, episodes: float) -> float:
        """Seconds that these take in one process."""
        return steps * self.step + episodes * self.reset


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What one short training measured; times are those of an iteration."""

    shape: Shape
    fps: float
    t_iter: float
    t_rollout: float
    """waiting for workers included"""
    t_learn: float
    t_sync: float = 0.0
    t_other: float = 0.0
    steps: float
    """of an iteration, over all ranks"""
    episodes: float = 0.0
    """of an iteration"""
    memory_mb: float = 0.0
    wall: float = 0.0
    """seconds from its start to its end"""


def burst(options: Mapping[str, str], shape: Shape, scratch: Path) -> Burst:
    """Train with these options, to the end of their budget."""
    began = time.monotonic()
    (folder,) = train(options, 1, scratch)
    return replace(found_in(read_lines(folder), shape), wall=time.monotonic() - began)


def found_in(lines: Lines, shape: Shape) -> Burst:
    """What the metrics of a training say, its first moments left out."""
    early = [line for line in lines[:-1] if line["time"] <= WARMUP * lines[-1]["time"]]
    begin = early[-1] if early else lines[0] if len(lines) > 1 else {"iter": 0}
    found = measured(lines, begin["iter"])
    # Learners that wait for nobody make several iterations at a time.
    each = found["t_iter"] * (shape.learners if shape.way == "apart" else 1)
    times = {name: found[f"share_{name}"] * each for name in ("rollout", "wait", "learn", "sync")}
    kept = [line for line in lines if line["iter"] > begin["iter"]]
    return Burst(
        shape=shape,
        fps=found["fps"],
        t_iter=each,
        t_rollout=times["rollout"] + times["wait"],
        t_learn=times["learn"],
        t_sync=times["sync"],
        t_other=max(0.0, each - sum(times.values())),
        steps=found["steps"] / found["iters"],
        episodes=sum(line["episodes"] for line in kept) / found["iters"],
        memory_mb=found["memory_mb"],
    )


def stepped_alone(world: World, config: Config, num_envs: int, seconds: float) -> Stepping:
    """Step environments in this process for a while, with actions that are valid but random."""
    draw = np.random.default_rng(config.seed)
    plain, resetting = [0.0, 0], [0.0, 0.0, 0]
    with closing(world.columns(num_envs, config.seed)) as columns:
        out = Rollout.allocate(
            LONGEST_ROLLOUT, num_envs, world.obs_spec.stored, world.act_spec.stored
        )
        columns.reset(out.obs[-1])
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not plain[1]:
            out.turn()
            for t in range(out.steps):
                resets = int(np.sum(columns.ended))
                actions = columns.adapt(_random_actions(draw, world, out.obs[t]))
                began = time.perf_counter()
                columns.step(t, actions, out)
                took = time.perf_counter() - began
                if resets:
                    resetting = [resetting[0] + took, resetting[1] + resets, resetting[2] + 1]
                else:
                    plain = [plain[0] + took, plain[1] + 1]
    step = plain[0] / plain[1] / num_envs
    if not resetting[2]:
        return Stepping(step=step, reset=step)
    others = resetting[2] * num_envs - resetting[1]
    return Stepping(step=step, reset=max(0.0, resetting[0] - others * step) / resetting[1])


def _random_actions(draw: np.random.Generator, world: World, obs: Array) -> Array:
    """[B, ...] as a policy gives them, and none that a mask forbids."""
    act, columns = world.act_spec, len(obs)
    if act.kind == "box":
        return draw.uniform(-1, 1, (columns, act.size)).astype(np.float32)
    scores = draw.random((columns, sum(act.choices)))
    if world.obs_spec.mask:
        scores *= world.obs_spec.split(obs)["mask"]
    ends = np.cumsum(act.choices)[:-1]
    chosen = np.stack([part.argmax(1) for part in np.split(scores, ends, 1)], 1)
    return chosen if act.kind == "multi" else chosen[:, 0]


def fitted(
    stepping: Stepping,
    base: Burst,
    other: Burst,
    epochs: int,
    cpus: int,
    workers: Burst | None = None,
    ranks: Burst | None = None,
    threads: Burst | None = None,
) -> Constants:
    """The constants with which the model says what these bursts measured.

    `base` and `other` are of one learner and no workers, with different numbers of environments
    and different minibatches; the rest differ from them in what they are named after.
    """
    one, two = base.shape, other.shape
    call, each = _line(
        (one.envs, base.t_rollout / one.steps), (two.envs, other.t_rollout / two.steps)
    )
    step, row = _line(
        (one.batch, base.t_learn / (epochs * one.minibatches)),
        (two.batch, other.t_learn / (epochs * two.minibatches)),
    )
    env = min(each, stepping.of(base.steps, base.episodes) / one.rows)
    known = Constants(
        env=env,
        call=call,
        act=each - env,
        step=step,
        row=row,
        other=base.t_other,
        valid=min(1.0, base.steps / one.rows),
        epochs=epochs,
    )
    if threads is not None:
        known = replace(known, threaded=_threaded(threads, known))
    if ranks is not None:
        known = _with_ranks(known, ranks, cpus)
    return known if workers is None else _with_workers(known, workers, cpus)


def _line(one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """Intercept and slope, neither of them negative, through the first point."""
    (x, y), (other, height) = one, two
    steepest = y / x
    slope = steepest if other == x else min(max(0.0, (height - y) / (other - x)), steepest)
    return y - slope * x, slope


def _threaded(burst: Burst, known: Constants) -> float:
    """Share of the learning that threads divide, by how much faster they made it."""
    alone = learning(replace(burst.shape, threads=1), known)
    share = (1.0 - burst.t_learn / alone) / (1.0 - 1.0 / burst.shape.threads)
    return min(1.0, max(0.0, share))


def _with_ranks(known: Constants, burst: Burst, cpus: int) -> Constants:
    """How much slower processes are beside each other, and what it costs them to agree."""
    shape = burst.shape
    known = replace(known, together=_together(burst, known, cpus))
    alone = crowding(shape.learners, cpus, known.together) * learning(shape, known)
    unit = agreeing(shape, replace(known, sync=1.0))
    return replace(known, sync=max(0.0, burst.t_sync + burst.t_learn - alone) / unit)


def _together(burst: Burst, known: Constants, cpus: int) -> float:
    """`Constants.together`, if nothing else made the rollout longer than that of one process."""
    busy = min(1.0, (burst.shape.samplers - 1) / max(1, cpus - 1))
    taken = crowding(burst.shape.samplers, cpus, 1.0) * sum(sampling(burst.shape, known))
    slower = burst.t_rollout / taken - 1.0
    return 1.0 + min(WORST - 1.0, max(0.0, slower) / busy) if busy else 1.0


def _with_workers(known: Constants, burst: Burst, cpus: int) -> Constants:
    """What waking them costs: all that they took longer than the model expects without it."""
    expected = predicted(burst.shape, known, cpus)
    spent, without = burst.t_rollout, expected.env + expected.inference
    if burst.shape.way == "stream":
        spent, without = burst.t_iter, expected.seconds
    return replace(known, wake=max(0.0, spent - without) / burst.shape.workers)


def phases_of(burst: Burst, known: Constants, stepping: Stepping, cpus: int) -> Phases:
    """Where the time of a measured iteration went: its rollout, split as the model has it."""
    shape = burst.shape
    share = 1.0 if shape.way == "apart" else 1.0 / shape.samplers
    env = share * stepping.of(burst.steps, burst.episodes)
    inference = sampling(shape, known)[1]
    slow = 1.0 if shape.way == "stream" else crowding(shape.samplers, cpus, known.together)
    env, inference, rest = slow * env, slow * inference, 0.0
    if shape.workers and shape.way != "apart":
        rest = max(0.0, burst.t_rollout - env - inference)
    if shape.workers and shape.way == "stream":
        rest = 0.0  # a learner that waits does so for environments and policies
    factor = (burst.t_rollout - rest) / ((env + inference) or 1.0)
    return Phases(
        env=factor * env,
        inference=factor * inference,
        update=burst.t_learn,
        sync=burst.t_sync,
        waiting=rest,
        other=burst.t_other,
    )
