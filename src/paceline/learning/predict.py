"""What the learner's weights predict of a whole rollout: values, log-ratios, states of memories.

T = steps, B = columns, R = T·B rows, H = value heads; K segments of L steps, S = floats of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ..policy.actor_critic import ActorCritic
from ..policy.network import Inputs, Prediction
from ..policy.recurrent import Memory
from ..rollout import Array, Rollout, groups_without_repeats
from .observations import RolloutObservations

NOTHING = np.zeros((), np.float32)


@dataclass(frozen=True)
class RolloutPrediction:
    """Of the observations of a rollout, the last one included."""

    value: torch.Tensor
    """[(T+1)·B, H]"""
    log_ratio: Array = field(default_factory=lambda: NOTHING)
    """[T, B] log π − log μ, 0 where not valid; a scalar 0 if not needed"""
    rows: Prediction | None = None
    """of all R rows, with its graph, if asked for"""
    states: Array | None = None
    """[K+1, B, S] what the policy's memory held before each segment and after the last, and beside
    it that of the critic, if that has its own"""
    critic_carry: Array | None = None
    """[columns, S] of the critic's own memory, for the next rollout"""


def predict_rollout(
    module: ActorCritic,
    rollout: Rollout,
    observations: RolloutObservations,
    inputs: Inputs,
    needs_log_ratio: bool,
    chunk: int,
    keep_graph: bool,
    critic_carry: Array | None = None,
) -> RolloutPrediction:
    """Values of all observations; log-ratios of all actions too, if needed.

    Images are gathered for `chunk` rows at a time. Values that the actor computed are used as they
    are, unless log-ratios are needed, which take a forward pass anyway.
    """
    device, images = inputs[0].device, observations.gather_images
    states = rollout.state if rollout.segment else None
    if rollout.value.size and not needs_log_ratio:
        value = torch.from_numpy(rollout.value).to(device).flatten(0, 1)
        return RolloutPrediction(value, states=states)
    if rollout.segment:
        with torch.no_grad():
            return _with_memory(
                module, rollout, observations, inputs, needs_log_ratio, chunk, critic_carry
            )
    if not needs_log_ratio:
        with torch.no_grad():
            values = [module.value(images(piece)) for piece in _chunks(inputs, chunk)]
        return RolloutPrediction(torch.cat(values))

    acting, last = _split_last(rollout, inputs)
    action = _actions(rollout, device)
    values, logps, prediction = [], [], None
    with torch.no_grad():
        for *piece, taken in _chunks((*acting, action), chunk):
            with torch.set_grad_enabled(keep_graph):
                prediction = module.predict(images(tuple(piece)), taken)
            values.append(prediction.value.detach())
            logps.append(prediction.logp.detach())
        values.append(module.value(images(last)))
    log_ratio = _log_ratio(rollout, torch.cat(logps))
    return RolloutPrediction(torch.cat(values), log_ratio, prediction if keep_graph else None)


def _with_memory(
    module: ActorCritic,
    rollout: Rollout,
    observations: RolloutObservations,
    inputs: Inputs,
    needs_log_ratio: bool,
    chunk: int,
    critic_carry: Array | None,
) -> RolloutPrediction:
    """Each column is one sequence, from what the memory held at its start."""
    policy, device, states = module.policy, inputs[0].device, rollout.state

    def encoded(encode: Callable[[Inputs], torch.Tensor]) -> torch.Tensor:
        """Features [T+1, B, F]."""
        pieces = _chunks(inputs, chunk)
        features = [encode(observations.gather_images(piece)) for piece in pieces]
        return torch.cat(features).view(*rollout.first.shape, -1)

    log_ratio, shown = NOTHING, None
    if critic_carry is None or needs_log_ratio:
        assert policy.memory is not None
        first = torch.from_numpy(rollout.first).to(device)
        carry = torch.from_numpy(states[0]).to(device)
        shown, _ = policy.memory(encoded(policy.encoded), first, carry)
    if needs_log_ratio:
        assert shown is not None
        acting, _ = _split_last(rollout, inputs)
        parameters = policy.action_params(shown[:-1].flatten(0, 1), acting)
        logp, _ = policy.logp_and_entropy(parameters, _actions(rollout, device))
        log_ratio = _log_ratio(rollout, logp)
    if critic_carry is not None:
        assert module.value_memory is not None
        features = encoded(module.encoded)
        shown, own, critic_carry = advance_critic(
            module.value_memory, rollout, features, critic_carry
        )
        states = np.concatenate([states, own], -1)
    assert shown is not None
    value = module.value_head(shown.flatten(0, 1))
    return RolloutPrediction(value, log_ratio, None, states, critic_carry)


def advance_critic(
    memory: Memory, rollout: Rollout, features: torch.Tensor, carry: Array
) -> tuple[torch.Tensor, Array, Array]:
    """The critic's own memory over a rollout: what it shows of `features[T+1, B, F]`, [T+1, B, H];
    what it held before each segment and after the last, [K+1, B, S]; and `carry[columns, S]`
    after the rollout.

    The last observation is the next rollout's first, and is not taken in yet.
    """
    steps, length, device = rollout.steps, rollout.segment, features.device
    first, carry = torch.from_numpy(rollout.first).to(device), carry.copy()
    states = np.empty((steps // length + 1, rollout.columns, carry.shape[1]), np.float32)
    shown = None
    for group in groups_without_repeats(rollout.column):
        numbers = rollout.column[group] % len(carry)
        at = torch.from_numpy(np.arange(rollout.columns)[group]).to(device)
        x, starts = features.index_select(1, at), first.index_select(1, at)
        states[0, group] = carry[numbers]
        for k in range(len(states)):  # the last segment is the last observation
            rows = slice(k * length, (k + 1) * length)
            before = torch.from_numpy(states[k, group]).to(device)
            out, after = memory(x[rows], starts[rows], before)
            if shown is None:
                shown = out.new_empty(*first.shape, out.shape[-1])
            shown[rows, at] = out
            if k < len(states) - 1:
                states[k + 1, group] = after.numpy(force=True)
        carry[numbers] = states[-1, group]
    assert shown is not None
    return shown, states, carry


def _split_last(rollout: Rollout, inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Inputs of the R rows, and of the last observations."""
    count = rollout.steps * rollout.columns
    return tuple(part[:count] for part in inputs), tuple(part[count:] for part in inputs)


def _actions(rollout: Rollout, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(rollout.action).to(device).flatten(0, 1)


def _log_ratio(rollout: Rollout, logp: torch.Tensor) -> Array:
    """[T, B] log π − log μ, 0 where not valid."""
    found = logp.numpy(force=True).reshape(rollout.reward.shape)
    return np.where(rollout.valid, found - rollout.logp, np.float32(0.0))


def _chunks(parts: tuple[torch.Tensor, ...], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of several tensors, `size` at a time."""
    return zip(*(part.split(size) for part in parts), strict=True)  # type: ignore[no-untyped-call]
