"""Learner: sole owner of the parameters, the optimiser and the normalisers.

T = steps, B = columns, R = rows, H = value heads; a minibatch is N segments of L steps.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..distributed import Sync
from ..envs.frame_stack import stacked
from ..envs.spaces import ObservationSpec
from ..errors import Diverged
from ..policy.actor_critic import ActorCritic, RecurrentInputs
from ..policy.flat import FlatParameters
from ..policy.network import NetworkSpec
from ..policy.normalize import ReturnScaler, RunningMoments
from ..policy.prediction import Inputs, Prediction
from ..policy.settings import standard_settings
from ..rollout import Array, Rollout
from ..storage.arrays import under_prefix, with_prefix
from .algorithms import Algorithm
from .batch import Rows, Signals, ValueHead, permutation, segment_rows
from .bonus import Bonus, BonusContext, Metrics, Reduction
from .observations import RolloutObservations
from .optimizers import Optimizer
from .step import LossTerm, Objective, PolicyLoss, Step

CHECK_EVERY = 50
"""Updates after which ranks compare their weights."""


@dataclass(frozen=True)
class LearnerConfig:
    """How a learner uses its rollouts."""

    epochs: int
    minibatches: int
    gamma: float
    lr: float
    anneal_lr: bool
    max_grad_norm: float
    normalize_return: bool
    seed: int
    clip_reward: bool = False
    blocks: int = 1
    compiled: bool = False


@dataclass(frozen=True)
class Batch:
    """All rows of a rollout, ready to be learnt from."""

    rows: Rows
    seen: RolloutObservations
    known: Prediction | None
    """what the learner predicts of all rows, if that is known already"""
    metrics: Metrics

    def looked_at(self, rows: Rows) -> Rows:
        """With pictures in place of where to find them."""
        following = self.seen.gather_images(rows.next_inputs) if rows.next_inputs else ()
        return replace(rows, inputs=self.seen.gather_images(rows.inputs), next_inputs=following)


class Learner:
    @standard_settings()
    def __init__(
        self,
        network: NetworkSpec,
        algorithm: Algorithm,
        optimizer: Optimizer,
        sync: Sync,
        plan: LearnerConfig,
        columns: int,
        device: torch.device,
        stored: ObservationSpec | None = None,
        make_bonus: Callable[[BonusContext], Bonus] | None = None,
    ) -> None:
        """`stored` is how rollouts hold observations, where a policy sees several as one."""
        self._algorithm, self.sync, self._plan, self._device = algorithm, sync, plan, device
        self._threads = torch.get_num_threads()
        self._bonus: Bonus | None = None
        self._heads: tuple[ValueHead, ...] = (ValueHead(plan.gamma),)
        others: list[LossTerm] = []
        if make_bonus is not None:
            context = BonusContext(network, columns, plan.seed, device, self._moments)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(plan.seed)  # for the weights of modules that it makes
                self._bonus = make_bonus(context)
            self._heads += () if self._bonus.head is None else (self._bonus.head,)
            others += [] if self._bonus.term is None else [self._bonus.term]
        self.module = ActorCritic(replace(network, value_heads=len(self._heads)))
        self.module.initialize(plan.seed)
        objective = Objective(PolicyLoss(self.module, algorithm, plan.max_grad_norm), *others)
        objective.to(device)
        self._others = others
        self.flat = FlatParameters(self.module, device, objective)
        self._shared = sync.share(self.flat.storage)
        """what all ranks see; unless they share memory, `flat`'s own storage"""
        self._step = Step(
            objective,
            self.flat,
            optimizer,
            plan.compiled,
            self._shared[len(self._shared) - len(self.flat.weights) :],
            sync.share,
        )
        self._alone = sync.size == 1 and self._own and not algorithm.stop_above
        """whether nobody has a say between a gradient and its application"""
        one_step = plan.epochs * plan.minibatches == 1 and not plan.compiled
        has_memory = network.memory is not None
        self._once = one_step and algorithm.needs_log_ratio and not has_memory
        """whether what targets are made of is also what the only step learns from"""
        self._stored = stored or network.obs
        self._obs_moments = RunningMoments(network.obs.size) if network.normalize_obs else None
        self._scaler = ReturnScaler(columns, plan.gamma) if plan.normalize_return else None
        self.version = 0
        """updates made; also the number of the weights that act next"""
        self.t_sync = 0.0
        """seconds spent waiting for other ranks, ever"""
        self.t_compile = 0.0
        """seconds that compiling took"""

    @property
    def _own(self) -> bool:
        return self._shared is self.flat.storage

    @property
    def metrics(self) -> dict[str, Reduction]:
        """What `update` returns, and how that of several ranks and updates becomes one."""
        rho = ("rho_mean",) if self._algorithm.needs_log_ratio else ()
        names = (*self._step.names, "explained_variance", *rho, "lr")
        bonus = {} if self._bonus is None else self._bonus.metrics
        return {**dict.fromkeys(names, "mean"), **bonus}

    @property
    def per_column(self) -> set[str]:
        """Names of the arrays of `state()` whose first axis is this learner's columns."""
        own = () if self._bonus is None else self._bonus.per_column
        return {"return.running", *(f"bonus.{name}" for name in own)}

    @property
    def weights(self) -> Array:
        """What actors need, as one array; on a CPU a view that changes with the next update."""
        return self.flat.published.numpy(force=True)

    @standard_settings()
    def update(self, rollout: Rollout, remaining: float) -> Metrics:
        """Learn from one rollout; `remaining` falls from 1 to 0 over the run.

        If anything turns NaN or infinite, everything is put back as it was, and `Diverged` raised.
        """
        if torch.get_num_threads() != self._threads:  # an environment's doing
            torch.set_num_threads(self._threads)
        before = self.state() if self._own else None
        batch = self.prepare_batch(rollout)
        lr = self._plan.lr * (remaining if self._plan.anneal_lr else 1.0)
        means = self._descend(batch, rollout, remaining, lr)
        metrics = batch.metrics | dict(zip(self._step.names, means, strict=True)) | {"lr": lr}
        metrics["weights"] = float(self.flat.weights.sum())
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if bad:
            if before is not None:
                self.restore(before)
            raise Diverged(
                f"{bad[0]} became {metrics[bad[0]]} in update {self.version + 1}; "
                "a lower lr, or max_grad_norm, often helps, as does normalize_return"
            )
        del metrics["weights"]
        self._observe(rollout)
        self.version += 1
        self.pull_shared_weights()
        if self.sync.size > 1 and self.version % CHECK_EVERY == 0:
            self.check_ranks_agree()
        return metrics

    def pull_shared_weights(self) -> None:
        """Copy the weights that all processes share, if they do."""
        if not self._own:
            self.flat.storage.copy_(self._shared)

    def set_version(self, version: int) -> None:
        """Number the next update after those that other processes have made."""
        self._step.count += version - self.version
        self.version = version

    def check_ranks_agree(self) -> None:
        """Make sure that all ranks have the same weights, to the bit."""
        sums = self.sync.gather(zlib.crc32(self.flat.storage.numpy(force=True).data))
        usual = max(sums, key=sums.count)
        odd = [str(rank) for rank, found in enumerate(sums) if found != usual]
        if odd:
            raise Diverged(
                f"after update {self.version} the weights of rank {', '.join(odd)} are not those "
                f"of the other ranks (checksums {', '.join(f'{n:08x}' for n in sums)}); a faulty "
                "machine, or hosts with different CPUs, can cause it"
            )

    def observations(self, rollout: Rollout) -> RolloutObservations:
        """A rollout's observations, as this learner reads them."""
        return RolloutObservations.of(rollout, self._stored, self._device)

    def prepare_batch(self, rollout: Rollout) -> Batch:
        """Values, targets and weights of every row, all T·B of them."""
        seen = self.observations(rollout)
        inputs = self.module.inputs(seen.parts)
        predicted, log_ratio, known = self._predicted(rollout, inputs, seen)
        value = predicted.numpy(force=True).reshape(rollout.steps + 1, rollout.columns, -1)
        bonus, metrics = (None, {}) if self._bonus is None else self._bonus.reward(rollout, seen)
        targets = self._algorithm.targets(self._signals(rollout, log_ratio, bonus), value)
        advantage = targets.advantage
        if self._algorithm.normalize_advantage == "rollout":
            mean, var, count = self._moments(advantage[rollout.valid][:, None])
            if count > 1:  # a single row is its own mean, and 0 would teach nothing
                advantage = (advantage - mean) / (np.sqrt(var) + 1e-8)
        advantage = advantage.astype(np.float32, copy=False)
        rows = self._rows(rollout, inputs, advantage, targets.returns, predicted)
        metrics |= self._quality(rollout.valid, value[:-1], targets.returns, log_ratio)
        return Batch(self._filled(rows, rollout.valid.ravel()), seen, known, metrics)

    def _rows(
        self,
        rollout: Rollout,
        inputs: Inputs,
        advantage: Array,
        returns: Array,
        value: torch.Tensor,
    ) -> Rows:
        kept, memory = rollout.steps * rollout.columns, bool(rollout.segment)
        needs_next = any(term.needs_next for term in self._others)
        extra: dict[str, Array] = {}
        for term in self._others:
            extra |= term.rows(rollout)
        return Rows(
            inputs=tuple(part[:kept] for part in inputs),
            action=self._tensor(rollout.action),
            logp=self._tensor(rollout.logp),
            advantage=self._tensor(advantage),
            returns=self._tensor(returns),
            value=value[:kept],
            weight=self._tensor(rollout.valid.astype(np.float32)),
            next_inputs=tuple(part[rollout.columns :] for part in inputs) if needs_next else (),
            extra={name: self._tensor(array) for name, array in extra.items()},
            first=self._tensor(rollout.first[:-1]) if memory else None,
            carry=self._tensor(rollout.state[:-1]) if memory else None,
        )

    def _quality(self, valid: Array, value: Array, returns: Array, log_ratio: Array) -> Metrics:
        """How well values foresaw the environment's returns, and how far the policy was from the
        one that acted."""
        truth = returns[..., 0][valid].astype(np.float64)
        error = truth - value[..., 0][valid]
        needs_ratio = self._algorithm.needs_log_ratio
        rho = np.exp(np.minimum(log_ratio, 0.0))[valid].sum() if needs_ratio else 0.0
        sums = np.array(
            [truth.size, truth.sum(), truth @ truth, error.sum(), error @ error, rho, valid.sum()]
        )
        if self.sync.size > 1:
            self._sum(torch.from_numpy(sums))
        count, *totals, rho, rows = sums.tolist()
        mean, square, off, off_square = (total / max(count, 1.0) for total in totals)
        spread = square - mean * mean
        metrics = {"explained_variance": 0.0}
        if spread > 1e-12 * square:
            metrics["explained_variance"] = 1.0 - (off_square - off * off) / spread
        if needs_ratio:
            metrics["rho_mean"] = rho / rows if rows else 1.0
        return metrics

    def _predicted(
        self, rollout: Rollout, inputs: Inputs, seen: RolloutObservations
    ) -> tuple[torch.Tensor, Array, Prediction | None]:
        """Values of all observations, and where they are asked for log π − log μ of all actions.

        What the learner predicts of all rows comes along, where its only step can use that.
        """
        needs_ratio, known = self._algorithm.needs_log_ratio, None
        if rollout.value.size and not needs_ratio:
            value = torch.from_numpy(rollout.value).to(self._device).flatten(0, 1)
            return value, np.zeros((), np.float32), None
        kept = rollout.steps * rollout.columns
        acting, last = (
            tuple(part[at] for part in inputs) for at in (slice(kept), slice(kept, None))
        )
        size = kept // self._plan.minibatches if seen.pictures else len(inputs[0])
        values, logps = [], []
        with torch.no_grad():
            if not needs_ratio:
                values = [
                    self.module.value(seen.gather_images(piece)) for piece in _pieces(inputs, size)
                ]
                return torch.cat(values), np.zeros((), np.float32), None
            action = self._tensor(rollout.action)
            if rollout.segment:  # all columns from the rollout's beginning, as one sequence
                values.append(
                    self.module.value(seen.gather_images(inputs), self._carried(rollout, 1))
                )
                carried = self._carried(rollout, 0)
                logps.append(self.module.predict(seen.gather_images(acting), action, carried).logp)
            else:
                for *shown, taken in _pieces((*acting, action), size):
                    with torch.set_grad_enabled(self._once):
                        known = self.module.predict(seen.gather_images(tuple(shown)), taken)
                    values.append(known.value.detach())
                    logps.append(known.logp.detach())
                values.append(self.module.value(seen.gather_images(last)))
        logp = torch.cat(logps).numpy(force=True).reshape(rollout.reward.shape)
        log_ratio = np.where(rollout.valid, logp - rollout.logp, np.float32(0.0))
        return torch.cat(values), log_ratio, known if self._once else None

    def _carried(self, rollout: Rollout, more: int) -> RecurrentInputs:
        """What a memory needs for all steps of a rollout, and `more` observations after them."""
        first = torch.from_numpy(rollout.first[: rollout.steps + more]).to(self._device)
        return RecurrentInputs(first, torch.from_numpy(rollout.state[0]).to(self._device))

    def _filled(self, rows: Rows, valid: Array) -> Rows:
        """Rows that do not count become copies of one that does, and still do not count.

        What they held may be too large to be multiplied by 0.
        """
        if valid.all():
            return rows
        index = np.where(valid, np.arange(len(valid)), valid.argmax())
        return replace(rows.take(self._tensor(index)), weight=rows.weight, first=rows.first)

    def _signals(self, rollout: Rollout, log_ratio: Array, bonus: Array | None = None) -> Signals:
        """Of the environment's reward and, where there is a bonus, of that."""
        if self._plan.clip_reward:
            rollout = replace(rollout, reward=np.sign(rollout.reward))
        reward = rollout.reward
        if self._scaler is not None:
            mean, var, count = self._moments(self._scaler.returns(rollout)[:, None])
            self._scaler.moments.update(count, mean, var)
            reward = self._scaler(reward)
        rewards, idle = [reward], None
        if bonus is not None:
            bonus = np.where(rollout.valid, bonus, 0.0).astype(np.float32)
            rewards = [reward, bonus] if len(self._heads) > 1 else [reward + bonus]
        discounts, traces = [], []
        for head in self._heads:
            gamma = np.float32(head.gamma)
            if head.episodic:
                discounts.append(gamma * ~rollout.terminated)
                traces.append((~rollout.done).astype(np.float32))
            else:  # a row that only resets takes no time
                discounts.append(np.where(rollout.valid, gamma, np.float32(1)))
                traces.append(np.ones_like(reward))
        if not all(head.episodic for head in self._heads):
            episodic = np.array([head.episodic for head in self._heads])
            idle = ~rollout.valid[..., None] & ~episodic
        each = (_by_head(rewards), _by_head(discounts), _by_head(traces))
        return Signals(*each, log_ratio[..., None], self._heads, idle)

    def _descend(self, batch: Batch, rollout: Rollout, remaining: float, lr: float) -> list[float]:
        """Epochs of minibatches; returns the metrics' means over all of them."""
        plan, step, known = self._plan, self._step, batch.known
        size = len(batch.rows.weight) // plan.minibatches
        total, made = torch.zeros(len(step.names), device=self._device), 0
        for epoch in range(plan.epochs):
            for minibatch in self._shuffled(batch.rows, rollout, epoch).split(size):
                if batch.seen.pictures and known is None:
                    minibatch = batch.looked_at(minibatch)
                if self._alone:
                    total += step.fused(minibatch, remaining, lr, known)
                else:
                    self._sum(step.gradient(minibatch, remaining, known))
                    if self._to_stop():
                        return (total / max(made, 1)).tolist()
                    if not self._own and not step.buffer.isfinite().all():
                        return [math.nan] * len(total)  # nobody else is to learn from it
                    total += step.apply(lr)
                made += 1
        return (total / made).tolist()

    def _to_stop(self) -> bool:
        """Whether a metric of the minibatch is above what the algorithm allows."""
        limits = self._algorithm.stop_above
        return any(self._step.metric_mean(name) > limit for name, limit in limits.items())

    def _shuffled(self, rows: Rows, rollout: Rollout, epoch: int) -> Rows:
        plan, length = self._plan, rollout.segment or 1
        if plan.minibatches == 1 and length == 1:
            return rows
        order = permutation(
            plan.seed,
            self.version,
            epoch,
            rollout.steps // length,
            rollout.columns,
            plan.blocks,
            plan.minibatches,
            self.sync.rank * plan.blocks,
        )
        index = segment_rows(order, rollout.columns, length, plan.minibatches)
        return rows.take(self._tensor(index), self._tensor(order))

    def _observe(self, rollout: Rollout) -> None:
        """Fold the rollout's observations in, for the next weights to use."""
        if self._obs_moments is None:
            return
        seen = stacked(self._stored, rollout, "vector")[:-1][rollout.valid]
        seen = seen.reshape(-1, self.module.spec.obs.size)
        mean, var, count = self._moments(seen)
        self._obs_moments.update(count, mean, var)
        self._publish_moments()

    def _publish_moments(self) -> None:
        """Numbers are normalised; one-hot choices stay as they are."""
        assert self._obs_moments is not None
        numeric = self.module.spec.obs.numeric
        mean = np.where(numeric, self._obs_moments.mean, 0.0)
        scale = np.where(numeric, self._obs_moments.scale(), 1.0)
        self.module.obs_mean.copy_(torch.from_numpy(mean))
        self.module.obs_scale.copy_(torch.from_numpy(scale))

    def _moments(self, rows: Array) -> tuple[Array, Array, float]:
        """Mean and variance of each column of `rows` over all ranks, and the number of rows."""
        width = rows.shape[1]
        sums = torch.zeros(width + 1, dtype=torch.float64)
        sums[:width] = torch.from_numpy(rows.sum(0, dtype=np.float64))
        sums[width] = len(rows)
        self._sum(sums)
        count = max(float(sums[width]), 1.0)
        mean = sums[:width].numpy() / count
        squares = torch.from_numpy(np.square(rows - mean).sum(0, dtype=np.float64))
        self._sum(squares)
        return mean, squares.numpy() / count, float(sums[width])

    def _sum(self, buffer: torch.Tensor) -> None:
        began = time.perf_counter()
        self.sync.sum(buffer)
        self.t_sync += time.perf_counter() - began

    def _tensor(self, array: Array) -> torch.Tensor:
        """[T, B, ...] of a rollout as rows [R, ...] of the learner: the one place they cross."""
        flat = array.reshape(-1, *array.shape[2:]) if array.ndim > 1 else array
        return torch.from_numpy(flat).to(self._device)

    @standard_settings()
    def warm_up(self, rollout: Rollout) -> float:
        """Compile for rollouts of this shape, learning nothing; returns the seconds taken."""
        began, seen = time.perf_counter(), self.observations(rollout)
        blank = np.zeros((*rollout.reward.shape, len(self._heads)), np.float32)
        rows, value = rollout.reward.size, self._tensor(blank)
        inputs = self.module.inputs(seen.parts)
        whole = self._rows(rollout, inputs, np.zeros_like(rollout.reward), blank, value)
        blank_batch = Batch(whole, seen, None, {})
        minibatch = next(self._shuffled(whole, rollout, 0).split(rows // self._plan.minibatches))
        minibatch = blank_batch.looked_at(minibatch)
        self._step.prepare(minibatch, self._alone)
        self.t_compile = time.perf_counter() - began
        return self.t_compile

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next update depends on."""
        arrays = {"storage": self._shared.numpy(force=True).copy()}
        for number, moment in enumerate(self._step.moments):
            arrays[f"moment{number}"] = moment.numpy(force=True).copy()
        arrays["counts"] = np.array([self.version, self._step.count])
        for prefix, statistics in self._statistics:
            arrays |= with_prefix(prefix, statistics.state())
        return arrays

    @property
    def _statistics(self) -> list[tuple[str, Any]]:
        """What else has a state, and the prefix of its names."""
        parts = ("obs.", self._obs_moments), ("return.", self._scaler), ("bonus.", self._bonus)
        return [(prefix, found) for prefix, found in parts if found is not None]

    def load_weights(self, weights: dict[str, Array], arrays: dict[str, Array]) -> None:
        """Take over the weights and running statistics of another run; counters stay."""
        for name, tensor in self.module.named_weights().items():
            tensor.copy_(torch.from_numpy(weights[name]))
        scaler = self._scaler.moments if self._scaler is not None else None
        for prefix, moments in (("obs.", self._obs_moments), ("return.", scaler)):
            if moments is not None and f"{prefix}mean" in arrays:
                moments.restore({k: arrays[prefix + k] for k in ("count", "mean", "var")})
        self._shared.copy_(self.flat.storage)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Go back to what `state()` gave."""
        if arrays["counts"].min() < 0:
            raise ValueError(f"its counts are {arrays['counts'].tolist()}")
        self._shared.copy_(torch.from_numpy(arrays["storage"]))
        self.pull_shared_weights()
        for number, moment in enumerate(self._step.moments):
            moment.copy_(torch.from_numpy(arrays[f"moment{number}"]))
        self.version, self._step.count = (int(count) for count in arrays["counts"])
        for prefix, statistics in self._statistics:
            statistics.restore(under_prefix(prefix, arrays))


def _by_head(arrays: list[Array]) -> Array:
    """[T, B] of each head → [T, B, H]"""
    return arrays[0][..., None] if len(arrays) == 1 else np.stack(arrays, -1)


def _pieces(parts: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of several tensors, `size` at a time."""
    return zip(*(part.split(size) for part in parts), strict=True)  # type: ignore[no-untyped-call]
