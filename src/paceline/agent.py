"""Agent: a saved policy that acts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checkpoint
from .errors import BadInput
from .policy.actor import Actor, make_actor
from .policy.network import STORED_AS, NetworkSpec
from .rollout import Array
from .spaces import ActionAdapter, ActionSpec, ObservationSpec

if TYPE_CHECKING:
    from .policy.actor_critic import ActorCritic


class Agent:
    """A network and its weights. Greedy unless asked to sample."""

    def __init__(self, network: NetworkSpec, weights: dict[str, Array], seed: int = 0) -> None:
        self.network, self.weights, self._seed = network, weights, seed
        self._adapt = ActionAdapter(network.act)
        self._actor: Actor | None = None
        self._rows = self._calls = 0

    def actor(self, rows: int) -> Actor:
        """An actor of its own for `rows` observations at a time."""
        actor = make_actor(self.network, rows)
        actor.load(published(self.network, self.weights))
        return actor

    def act(self, obs: Any, sample: bool = False) -> Any:
        """The action for one observation, or a list of actions for a batch of them."""
        spec = self.network.obs
        obs = np.asarray(obs, spec.dtype)
        single = obs.shape == spec.shape
        if not single and obs.shape[1:] != spec.shape:
            raise BadInput(f"an observation of shape {obs.shape}; this policy takes {spec.shape}")
        actions = self._adapt(self._actions(obs[None] if single else obs, sample))
        return actions[0] if single else actions

    def _actions(self, obs: Array, sample: bool) -> Array:
        rows, size = len(obs), self.network.act.size
        if self._actor is None or rows != self._rows:
            self._actor, self._rows = self.actor(rows), rows
        shape, dtype = self.network.act.stored
        parameters, action = np.empty((rows, size), np.float32), np.empty((rows, *shape), dtype)
        self._actor.forward(obs, parameters)
        if sample:
            noise = self._actor.head.noise(self._seed, self._calls, 0, rows, 1)[0]
            self._calls += 1
            self._actor.head.sample(parameters, noise, action)
        else:
            self._actor.head.greedy(parameters, action)
        return action

    @property
    def module(self) -> ActorCritic:
        """The policy as a torch module, with these weights."""
        import torch

        from .policy.actor_critic import ActorCritic

        module = ActorCritic(self.network)
        module.load_state_dict({k: torch.from_numpy(v) for k, v in self.weights.items()})
        return module


def published(network: NetworkSpec, weights: dict[str, Array]) -> Array:
    """Named weights, in the module's order, as the flat array that actors read."""
    parts = [weights[name] for name in ("obs_mean", "obs_scale") if name in weights]
    for name, weight in weights.items():
        if name.startswith("policy."):
            parts.append(weight.transpose(STORED_AS[weight.ndim]).ravel())
    return np.concatenate(parts).astype(np.float32, copy=False)


def load(source: str | Path) -> Agent:
    """The policy of a run's newest checkpoint, or of one checkpoint's directory."""
    _, found = locate(source)
    return from_checkpoint(found)


def locate(source: str | Path) -> tuple[Path, checkpoint.Checkpoint]:
    """The checkpoint that `source`, a run or a checkpoint itself, stands for."""
    path = Path(source)
    if (path / checkpoint.MANIFEST).is_file():
        try:
            return path, checkpoint.load(path)
        except checkpoint.Damaged as damage:
            raise BadInput(str(damage)) from None
    if not (path / "checkpoints").is_dir():
        raise BadInput(f"{path} is neither a run nor a checkpoint: it has no checkpoints in it")
    where, found, _ = checkpoint.newest(path / "checkpoints")
    return where, found


def from_checkpoint(found: checkpoint.Checkpoint) -> Agent:
    try:
        # safetensors keeps an order of its own; actors need the module's.
        weights = {name: found.weights[name] for name in found.facts["weights"]}
        return Agent(network_from(found.facts["network"]), weights)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise BadInput(
            f"the checkpoint's state.json does not describe a policy ({cause})"
        ) from None


def network_facts(network: NetworkSpec) -> dict[str, Any]:
    """A network's description as plain data; JSON has no infinity, so bounds become text."""
    facts = dataclasses.asdict(network)
    for bound in ("low", "high"):
        facts["act"][bound] = [str(number) for number in facts["act"][bound]]
    return facts


def network_from(facts: dict[str, Any]) -> NetworkSpec:
    """The description that `network_facts` wrote."""

    def tuples(values: dict[str, Any]) -> dict[str, Any]:
        return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}

    rest = {k: v for k, v in tuples(facts).items() if k not in ("obs", "act")}
    act = tuples(facts["act"])
    for bound in ("low", "high"):
        act[bound] = tuple(float(number) for number in act[bound])
    return NetworkSpec(obs=ObservationSpec(**tuples(facts["obs"])), act=ActionSpec(**act), **rest)
