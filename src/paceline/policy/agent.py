"""Agent: a trained policy to act with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..envs.adapters import ActionAdapter, ObservationAdapter
from ..envs.spaces import ACTION_MASK
from ..envs.wrappers import ACTION, REWARD, joined
from ..errors import BadInput
from ..rollout import Array
from .actor import Actor, Critic, NumpyCritic, make_actor
from .network import NetworkSpec, flat_axes

if TYPE_CHECKING:
    from .actor_critic import ActorCritic


@dataclass(frozen=True)
class AgentState:
    """What a policy remembers of R rows; `Agent.step` returns it and takes it."""

    first: Array
    """[R] the next observation starts an episode"""
    carry: Array
    """[R, S] the policy's memory"""
    critic: Array
    """[R, S] the memory of a critic that has its own"""
    action: Array
    """[R, ...] the latest actions, as the policy gave them, for one that is shown them"""

    def restarted(self, where: Any) -> AgentState:
        """With new episodes in the rows `where` (a mask [R], an index, or several)."""
        first = self.first.copy()
        first[where] = True
        return dataclasses.replace(self, first=first)


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
        self._critic: Critic | None = None

    def reset(self) -> None:
        """Clear the memory: the next observations given to `act` start episodes."""
        self._state: AgentState | None = None

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

    def act(
        self, obs: Any, sample: bool = False, action_mask: Any = None, reward: Any = None
    ) -> Any:
        """The action for one observation, or an array [rows, ...] of actions for a batch of them.

        A batch of a Dict or Tuple space is a Dict or Tuple of batches. `action_mask` is for
        environments that give theirs in `info`; without one, all actions are allowed. A policy with
        memory keeps it for each row until `reset()` or a batch of another size; one that is shown
        the previous reward is given it as `reward`.
        """
        stored, single = self._stored(obs, action_mask, self._state, reward)
        if self._state is None or len(self._state.first) != len(stored):
            self._state = None
        actions, self._state = self._step(stored, self._state, sample)
        return self._adapt(actions)[0] if single else self._adapt.batch(actions)

    def step(
        self,
        obs: Any,
        state: AgentState | None = None,
        reward: Any = None,
        sample: bool = False,
        action_mask: Any = None,
    ) -> tuple[Any, AgentState]:
        """As `act`, with a memory that the caller keeps: the action, and the state after it.

        Without a state all rows start an episode; where some do, pass `state.restarted(rows)`.
        """
        stored, single = self._stored(obs, action_mask, state, reward)
        if state is not None:
            self._check_state(state, len(stored))
        actions, state = self._step(stored, state, sample)
        return (self._adapt(actions)[0] if single else self._adapt.batch(actions)), state

    def values(self, obs: Any, reward: Any = None) -> Any:
        """The value of one observation, a float, or an array [rows] of those of a batch.

        It estimates the discounted return from there on, of rewards as the learner saw them: with
        `normalize_return` and `clip_reward` these are not the environment's. Where the value
        function has a memory, it counts what `act` saw before `obs`: ask before acting on it.
        """
        stored, single = self._stored(obs, None, self._state, reward)
        rows = len(stored)
        self._fit(rows)
        state = self._state
        if state is None or len(state.first) != rows:
            state = self._new_state(rows)
        carry = state.critic if self.network.critic_memory else state.carry
        values = self._value_function(rows).step(stored, state.first, carry.copy())[:, 0]
        return float(values[0]) if single else values.copy()

    def _stored(
        self, obs: Any, action_mask: Any, state: AgentState | None, reward: Any
    ) -> tuple[Array, bool]:
        """Observations [rows, ...] as a rollout stores them, and whether it was a single one."""
        if action_mask is not None and not self.network.obs.mask:
            raise BadInput("an action_mask for a policy that was trained without any")
        info = {} if action_mask is None else {ACTION_MASK: action_mask}
        try:
            obs = self._with_memory_inputs(obs, state, reward)
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

    def _with_memory_inputs(self, obs: Any, state: AgentState | None, reward: Any) -> Any:
        """The observation with the previous action and reward, if the policy is shown them."""
        paths = {leaf.path[0] for leaf in self.network.obs.leaves if leaf.path}
        wanted = [key for key in (ACTION, REWARD) if key in paths]
        if not wanted or (isinstance(obs, Mapping) and all(key in obs for key in wanted)):
            return obs
        rows = self._adapter.batched(joined(obs, {}), but=wanted)
        if state is not None and len(state.first) != (1 if rows is None else rows):
            state = None
        if state is not None and reward is None and REWARD in wanted and not state.first.all():
            raise BadInput(
                "this policy is shown the reward of its previous action; pass it as reward=..., "
                "or call reset() where an episode starts"
            )
        count = 1 if rows is None else rows
        shown = {REWARD: np.zeros((count, 1), np.float32), ACTION: self._no_action(count)}
        if state is not None:
            going = ~state.first
            shown[ACTION][going] = self._shown_action(state.action)[going]
            if reward is not None:
                shown[REWARD][going] = np.reshape(reward, (count, 1))[going]
        single = rows is None
        return joined(obs, {key: shown[key][0] if single else shown[key] for key in wanted})

    def _no_action(self, rows: int) -> Array:
        """What is shown at an episode's start."""
        spec = self.network.act
        return np.zeros((rows, *spec.shape), np.float32 if spec.kind == "box" else np.int64)

    def _shown_action(self, action: Array) -> Array:
        """As `MemoryInputs` shows it: choices count from 1."""
        spec = self.network.act
        if spec.kind == "box":
            return self._adapt.batch(action).astype(np.float32)
        return (action + 1).reshape(len(action), *spec.shape)

    def _step(self, obs: Array, state: AgentState | None, sample: bool) -> tuple[Array, AgentState]:
        rows = len(obs)
        self._fit(rows)
        if self._actor is None:
            self._actor = self.actor(rows)
        if state is None:
            state = self._new_state(rows)
        head, (shape, dtype) = self._actor.distribution, self.network.act.stored
        parameters = np.empty((rows, head.size), np.float32)
        action = np.empty((rows, *shape), dtype)
        carry, critic = state.carry.copy(), state.critic.copy()
        self._actor.step(obs, state.first, carry, parameters)
        if self.network.critic_memory:
            self._value_function(rows).step(obs, state.first, critic)
        if sample:
            noise = head.noise(self._seed, self._calls, 0, rows, 1)[0]
            self._calls += 1
            head.sample(parameters, noise, action)
        else:
            head.greedy(parameters, action)
        return action, AgentState(np.zeros(rows, np.bool_), carry, critic, action)

    def _check_state(self, state: AgentState, rows: int) -> None:
        if len(state.first) != rows:
            raise BadInput(f"{rows} observations, and a state of {len(state.first)} rows")
        mine = self._new_state(rows)
        for name in ("carry", "critic", "action"):
            given, own = getattr(state, name).shape, getattr(mine, name).shape
            if given != own:
                raise BadInput(
                    f"the state is of another policy: its {name} is {given}, and this one's {own}"
                )

    def _fit(self, rows: int) -> None:
        """Actor and critic are made for a number of rows."""
        if rows != self._rows:
            self._actor, self._critic, self._rows = None, None, rows

    def _new_state(self, rows: int) -> AgentState:
        actor = self._actor = self._actor or self.actor(rows)
        own = self._value_function(rows).carry_size if self.network.critic_memory else 0
        shape, dtype = self.network.act.stored
        return AgentState(
            np.ones(rows, np.bool_),
            np.zeros((rows, actor.carry_size), np.float32),
            np.zeros((rows, own), np.float32),
            np.zeros((rows, *shape), dtype),
        )

    def _value_function(self, rows: int) -> Critic:
        if self._critic is None:
            if self.network.needs_torch:
                from .torch_actor import TorchCritic

                self._critic = TorchCritic(self._make_module())
            else:
                self._critic = NumpyCritic(self.network, rows, self.weights)
        return self._critic

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
