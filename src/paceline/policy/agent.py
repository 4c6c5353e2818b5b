"""Agent: a trained policy to act with, and how it is loaded from a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from ..config.registry import name_of
from ..envs.adapters import ActionAdapter, ObservationAdapter
from ..envs.spaces import ACTION_MASK
from ..errors import BadInput
from ..rollout import Array
from ..storage import checkpoint
from ..storage.arrays import check_like
from ..storage.files import shown
from .actor import Actor, make_actor
from .network import Encoder, NetworkSpec, flat_axes

if TYPE_CHECKING:
    from .actor_critic import ActorCritic

log = logging.getLogger("paceline")

USER_MODULES = ("encoder", "memory")
"""Parts of a network that may be a class or module of the user."""


class Agent:
    """A network and its weights by name, in the module's order. Greedy unless asked to sample."""

    def __init__(self, network: NetworkSpec, weights: dict[str, Array], seed: int = 0) -> None:
        self.network, self._seed = network, seed
        self._adapt, self._adapter = ActionAdapter(network.act), ObservationAdapter(network.obs)
        self._rows = self._calls = 0
        self.load_weights(weights)
        self.reset()

    def load_weights(self, weights: dict[str, Array]) -> None:
        """Act with these from now on."""
        self.weights = weights
        self._actor: Actor | None = None
        self._critic: ActorCritic | None = None

    def reset(self) -> None:
        """Clear the memory: the next observations given to `act` start episodes."""
        self._carry: Array | None = None

    def actor(self, rows: int) -> Actor:
        """A new actor for `rows` observations at a time."""
        actor, weights = make_actor(self.network, rows), self.weights
        parts = [weights[name] for name in ("obs_mean", "obs_scale") if name in weights]
        acting = ("policy.", "value_") if self.network.acts_with_value else ("policy.",)
        for name, weight in weights.items():
            if name.startswith(acting):
                parts.append(weight.transpose(flat_axes(weight.ndim)).ravel())
        actor.load(np.concatenate(parts).astype(np.float32, copy=False))
        return actor

    def act(self, obs: Any, sample: bool = False, action_mask: Any = None) -> Any:
        """The action for one observation, or an array [rows, ...] of actions for a batch of them.

        A batch of a Dict or Tuple space is a Dict or Tuple of batches. `action_mask` is for
        environments that give theirs in `info`; without one, all actions are allowed. A policy with
        memory keeps it for each row until `reset()` or a batch of another size.
        """
        if action_mask is not None and not self.network.obs.mask:
            raise BadInput("an action_mask for a policy that was trained without any")
        stored, single = self._stored(
            obs, {} if action_mask is None else {ACTION_MASK: action_mask}
        )
        actions = self._actions(stored, sample)
        return self._adapt(actions)[0] if single else self._adapt.batch(actions)

    def values(self, obs: Any) -> Any:
        """The value of one observation, a float, or an array [rows] of those of a batch.

        It estimates the discounted return from there on, of rewards as the learner saw them: with
        `normalize_return` and `clip_reward` these are not the environment's. Where the value
        function has a memory, it counts what `act` saw before `obs`: ask before acting on it.
        """
        import torch

        from .actor_critic import RecurrentInputs
        from .settings import standard_settings

        stored, single = self._stored(obs, {})
        self._critic = self._critic or self._make_module()
        parts = {
            name: torch.from_numpy(part) for name, part in self.network.obs.split(stored).items()
        }
        memory, rows = None, len(stored)
        if self._carry is not None and len(self._carry) == rows:
            first = torch.zeros(1, rows, dtype=torch.bool)
            memory = RecurrentInputs(first, torch.from_numpy(self._carry.copy()))
        with standard_settings(), torch.inference_mode():
            values = self._critic.value(self._critic.inputs(parts), memory)[:, 0].numpy()
        return float(values[0]) if single else values

    def _stored(self, obs: Any, info: Mapping[str, Any]) -> tuple[Array, bool]:
        """Observations [rows, ...] as a rollout stores them, and whether it was a single one."""
        try:
            rows = self._adapter.batched(obs)
            shape, dtype = self.network.obs.stored
            stored = np.zeros((1 if rows is None else rows, *shape), dtype)
            where = 0 if rows is None else slice(None)
            self._adapter.write(self.network.obs.split(stored), where, obs, info)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise BadInput(
                f"this policy takes observations of {self.network.obs}, one or a batch of them, "
                f"not this: {type(error).__name__}: {error}"
            ) from None
        return stored, rows is None

    def _actions(self, obs: Array, sample: bool) -> Array:
        rows = len(obs)
        if rows != self._rows:
            self._actor, self._rows = None, rows
            self.reset()
        if self._actor is None:
            self._actor = self.actor(rows)
        if self._carry is None:
            self._carry = np.zeros((rows, self._actor.carry_size), np.float32)
        head, (shape, dtype) = self._actor.distribution, self.network.act.stored
        parameters = np.empty((rows, head.size), np.float32)
        action = np.empty((rows, *shape), dtype)
        self._actor.step(obs, np.zeros(rows, np.bool_), self._carry, parameters)
        if sample:
            noise = head.noise(self._seed, self._calls, 0, rows, 1)[0]
            self._calls += 1
            head.sample(parameters, noise, action)
        else:
            head.greedy(parameters, action)
        return action

    @property
    def module(self) -> ActorCritic:
        """The policy as a torch module, with these weights."""
        return self._make_module()

    def _make_module(self) -> ActorCritic:
        import torch

        from .actor_critic import ActorCritic
        from .settings import standard_settings

        with standard_settings():
            module = ActorCritic(self.network)
        # Buffers of a user's encoder are not saved: they come from its constructor.
        named = {name: torch.from_numpy(weight) for name, weight in self.weights.items()}
        module.load_state_dict(module.state_dict() | named)
        return module


def locate(source: str | Path) -> tuple[Path, checkpoint.Checkpoint]:
    """Path and content of the checkpoint `source`, or of the newest one of the run `source`."""
    path = Path(source)
    if path.is_symlink() and path.name != "best":
        path = path.resolve()  # the user's own link
    if (path / checkpoint.MANIFEST).exists():
        try:
            return path, checkpoint.load(path)
        except checkpoint.Damaged as damage:
            raise BadInput(str(damage)) from None
    if not (path / "checkpoints").is_dir():
        raise BadInput(
            f"{shown(path)} is neither a run nor a checkpoint: it has no checkpoints in it"
        )
    where, found, problems = checkpoint.load_newest(path / "checkpoints")
    for problem in problems:
        log.warning(f"damaged, passed over: {problem}")
    return where, found


def from_checkpoint(
    path: Path, found: checkpoint.Checkpoint, user_modules: Mapping[str, Encoder | None]
) -> Agent:
    """The policy in a checkpoint. Encoder and memory of the user come from the caller: what a
    checkpoint names is never imported."""
    network = saved_network(path, found)
    parts: dict[str, Any] = {}
    for name in USER_MODULES:
        saved, given = getattr(network, name), user_modules.get(name)
        if saved is not None and given is None:
            raise BadInput(
                f"this policy has {'an' if name == 'encoder' else 'a'} {name} of its own "
                f"({str(saved)[:80]}); say which, with paceline.load(path, {name}=...)"
            )
        parts[name] = given if saved is not None else None
    network = dataclasses.replace(network, **parts)
    try:
        zero = np.zeros((), np.float32)  # broadcast, it takes no memory
        template = {n: np.broadcast_to(zero, shape) for n, shape in _shapes(network).items()}
        check_like(found.weights, template)
    except (ValueError, MemoryError) as error:
        raise BadInput(
            f"{shown(path / 'weights.safetensors')} does not fit the policy in state.json: {error}"
        ) from None
    # safetensors has its own order; actors need the module's.
    return Agent(network, {name: found.weights[name] for name in template})


def saved_network(path: Path, found: checkpoint.Checkpoint) -> NetworkSpec:
    """The network that a checkpoint describes."""
    try:
        return TypeAdapter(NetworkSpec).validate_python(found.facts["network"])
    except (KeyError, ValueError) as error:
        cause = " ".join(str(error).split())[:300]
        text = f"{shown(path / 'state.json')} does not describe a policy ({cause})"
        raise BadInput(text) from None


def _shapes(network: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Of all weights by name, in the module's order."""
    if not network.needs_torch:
        return network.dense_shapes()
    import torch

    from .actor_critic import ActorCritic

    # A user's module has to be constructed for real; ours need not take any memory.
    with torch.device("cpu" if any(getattr(network, name) for name in USER_MODULES) else "meta"):
        try:
            named = ActorCritic(network).named_weights()
        except (RuntimeError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"no such network can be made ({str(error)[:200]})") from None
    return {name: tuple(weight.shape) for name, weight in named.items()}


def network_facts(network: NetworkSpec) -> dict[str, Any]:
    """A network as plain data for JSON, which has no infinity: bounds become text."""
    facts = dataclasses.asdict(dataclasses.replace(network, encoder=None, memory=None))
    for bound in ("low", "high"):
        facts["act"][bound] = [str(number) for number in facts["act"][bound]]
    modules = {name: getattr(network, name) for name in USER_MODULES}
    return facts | {name: name_of(module) for name, module in modules.items() if module is not None}
