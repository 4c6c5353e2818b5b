"""LiveAgent: the policy of a run while it trains."""

from __future__ import annotations

from ..learning.learner import Learner
from ..policy.actor import Actor
from ..policy.actor_critic import ActorCritic
from ..policy.agent import Agent
from ..policy.network import NetworkSpec
from .checkpointing import copy_weights


class LiveAgent(Agent):
    """The policy that is being trained, with the weights it has at the moment."""

    def __init__(self, network: NetworkSpec, learner: Learner) -> None:
        self._learner: Learner | None = learner
        self._version = learner.version
        super().__init__(network, copy_weights(learner))

    def keep(self) -> None:
        """Change no more."""
        self._refresh()
        self._learner = None

    def _refresh(self) -> None:
        """Take the learner's weights, if they have changed."""
        if self._learner is not None and self._version != self._learner.version:
            self._version = self._learner.version
            self.load_weights(copy_weights(self._learner))

    def actor(self, rows: int) -> Actor:
        self._refresh()
        return super().actor(rows)

    def _fit(self, rows: int) -> None:
        self._refresh()
        super()._fit(rows)

    @property
    def module(self) -> ActorCritic:
        """While the run trains, the module that is being trained: look, and do not change it."""
        return self._learner.module if self._learner is not None else super().module
