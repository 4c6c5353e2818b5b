"""Evaluation: N episodes with fixed seeds, in parallel columns; every seed counts once.

`Outcome` warns of a run whose last evaluation shows that it has learned nothing.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.schema import Config, LogInfo
from ..config.text import several
from ..envs import Columns
from ..envs.columns import episode_seed
from ..envs.env_columns import MAX_FAILURES, EnvColumns
from ..envs.info import info_reader
from ..envs.source import EnvId, make_columns, source_of
from ..envs.spaces import policy_mismatch
from ..envs.vec import RowStepper
from ..errors import BadInput, EnvironmentFailed
from ..policy.agent import Agent
from ..processes.channel import PROGRESS
from ..processes.hardware import available_cpus
from ..processes.heartbeat import Heartbeat
from ..rollout import Array
from ..samplers.unroll import none_hint
from .budget import RECENT, Progress
from .info_means import InfoMeans

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("paceline")

MAX_COLUMNS = 16
EVALUATION_SEED = 1_000_003
"""Far from the seeds that users give their runs."""
PROGRESS_EVERY = 0.25
"""Seconds between two messages about how far an evaluation is."""
NO_LIMIT = 100_000
"""Steps after which an episode without a time limit is cut off."""
FEWEST = 10
"""Episodes on either side of a comparison; the variance of fewer is too uncertain."""
WORSE = 3.0
"""Standard errors below the first episodes, where one in 500 unchanged runs would be."""
BETTER = 2.0
"""Standard errors above them; a run that learns is soon tens above."""
MOVED = 1e-6
"""Change relative to the norm of the weights; one step of Adam at lr 1e-6 is more."""


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
    ci_low: float | None
    """95% bootstrap interval of the mean; None over one episode"""
    ci_high: float | None
    returns: list[float]
    seeds: list[int]
    """of the episodes; empty for a suite that takes none per episode"""
    checkpoint: str | None = None
    env_id: str | None = None
    sampled: bool = False
    """whether actions were sampled, instead of the most likely taken"""
    cut_short: bool = False
    """whether it was stopped: episodes are missing, above all long ones, here or elsewhere"""
    info: dict[str, float] = field(default_factory=dict)
    """means of the numbers in the `info` of episodes' last steps (`log_info`)"""
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    """results on other variants of the environment, by name: for Procgen, on all levels"""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in eval.json."""
        return asdict(self)

    def as_json(self) -> bytes:
        """The content of eval.json."""
        return json.dumps(self.as_dict(), indent=1).encode()

    def lines(self) -> Iterator[str]:
        """Text: mean and interval, here and in the other variants; numbers from `info`."""
        yield _summary(self.as_dict())
        if self.info:
            yield ", ".join(f"{name} {mean:.4g}" for name, mean in self.info.items())
        for name, found in self.elsewhere.items():
            yield f"{name.replace('_', ' ')}: {_summary(found)}"


def _summary(result: dict[str, Any]) -> str:
    text = f"mean {result['mean']:.2f}"
    if result["episodes"] > 1:
        text += f" ± {result['std']:.2f}"
    text += f" over {several(result['episodes'], 'episode')}"
    if result["ci_low"] is not None:
        text += f", 95% interval {result['ci_low']:.2f} to {result['ci_high']:.2f}"
    return text + (" (cut short: episodes are missing)" if result["cut_short"] else "")


@dataclass(kw_only=True)
class Evaluation:
    """How a policy is evaluated, and how far it is."""

    episodes: int
    sample: bool = False
    seed: int | None = None
    """of the episodes (None: those of every evaluation)"""
    log_info: LogInfo = "auto"
    """which numbers in `info` are averaged"""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    stopping: Callable[[], bool] = lambda: False
    """when it returns true, the evaluation ends with the episodes it has"""
    done: int = 0
    """episodes that have ended"""
    variants: int = 1
    _logged: float = field(default_factory=time.monotonic)

    def log_progress(self) -> None:
        """Now and then, so that a long evaluation is not silent."""
        if time.monotonic() - self._logged >= PROGRESS_EVERY:
            self._logged = time.monotonic()
            log.log(
                PROGRESS, f"evaluating: {self.done} of {self.variants * self.episodes} episodes"
            )


def evaluate_policy(
    agent: Agent, env_id: EnvId, options: dict[str, Any], evaluation: Evaluation
) -> EvalResult | None:
    """Evaluate in `env_id`, and in the other variants that its suite names, if any.

    None if it was stopped before the first episode had ended.
    """
    if evaluation.episodes < 1:
        raise BadInput(f"episodes is {evaluation.episodes}; write 1 or more")
    options = options | {"vector": False}  # only single environments can be seeded per episode
    elsewhere = source_of(env_id, **options).elsewhere
    evaluation.variants = 1 + len(elsewhere)
    here = _evaluate(agent, env_id, options, evaluation)
    if here is None:
        return None
    found = {}
    for name, kwargs in elsewhere.items():
        result = _evaluate(agent, env_id, options | {"kwargs": kwargs}, evaluation)
        if result is not None:
            found[name] = result.as_dict()
    cut_short = evaluation.done < evaluation.variants * evaluation.episodes
    return replace(here, elsewhere=found, cut_short=cut_short)


def _evaluate(
    agent: Agent, env_id: EnvId, options: dict[str, Any], evaluation: Evaluation
) -> EvalResult | None:
    """Episode e runs in column e mod C, so that slow episodes count as often as fast ones.

    An episode in which the environment fails is replaced by the column's next one.
    """
    width = min(evaluation.episodes, MAX_COLUMNS)
    seed = EVALUATION_SEED if evaluation.seed is None else evaluation.seed
    more = {"default_time_limit": NO_LIMIT, "threads": available_cpus(), **options}
    with closing(make_columns(env_id, width, seed, **more)) as columns:
        columns.heartbeat = evaluation.heartbeat
        columns.read_info = info_reader(evaluation.log_info)
        infos = InfoMeans(evaluation.log_info)
        spaces = columns.obs_spec.seen, columns.act_spec
        if other := policy_mismatch((agent.network.obs, agent.network.act), spaces, env_id):
            raise BadInput(other)
        try:
            totals, lengths, numbers = _play(agent, columns, evaluation, seed, infos)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(f"during evaluation {error}") from error
        if columns.failures:
            log.warning(
                f"environments failed {several(columns.failures, 'time')} during evaluation; their "
                "episodes were replaced by others"
            )
    ended = np.flatnonzero(lengths)
    if not len(ended):
        return None
    totals = totals[ended]
    if not np.isfinite(totals).all():
        bad = totals[~np.isfinite(totals)][0]
        raise EnvironmentFailed(
            f"an environment returned the reward {bad}{none_hint(bad)} during evaluation"
        )
    seeds = []
    if isinstance(columns, EnvColumns):
        seeds = [episode_seed(seed, e % width, numbers[e]) for e in ended.tolist()]
    low, high = _interval(totals) if len(ended) > 1 else (None, None)
    return EvalResult(
        episodes=len(ended),
        mean=float(totals.mean()),
        std=float(totals.std()),
        median=float(np.median(totals)),
        min=float(totals.min()),
        max=float(totals.max()),
        length_mean=float(lengths[ended].mean()),
        ci_low=low,
        ci_high=high,
        returns=totals.tolist(),
        seeds=seeds,
        sampled=evaluation.sample,
        cut_short=len(ended) < evaluation.episodes,
        info={name: mean for name, mean in infos.take().items() if mean is not None},
    )


def _play(
    agent: Agent, columns: Columns, evaluation: Evaluation, seed: int, infos: InfoMeans
) -> tuple[Array, Array, list[int]]:
    """Per episode: return, length (0: it has not ended), and its number in its column, counting
    dropped ones."""
    episodes = evaluation.episodes
    width, stepper = columns.num_envs, RowStepper(columns)
    row = stepper.row
    actor = agent.actor(row.columns)
    parameters = np.empty((row.columns, actor.distribution.size), np.float32)
    carry = np.zeros((row.columns, actor.carry_size), np.float32)
    total, length = np.zeros(width), np.zeros(width, np.int64)
    totals, lengths = np.full(episodes, np.nan), np.zeros(episodes, np.int64)
    numbers, played, dropped = [0] * episodes, [0] * width, [0] * width
    """played: episodes of each column; dropped: consecutive ones in which it failed"""
    stepper.reset()
    missing = episodes
    while missing and not evaluation.stopping():
        columns.heartbeat.row += 1
        evaluation.log_progress()
        obs, first = stepper.observe()
        with np.errstate(all="ignore"):  # an environment may have changed it
            actor.step(obs, first, carry, parameters)
        if evaluation.sample:
            noise = actor.distribution.noise(seed, columns.row, 0, row.columns, 1)[0]
            actor.distribution.sample(parameters, noise, row.action[0])
        else:
            actor.distribution.greedy(parameters, row.action[0])
        stepper.step(columns.adapt(row.action[0]))
        stepped = row.env_stepped[0]
        total += row.env_reward[0]
        length += stepped
        for i in np.flatnonzero(~stepped):  # it was reset; after an end, length is 0 already
            dropped[i] += bool(length[i])
            total[i] = length[i] = 0
            if dropped[i] >= MAX_FAILURES and played[i] * width + i < episodes:
                raise EnvironmentFailed(f"env {i} failed in {MAX_FAILURES} episodes in a row")
        # A native batch can't end an episode on demand: what follows counts as the next one.
        for i in np.flatnonzero(row.env_done[0] | (length >= NO_LIMIT)):
            number = played[i] * width + int(i)
            if number < episodes:
                totals[number], lengths[number] = total[i], length[i]
                numbers[number] = int(columns.episode[i])
                missing -= 1
                evaluation.done += 1
                infos.add(row.final_info.get((0, int(i)), {}))
            total[i] = length[i] = dropped[i] = 0
            played[i] += 1
    return totals, lengths, numbers


def _interval(values: Array) -> tuple[float, float]:
    """95% percentile bootstrap of the mean, with a fixed seed."""
    draws = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
    tail = 50 * (1 - 0.95)
    low, high = np.percentile(values[draws].mean(1), [tail, 100 - tail])
    return float(low), float(high)


class Outcome:
    """Compares the policy with that at the start of the session."""

    def __init__(self, policy: nn.Module, progress: Progress) -> None:
        self._policy, self._iter = policy, progress.iter
        self._before = self._weights()

    def warn(self, config: Config, progress: Progress, result: EvalResult) -> None:
        """Log what the numbers of the last evaluation do not show by themselves."""
        if result.length_mean >= NO_LIMIT:
            log.warning(
                f"every episode of the evaluation was cut off after {NO_LIMIT:,} steps: the "
                "most likely actions of this policy never end one; --env.time-limit N ends "
                "them, in training too"
            )
        updates = progress.iter - self._iter
        change = np.linalg.norm(self._weights() - self._before)
        moved = change > MOVED * np.linalg.norm(self._before)
        if updates and not moved:
            limit = getattr(config.algorithm, "target_kl", None)
            kl = "" if limit is None else f", {config.algo_section}.target_kl {limit:g}"
            log.warning(
                f"the policy is the same as {updates:,} updates ago: nothing was learned "
                f"with lr {config.lr:g}, max_grad_norm {config.max_grad_norm:g}{kl}"
            )
        _compare(progress, result)

    def _weights(self) -> Array:
        return np.concatenate([p.numpy(force=True).ravel() for p in self._policy.parameters()])


def _compare(progress: Progress, result: EvalResult) -> None:
    """Log if the last episodes of training are worse than the first ones, or no better.

    No episode is on both sides. The evaluation, which is greedy, counts only if training is no
    better: early in learning it may well be worse while the sampled policy improves.
    """
    recent = list(progress.recent)
    count = min(RECENT, progress.episodes // 2, len(progress.first), len(recent))
    if count < FEWEST:
        return
    first, last = np.array(progress.first[:count]), np.array(recent[-count:])
    latest = f"the last {count} ({last.mean():.4g})"
    before = f"the first {count} episodes of training (mean return {first.mean():.4g})"
    gain, evaluated = _gain(first, last), np.array(result.returns)
    if gain < -WORSE:
        log.warning(f"{latest} are worse than {before}")
    elif gain < BETTER and len(evaluated) >= FEWEST and _gain(first, evaluated) < -WORSE:
        log.warning(f"the evaluation ({result.mean:.4g}) is worse than {before}")
    elif np.ptp(np.concatenate([first, last])) == 0:
        same = f"the last {count} all returned the same as {before}"
        log.warning(f"{same}: nothing says which actions are better")
    elif gain < BETTER and count == RECENT:
        log.info(f"{latest} are no better than {before}")


def _gain(first: Array, last: Array) -> float:
    """Difference of the means, in standard errors."""
    change = float(last.mean() - first.mean())
    error = math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in (first, last)))
    rounding = 1e-6 * abs(float(first.mean()))
    return change / max(error, rounding, 1e-12)
