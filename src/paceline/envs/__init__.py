"""Where environments come from. A suite is one file with a function from name to environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout
from .columns import Resume
from .maker import EnvId, source_of
from .replaying import Difference
from .spaces import ActionSpec, ObservationSpec

__all__ = ["Columns", "EnvId", "source_of"]


class Columns(Protocol):
    """Environments stepped side by side, under next-step autoreset: what a sampler needs."""

    num_envs: int
    columns_per_env: int
    """agents of one environment, each a column; those of an environment are side by side"""
    first_column: int
    """number of the first, over all processes"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    row: int
    """rows stepped since the run began"""
    episode: Array
    """number of each environment's episode"""
    started: Array
    """row of the first observation of each environment's episode"""
    ended: Any
    """the next row of this environment only resets"""
    failures: int
    """environments that raised and were rebuilt"""
    heartbeat: Heartbeat
    """`heartbeat.beats` changes with every environment's step and reset, where these are slow"""

    resume: Resume

    def adapt(self, action: Array) -> Any:
        """From a policy's actions to what `step` takes."""

    def reset(self, obs: Array) -> None:
        """Begin the first episode of every environment; `obs[B]` receives its observations."""

    def step(self, t: int, actions: Any, out: Rollout) -> None:
        """Row `t` of `out`, whose flags have been cleared: step every environment, or reset it.

        Also writes `valid`: False for every column of one that is reset, and for an agent that is
        dead or absent, whose reward is then 0 and whose observation stays. In teams it writes
        `stepped` and `over`, the same for all agents of an environment.
        """

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[Difference]:
        """Bring each environment with actions, one row for each step and agent, to the
        observations `expected[B]` and its return so far; which ones came out otherwise.

        Called after `restore`, where `resume` is "replay"; one that has ended has None.
        """

    def state(self) -> dict[str, Array]: ...

    def restore(self, state: dict[str, Array]) -> None: ...

    def close(self) -> None: ...
