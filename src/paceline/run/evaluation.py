"""Evaluation: N episodes with fixed seeds, side by side; each seed counts once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..config.text import several
from ..envs import Columns
from ..envs.columns import MAX_FAILURES, EnvColumns, episode_seed
from ..envs.frame_stack import Window
from ..envs.maker import EnvId, make_columns, source_of
from ..envs.space_text import mismatch
from ..errors import BadInput, EnvironmentFailed
from ..policy.agent import Agent
from ..processes.hardware import available_cpus
from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout
from ..samplers.unroll import none_hint

log = logging.getLogger("paceline")

SIDE_BY_SIDE = 16
EVALUATION_SEED = 1_000_003
"""Far from the seeds that people give their runs."""
NO_LIMIT = 100_000
"""An episode of an environment without a time limit is cut off after this many steps."""


@dataclass(frozen=True)
class EvalResult:
    """Returns of an evaluation's episodes, with their statistics."""

    episodes: int
    mean: float
    std: float
    median: float
    min: float
    max: float
    length_mean: float
    ci_low: float
    ci_high: float
    returns: list[float]
    seeds: list[int]
    """of the episodes, where a suite takes one for each"""
    checkpoint: str | None = None
    env_id: str | None = None
    sampled: bool = False
    """whether actions were drawn, instead of the likeliest taken"""
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    """the same of other worlds, by name: for Procgen, all levels beside those learnt on"""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in eval.json."""
        return asdict(self)

    def told_elsewhere(self) -> Iterator[str]:
        """A line for each of the other worlds."""
        for name, found in self.elsewhere.items():
            yield (
                f"{name.replace('_', ' ')}: mean {found['mean']:.2f} ± {found['std']:.2f}, 95% "
                f"interval {found['ci_low']:.2f} to {found['ci_high']:.2f}"
            )


def evaluate(
    agent: Agent,
    env_id: EnvId,
    episodes: int = 20,
    *,
    sample: bool = False,
    kwargs: dict[str, Any] | None = None,
    time_limit: int | None = None,
    frame_stack: int | None = None,
    wrappers: tuple[str, ...] = (),
) -> EvalResult:
    """Run `episodes` episodes of `env_id` with `agent`, greedily unless `sample`."""
    options = {"time_limit": time_limit, "frame_stack": frame_stack, "wrappers": wrappers}
    return run(agent, env_id, {"kwargs": kwargs or {}, **options}, episodes, sample)


def run(
    agent: Agent,
    env_id: EnvId,
    options: dict[str, Any],
    episodes: int,
    sample: bool = False,
    heartbeat: Heartbeat | None = None,
) -> EvalResult:
    """In `env_id`, and where its suite says that this tells nothing new, elsewhere too."""
    options = options | {"vector": False}  # episodes with seeds of their own need single ones
    source = source_of(env_id, **options)
    here, *others = (
        _run(agent, env_id, options | {"kwargs": kwargs}, episodes, sample, heartbeat)
        for kwargs in (options.get("kwargs"), *source.elsewhere.values())
    )
    found = zip(source.elsewhere, others, strict=True)
    return replace(here, elsewhere={name: one.as_dict() for name, one in found})


def _run(
    agent: Agent,
    env_id: EnvId,
    options: dict[str, Any],
    episodes: int,
    sample: bool,
    heartbeat: Heartbeat | None,
) -> EvalResult:
    """Episode number e runs in column e mod C: no column is left out for being slow.

    An episode in which the environment fails is dropped: the column's next one takes its place.
    """
    if episodes < 1:
        raise BadInput(f"episodes is {episodes}; write 1 or more")
    width = min(episodes, SIDE_BY_SIDE)
    with closing(
        make_columns(
            env_id, width, EVALUATION_SEED, longest=NO_LIMIT, threads=available_cpus(), **options
        )
    ) as columns:
        columns.heartbeat = heartbeat or Heartbeat()
        spaces = columns.obs_spec.seen, columns.act_spec
        if other := mismatch((agent.network.obs, agent.network.act), spaces):
            role, wanted, found = other
            raise BadInput(f"the policy's {role} are {wanted}, the environment's {found}")
        try:
            totals, lengths, numbers = _play(agent, columns, episodes, sample)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(f"during evaluation {error}") from error
        if columns.failures:
            log.warning(
                f"environments failed {several(columns.failures, 'time')} during evaluation; their "
                "episodes do not count, and others were played instead"
            )
    if not np.isfinite(totals).all():
        bad = totals[~np.isfinite(totals)][0]
        raise EnvironmentFailed(
            f"an environment returned the reward {bad}{none_hint(bad)} during evaluation"
        )
    seeds = []
    if isinstance(columns, EnvColumns):
        seeds = [episode_seed(EVALUATION_SEED, e % width, k) for e, k in enumerate(numbers)]
    low, high = _interval(totals)
    return EvalResult(
        episodes=episodes,
        mean=float(totals.mean()),
        std=float(totals.std()),
        median=float(np.median(totals)),
        min=float(totals.min()),
        max=float(totals.max()),
        length_mean=float(lengths.mean()),
        ci_low=low,
        ci_high=high,
        returns=totals.tolist(),
        seeds=seeds,
        sampled=sample,
    )


def _play(
    agent: Agent, columns: Columns, episodes: int, sample: bool
) -> tuple[Array, Array, list[int]]:
    """Returns, lengths, and which of its column's episodes each was, counting dropped ones."""
    width, each = columns.num_envs, columns.columns_per_env
    actor = agent.actor(width * each)
    obs_spec, stored = columns.obs_spec, columns.act_spec.stored
    row = Rollout.allocate(1, width * each, obs_spec.stored, stored, columns_per_env=each)
    window = Window(obs_spec, row.columns) if obs_spec.stack > 1 else None
    parameters = np.empty((row.columns, actor.distribution.size), np.float32)
    carry = np.zeros((row.columns, actor.carry_size), np.float32)
    total, length = np.zeros(width), np.zeros(width, np.int64)
    totals, lengths = np.full(episodes, np.nan), np.zeros(episodes, np.int64)
    numbers, played, dropped = [0] * episodes, [0] * width, [0] * width
    """played: episodes of each column; dropped: in a row, because its environment failed"""
    columns.reset(row.obs[1])
    row.first[1] = True
    missing = episodes
    while missing:
        row.start_next()
        columns.heartbeat.row += 1
        obs = row.obs[0] if window is None else window.show(row.obs[0], row.first[0])
        with np.errstate(all="ignore"):  # whatever environments have made of it
            actor.step(obs, row.first[0], carry, parameters)
        if window is not None:
            window.shift()
        if sample:
            noise = actor.distribution.noise(EVALUATION_SEED, columns.row, 0, row.columns, 1)[0]
            actor.distribution.sample(parameters, noise, row.action[0])
        else:
            actor.distribution.greedy(parameters, row.action[0])
        columns.step(0, columns.adapt(row.action[0]), row)
        stepped = row.env_stepped[0]
        total += row.env_reward[0]
        length += stepped
        for i in np.flatnonzero(~stepped):  # it was reset: after an end both are 0 already
            dropped[i] += bool(length[i])
            total[i] = length[i] = 0
            if dropped[i] >= MAX_FAILURES and played[i] * width + i < episodes:
                raise EnvironmentFailed(
                    f"the environment of column {i} failed in {MAX_FAILURES} episodes in a row"
                )
        # A batch can't be told to end an episode: what it goes on with counts as the next one.
        for i in np.flatnonzero(row.env_done[0] | (length >= NO_LIMIT)):
            number = played[i] * width + int(i)
            if number < episodes:
                totals[number], lengths[number] = total[i], length[i]
                numbers[number] = int(columns.episode[i])
                missing -= 1
            total[i] = length[i] = dropped[i] = 0
            played[i] += 1
    return totals, lengths, numbers


def _interval(values: Array) -> tuple[float, float]:
    """95% percentile bootstrap of the mean, with draws of its own that are always the same."""
    draws = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    tail = 50 * (1 - 0.95)
    low, high = np.percentile(values[draws].mean(1), [tail, 100 - tail])
    return float(low), float(high)
