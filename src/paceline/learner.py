"""Learner: sole owner of the parameters, the optimiser and the normalisers.

T = steps, B = columns, R = rows, S = streams.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from .algorithms import Algorithm
from .arrays import part
from .batch import Prediction, Rows, Signals, permutation
from .errors import Diverged
from .optimizers import Optimizer
from .policy.actor_critic import ActorCritic, Inputs
from .policy.flat import Flat
from .policy.network import NetworkSpec
from .policy.normalize import ReturnScaler, RunningMoments
from .rollout import Array, Rollout
from .settings import own_settings
from .sight import Sight
from .spaces import ObservationSpec
from .step import Objective, Step
from .sync import Sync

CHECK_EVERY = 50
"""Updates after which ranks compare their weights."""
Metrics = dict[str, float]


@dataclass(frozen=True)
class Plan:
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


class Learner:
    @own_settings()
    def __init__(
        self,
        network: NetworkSpec,
        algorithm: Algorithm,
        optimizer: Optimizer,
        sync: Sync,
        plan: Plan,
        columns: int,
        device: torch.device,
        stored: ObservationSpec | None = None,
    ) -> None:
        """`stored` is how rollouts hold observations, where a policy sees several as one."""
        self._algorithm, self.sync, self._plan, self._device = algorithm, sync, plan, device
        self._threads = torch.get_num_threads()
        self.module = ActorCritic(network)
        self.module.initialize(plan.seed)
        self.module.to(device)
        self.flat = Flat(self.module, device)
        self._shared = sync.share(self.flat.storage)
        """what all ranks see; unless they share memory, `flat`'s own storage"""
        self._step = Step(
            Objective(self.module, algorithm),
            self.flat,
            optimizer,
            plan.max_grad_norm,
            plan.compiled,
            self._shared[len(self._shared) - len(self.flat.weights) :],
            sync.share,
        )
        self._alone = sync.size == 1 and self._own and algorithm.target_kl is None
        """whether nobody has a say between a gradient and its application"""
        once = (
            algorithm.needs_log_ratio and plan.epochs * plan.minibatches == 1 and not plan.compiled
        )
        self._once = once
        """whether what targets are made of is also what the only step learns from"""
        self._known: Prediction | None = None
        self.sight = Sight(stored or network.obs, device)
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
    def metric_names(self) -> tuple[str, ...]:
        """What `update` returns."""
        rho = ("rho_mean",) if self._algorithm.needs_log_ratio else ()
        return (*self._step.names, "explained_variance", *rho, "lr")

    @property
    def weights(self) -> Array:
        """What actors need, as one array; on a CPU a view that changes with the next update."""
        return self.flat.published.numpy(force=True)

    @own_settings()
    def update(self, rollout: Rollout, remaining: float) -> Metrics:
        """Learn from one rollout; `remaining` falls from 1 to 0 over the run.

        If anything turns NaN or infinite, everything is put back as it was, and `Diverged` raised.
        """
        if torch.get_num_threads() != self._threads:  # an environment's doing
            torch.set_num_threads(self._threads)
        before = self.state() if self._own else None
        rows, metrics = self._judge(rollout)
        lr = self._plan.lr * (remaining if self._plan.anneal_lr else 1.0)
        means = self._descend(rows, rollout, remaining, lr)
        self._known = None
        metrics |= dict(zip(self._step.names, means, strict=True)) | {"lr": lr}
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
        self.refresh()
        if self.sync.size > 1 and self.version % CHECK_EVERY == 0:
            self.compare()
        return metrics

    def refresh(self) -> None:
        """Copy the weights that all processes share, if they do."""
        if not self._own:
            self.flat.storage.copy_(self._shared)

    def follow(self, version: int) -> None:
        """Number the next update after those that other processes have made."""
        self._step.count += version - self.version
        self.version = version

    def compare(self) -> None:
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

    def _judge(self, rollout: Rollout) -> tuple[Rows, Metrics]:
        """Values, targets and weights of every row, all T·B of them."""
        inputs = self.module.inputs(self.sight.parts(rollout))
        kept = rollout.steps * rollout.columns
        predicted, log_ratio = self._predicted(rollout, inputs, kept)
        value = predicted.numpy(force=True).reshape(rollout.steps + 1, rollout.columns, -1)
        targets = self._algorithm.targets(self._signals(rollout, log_ratio), value)
        advantage = targets.advantage
        if self._algorithm.normalize_advantage == "rollout":
            mean, var, count = self._moments(advantage[rollout.valid][:, None])
            if count > 1:  # a single row is its own mean, and 0 would teach nothing
                advantage = (advantage - mean) / (np.sqrt(var) + 1e-8)
        rows = Rows(
            inputs=tuple(part[:kept] for part in inputs),
            action=self._tensor(rollout.action),
            logp=self._tensor(rollout.logp),
            advantage=self._tensor(advantage.astype(np.float32, copy=False)),
            returns=self._tensor(targets.returns),
            value=predicted[:kept],
            weight=self._tensor(rollout.valid.astype(np.float32)),
        )
        metrics = self._quality(rollout.valid, value[:-1], targets.returns, log_ratio)
        return self._filled(rows, rollout.valid.ravel()), metrics

    def _quality(self, valid: Array, value: Array, returns: Array, log_ratio: Array) -> Metrics:
        """How well values foresaw returns, and how far the policy was from the one that acted."""
        truth = returns[valid].ravel().astype(np.float64)
        error = truth - value[valid].ravel()
        rho = (
            np.exp(np.minimum(log_ratio, 0.0))[valid].sum()
            if self._algorithm.needs_log_ratio
            else 0.0
        )
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
        if self._algorithm.needs_log_ratio:
            metrics["rho_mean"] = rho / rows if rows else 1.0
        return metrics

    def _predicted(self, rollout: Rollout, inputs: Inputs, kept: int) -> tuple[torch.Tensor, Array]:
        """Values of all observations, and where they are asked for log π − log μ of all actions."""
        if rollout.value.size and not self._algorithm.needs_log_ratio:
            value = torch.from_numpy(rollout.value).to(self._device).reshape(-1, 1)
            return value, np.zeros((), np.float32)
        size = kept // self._plan.minibatches if self.sight.pictures else len(inputs[0])
        values, logps = [], []
        with torch.no_grad():
            if not self._algorithm.needs_log_ratio:
                for piece in _pieces(inputs, size):
                    values.append(self.module.value(self.sight.look(piece)))
                return torch.cat(values), np.zeros((), np.float32)
            acting = tuple(part[:kept] for part in inputs)
            for *seen, action in _pieces((*acting, self._tensor(rollout.action)), size):
                with torch.set_grad_enabled(self._once):
                    acted = self.module.predict(self.sight.look(tuple(seen)), action)
                values.append(acted.value.detach())
                logps.append(acted.logp.detach())
            self._known = acted if self._once else None
            values.append(self.module.value(self.sight.look(tuple(part[kept:] for part in inputs))))
        logp = torch.cat(logps).numpy(force=True).reshape(rollout.reward.shape)
        log_ratio = np.where(rollout.valid, logp - rollout.logp, np.float32(0.0))
        return torch.cat(values), log_ratio

    def _filled(self, rows: Rows, valid: Array) -> Rows:
        """Rows that do not count become copies of one that does, and still do not count.

        What they held may be too large to be multiplied by 0.
        """
        if valid.all():
            return rows
        index = np.where(valid, np.arange(len(valid)), valid.argmax())
        return replace(rows.take(self._tensor(index)), weight=rows.weight)

    def _signals(self, rollout: Rollout, log_ratio: Array) -> Signals:
        if self._plan.clip_reward:
            rollout = replace(rollout, reward=np.sign(rollout.reward))
        reward = rollout.reward
        if self._scaler is not None:
            mean, var, count = self._moments(self._scaler.returns(rollout)[:, None])
            self._scaler.moments.update(count, mean, var)
            reward = self._scaler(reward)
        discount = np.float32(self._plan.gamma) * ~rollout.terminated
        trace = (~rollout.done).astype(np.float32)
        return Signals(
            reward[..., None], discount[..., None], trace[..., None], log_ratio[..., None]
        )

    def _descend(self, rows: Rows, rollout: Rollout, remaining: float, lr: float) -> list[float]:
        """Epochs of minibatches; returns the terms' means over all of them."""
        plan, step, limit = self._plan, self._step, self._algorithm.target_kl
        size = len(rows.weight) // plan.minibatches
        total, made = torch.zeros(len(step.names), device=self._device), 0
        for epoch in range(plan.epochs):
            shuffled = self._shuffled(rows, rollout, epoch)
            for minibatch in shuffled.split(size):
                if self.sight.pictures and self._known is None:
                    minibatch = replace(minibatch, inputs=self.sight.look(minibatch.inputs))
                if self._alone:
                    total += step.whole(minibatch, remaining, lr, self._known)
                else:
                    self._sum(step.gradient(minibatch, remaining, self._known))
                    if limit is not None and step.mean_of("approx_kl") > 1.5 * limit:
                        return (total / max(made, 1)).tolist()
                    if not self._own and not step.buffer.isfinite().all():
                        return [math.nan] * len(total)  # nobody else is to learn from it
                    total += step.apply(lr)
                made += 1
        return (total / made).tolist()

    def _shuffled(self, rows: Rows, rollout: Rollout, epoch: int) -> Rows:
        plan = self._plan
        if plan.minibatches == 1:
            return rows
        order = permutation(
            plan.seed,
            self.version,
            epoch,
            rollout.steps,
            rollout.columns,
            plan.blocks,
            plan.minibatches,
            self.sync.rank * plan.blocks,
        )
        return rows.take(self._tensor(order))

    def _observe(self, rollout: Rollout) -> None:
        """Fold the rollout's observations in, for the next weights to use."""
        if self._obs_moments is None:
            return
        seen = self.sight.vector(rollout)[:-1][rollout.valid]
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

    @own_settings()
    def warm_up(self, rollout: Rollout) -> float:
        """Compile for rollouts of this shape, learning nothing; returns the seconds taken."""
        began, kept = time.perf_counter(), rollout.steps * rollout.columns
        blank = torch.zeros(kept, device=self._device)
        value = blank[:, None]
        rows = Rows(
            inputs=tuple(part[:kept] for part in self.module.inputs(self.sight.parts(rollout))),
            action=self._tensor(rollout.action),
            logp=blank,
            advantage=blank,
            returns=value,
            value=value,
            weight=blank,
        )
        minibatch = next(rows.split(kept // self._plan.minibatches))
        minibatch = replace(minibatch, inputs=self.sight.look(minibatch.inputs))
        self._step.prepare(minibatch, self._alone)
        self.t_compile = time.perf_counter() - began
        return self.t_compile

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next update depends on."""
        arrays = {"storage": self._shared.numpy(force=True).copy()}
        for number, moment in enumerate(self._step.moments):
            arrays[f"moment{number}"] = moment.numpy(force=True).copy()
        arrays["counts"] = np.array([self.version, self._step.count])
        if self._obs_moments is not None:
            arrays |= {f"obs.{k}": v for k, v in self._obs_moments.state().items()}
        if self._scaler is not None:
            arrays |= {f"return.{k}": v for k, v in self._scaler.state().items()}
        return arrays

    def adopt(self, weights: dict[str, Array], arrays: dict[str, Array]) -> None:
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
        self.refresh()
        for number, moment in enumerate(self._step.moments):
            moment.copy_(torch.from_numpy(arrays[f"moment{number}"]))
        self.version, self._step.count = (int(count) for count in arrays["counts"])
        for prefix, statistics in (("obs.", self._obs_moments), ("return.", self._scaler)):
            if statistics is not None:
                statistics.restore(part(prefix, arrays))


def _pieces(parts: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of several tensors, `size` at a time."""
    return zip(*(part.split(size) for part in parts), strict=True)  # type: ignore[no-untyped-call]
