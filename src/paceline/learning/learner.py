"""Learner: sole owner of the parameters, the optimizer and the normalizers.

T = steps, B = columns, R = T·B rows; a minibatch is N segments of L steps.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..config.schedules import make_schedule
from ..distributed import Sync
from ..envs.frame_stack import stacked
from ..envs.spaces import ObservationSpec
from ..errors import Diverged
from ..policy.actor_critic import ActorCritic
from ..policy.flat import FlatParameters
from ..policy.network import NetworkSpec
from ..policy.normalize import ReturnScaler, RunningMoments
from ..policy.settings import standard_settings
from ..rollout import Array, Rollout
from ..storage.arrays import under_prefix, with_prefix
from .algorithms import Algorithm
from .batch import Targets, ValueHead
from .bonus import Bonus, BonusContext, Metrics, Reduction
from .descent import Descent
from .observations import RolloutObservations
from .optimizers import Optimizer
from .predict import predict_rollout
from .prepare import Batch, batch_rows, overwrite_invalid, rollout_metrics, rows_tensor
from .rank_reducer import RankReducer
from .returns import reward_signals
from .step import LossTerm, Objective, PolicyLoss, Step

CHECK_EVERY = 50
"""Updates after which ranks compare their weights."""
CRITIC_CARRY = "critic.carry"
"""Name, in `state()`, of what the critic's own memory holds of each column."""


@dataclass(frozen=True)
class LearnerConfig:
    """Options of a learner besides its network, algorithm and optimizer."""

    epochs: int
    minibatches: int
    gamma: float
    lr: float
    max_grad_norm: float
    normalize_return: bool
    seed: int
    lr_schedule: str | Callable[[float], float] = "constant"
    clip_reward: bool = False
    blocks: int = 1
    """groups of columns; rows are shuffled within a group only (`descent.permutation`)"""


class Learner:
    @standard_settings()
    def __init__(
        self,
        network: NetworkSpec,
        algorithm: Algorithm,
        optimizer: Optimizer,
        sync: Sync,
        config: LearnerConfig,
        columns: int,
        device: torch.device,
        stored: ObservationSpec | None = None,
        make_bonus: Callable[[BonusContext], Bonus] | None = None,
    ) -> None:
        """`stored` describes observations in rollouts, if frames are stacked for the policy."""
        self._algorithm, self.sync, self._config, self._device = algorithm, sync, config, device
        self._lr_schedule = make_schedule("lr_schedule", config.lr_schedule)
        self._threads = torch.get_num_threads()
        self._ranks = RankReducer(sync)
        self._bonus: Bonus | None = None
        self._heads: tuple[ValueHead, ...] = (ValueHead(config.gamma),)
        self._other_terms: list[LossTerm] = []
        if make_bonus is not None:
            context = BonusContext(network, columns, config.seed, device, self._ranks.moments)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)  # initial weights of the bonus' modules
                self._bonus = make_bonus(context)
            self._heads += () if self._bonus.head is None else (self._bonus.head,)
            self._other_terms += [] if self._bonus.term is None else [self._bonus.term]
        self.module = ActorCritic(replace(network, value_heads=len(self._heads)))
        self.module.initialize(config.seed)
        policy_loss = PolicyLoss(self.module, algorithm, config.max_grad_norm)
        objective = Objective(policy_loss, *self._other_terms)
        objective.to(device)
        self.flat = FlatParameters(self.module, device, objective)
        self._shared = sync.share(self.flat.storage)
        """parameters that all processes see (Hogwild); otherwise the storage of `flat` itself"""
        self._step = Step(
            objective,
            self.flat,
            optimizer,
            self._shared[len(self._shared) - len(self.flat.weights) :],  # normalizers lie before
            sync.share,
        )
        shares = self._shares_weights
        self.descent = Descent(self._step, algorithm, config, sync, self._ranks, shares)
        one_step = config.epochs * config.minibatches == 1
        has_memory = network.memory is not None
        self._critic_carry: Array | None = None
        if (memory := self.module.value_memory) is not None:
            self._critic_carry = np.zeros((columns, memory.carry_size), np.float32)
        self._reuse_prediction = one_step and algorithm.needs_log_ratio and not has_memory
        """the only step of an update reuses the forward pass for the targets, unless compiled"""
        self._stored = stored or network.obs
        self._obs_moments = RunningMoments(network.obs.size) if network.normalize_obs else None
        self._scaler = ReturnScaler(columns, config.gamma) if config.normalize_return else None
        self.version = 0
        """number of updates made, which the weights published next are labelled with"""
        self.t_compile = 0.0
        """seconds spent compiling"""

    @property
    def t_sync(self) -> float:
        """Seconds spent waiting for other ranks, in total."""
        return self._ranks.seconds

    @property
    def _shares_weights(self) -> bool:
        return self._shared is not self.flat.storage

    @property
    def metrics(self) -> dict[str, Reduction]:
        """Names of what `update` returns, and how values of ranks and updates are reduced."""
        rho = ("rho_mean",) if self._algorithm.needs_log_ratio else ()
        names = (*self._step.names, "explained_variance", *rho, "lr")
        bonus = {} if self._bonus is None else self._bonus.metrics
        return {**dict.fromkeys(names, "mean"), **bonus}

    @property
    def per_column(self) -> set[str]:
        """Names of the arrays of `state()` whose first axis is this learner's columns."""
        own = () if self._bonus is None else self._bonus.per_column
        return {"return.running", CRITIC_CARRY, *(f"bonus.{name}" for name in own)}

    @property
    def weights(self) -> Array:
        """What actors need, as one array; on a CPU a view that changes with the next update."""
        return self.flat.published.numpy(force=True)

    @standard_settings()
    def update(self, rollout: Rollout, progress_remaining: float = 1.0) -> Metrics:
        """Learn from one rollout; `progress_remaining` falls from 1 to 0 over the run.

        If anything becomes NaN or infinite, the state is restored and `Diverged` raised.
        """
        if torch.get_num_threads() != self._threads:  # changed by an environment
            torch.set_num_threads(self._threads)
        before = None if self._shares_weights else self.state()
        batch = self.prepare_batch(rollout)
        lr = self._lr_schedule.value(self._config.lr, progress_remaining)
        means = self.descent.run(batch, rollout, self.version, progress_remaining, lr)
        metrics = batch.metrics | dict(zip(self._step.names, means, strict=True)) | {"lr": lr}
        finite = metrics | {"weights": float(self.flat.weights.sum())}
        bad = [name for name, value in finite.items() if not math.isfinite(value)]
        if bad:
            if before is not None:
                self.restore(before)
            raise Diverged(
                f"{bad[0]} became {finite[bad[0]]} in update {self.version + 1}; "
                "a lower lr, or max_grad_norm, often helps, as does normalize_return"
            )
        self._update_obs_moments(rollout)
        self._critic_carry = batch.critic_carry
        self.version += 1
        self.pull_shared_weights()
        if self.sync.size > 1 and self.version % CHECK_EVERY == 0:
            self.check_ranks_agree()
        return metrics

    def observations(self, rollout: Rollout) -> RolloutObservations:
        """The rollout's observations as tensors on this learner's device."""
        return RolloutObservations.of(rollout, self._stored, self._device)

    def prepare_batch(self, rollout: Rollout) -> Batch:
        """Values, targets and weights of all R rows."""
        algorithm, observations = self._algorithm, self.observations(rollout)
        inputs = self.module.inputs(observations.parts)
        minibatch = rollout.reward.size // self._config.minibatches
        chunk = minibatch if observations.frames else len(inputs[0])
        predicted = predict_rollout(
            self.module,
            rollout,
            observations,
            inputs,
            algorithm.needs_log_ratio,
            chunk,
            self._reuse_prediction and not self._step.compiled,
            self._critic_carry,
        )
        shape = (rollout.steps + 1, rollout.columns, -1)
        value = predicted.value.numpy(force=True).reshape(shape)
        bonus: Array | None = None
        metrics: Metrics = {}
        if self._bonus is not None:
            bonus, metrics = self._bonus.reward(rollout, observations)
        reward = self._scaled_reward(rollout)
        signals = reward_signals(rollout, reward, bonus, self._heads, predicted.log_ratio)
        targets = algorithm.targets(signals, value)
        targets = Targets(self._normalized(targets.advantage, rollout.valid), targets.returns)
        rows = batch_rows(
            rollout, inputs, targets, predicted.value, self._other_terms, predicted.states
        )
        log_ratio = predicted.log_ratio if algorithm.needs_log_ratio else None
        metrics |= rollout_metrics(
            rollout.valid, value[:-1], targets.returns, log_ratio, self._ranks
        )
        rows = overwrite_invalid(rows, rollout.valid.ravel())
        return Batch(rows, observations, predicted.rows, metrics, predicted.critic_carry)

    def _scaled_reward(self, rollout: Rollout) -> Array:
        """[T, B] rewards, clipped to their sign or divided by the return's deviation if asked."""
        if self._config.clip_reward:
            rollout = replace(rollout, reward=np.sign(rollout.reward))
        if self._scaler is None:
            return rollout.reward
        mean, var, count = self._ranks.moments(self._scaler.returns(rollout)[:, None])
        self._scaler.moments.update(count, mean, var)
        return self._scaler(rollout.reward)

    def _normalized(self, advantage: Array, valid: Array) -> Array:
        """[T, B] advantages with mean 0 and deviation 1 over the valid rows of all ranks."""
        if self._algorithm.normalize_advantage == "rollout":
            mean, var, count = self._ranks.moments(advantage[valid][:, None])
            if count > 1:  # a single row is its own mean, and 0 would give no gradient
                advantage = (advantage - mean) / (np.sqrt(var) + 1e-8)
        return advantage.astype(np.float32, copy=False)

    def _update_obs_moments(self, rollout: Rollout) -> None:
        """Add the rollout's observations to the normalizer that the next weights use."""
        if self._obs_moments is None:
            return
        spec = self.module.spec.obs
        rows = stacked(self._stored, rollout, "vector")[:-1][rollout.valid].reshape(-1, spec.size)
        mean, var, count = self._ranks.moments(rows)
        self._obs_moments.update(count, mean, var)
        # One-hot choices are not normalized.
        mean = np.where(spec.numeric, self._obs_moments.mean, 0.0)
        scale = np.where(spec.numeric, self._obs_moments.scale(), 1.0)
        self.module.obs_mean.copy_(torch.from_numpy(mean))
        self.module.obs_scale.copy_(torch.from_numpy(scale))

    def pull_shared_weights(self) -> None:
        """Copy the weights that all processes share, if they do (Hogwild)."""
        if self._shares_weights:
            self.flat.storage.copy_(self._shared)

    def set_version(self, version: int) -> None:
        """Continue after updates that other processes have made."""
        self._step.count += version - self.version
        self.version = version

    def check_ranks_agree(self) -> None:
        """Raise `Diverged` unless all ranks have the same weights, to the bit."""
        sums = self.sync.gather(zlib.crc32(self.flat.storage.numpy(force=True).data))
        usual = max(sums, key=sums.count)
        odd = [str(rank) for rank, found in enumerate(sums) if found != usual]
        if odd:
            raise Diverged(
                f"after update {self.version} the weights of rank {', '.join(odd)} are not those "
                f"of the other ranks (checksums {', '.join(f'{n:08x}' for n in sums)}); a faulty "
                "machine, or hosts with different CPUs, can cause it"
            )

    @standard_settings()
    def warm_up(self, rollout: Rollout) -> float:
        """Compile for rollouts of this shape without learning; returns the seconds it took."""
        began, observations = time.perf_counter(), self.observations(rollout)
        returns = np.zeros((*rollout.reward.shape, len(self._heads)), np.float32)
        targets = Targets(np.zeros_like(rollout.reward), returns)
        inputs = self.module.inputs(observations.parts)
        value = rows_tensor(returns, self._device)
        states = rollout.state if rollout.segment else None
        if states is not None and self._critic_carry is not None:
            own = np.zeros((*states.shape[:2], self._critic_carry.shape[1]), np.float32)
            states = np.concatenate([states, own], -1)
        rows = batch_rows(rollout, inputs, targets, value, self._other_terms, states)
        self.descent.compile(Batch(rows, observations, None, {}), rollout)
        self.t_compile = time.perf_counter() - began
        return self.t_compile

    def state(self) -> dict[str, Any]:
        """A copy of everything that the next update depends on."""
        arrays = {"storage": self._shared.numpy(force=True).copy()}
        for number, moment in enumerate(self._step.moments):
            arrays[f"moment{number}"] = moment.numpy(force=True).copy()
        arrays["counts"] = np.array([self.version, self._step.count])
        if self._critic_carry is not None:
            arrays[CRITIC_CARRY] = self._critic_carry.copy()
        for prefix, statistics in self._statistics:
            arrays |= with_prefix(prefix, statistics.state())
        return arrays

    def restore(self, arrays: dict[str, Array]) -> None:
        """Load what `state()` returned."""
        if arrays["counts"].min() < 0:
            raise ValueError(f"its counts are {arrays['counts'].tolist()}")
        self._shared.copy_(torch.from_numpy(arrays["storage"]))
        self.pull_shared_weights()
        for number, moment in enumerate(self._step.moments):
            moment.copy_(torch.from_numpy(arrays[f"moment{number}"]))
        self.version, self._step.count = (int(count) for count in arrays["counts"])
        if self._critic_carry is not None:
            self._critic_carry = arrays[CRITIC_CARRY].copy()
        for prefix, statistics in self._statistics:
            statistics.restore(under_prefix(prefix, arrays))

    @property
    def _statistics(self) -> list[tuple[str, Any]]:
        """Parts with a state of their own, and the prefix of its names."""
        parts = ("obs.", self._obs_moments), ("return.", self._scaler), ("bonus.", self._bonus)
        return [(prefix, found) for prefix, found in parts if found is not None]

    def load_weights(self, weights: dict[str, Array], arrays: dict[str, Array]) -> None:
        """Start from the weights and normalizers of another run; counters stay."""
        for name, tensor in self.module.named_weights().items():
            tensor.copy_(torch.from_numpy(weights[name]))
        scaler = self._scaler.moments if self._scaler is not None else None
        for prefix, moments in (("obs.", self._obs_moments), ("return.", scaler)):
            if moments is not None and f"{prefix}mean" in arrays:
                moments.restore(under_prefix(prefix, arrays))
        self._shared.copy_(self.flat.storage)
