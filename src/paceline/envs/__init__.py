"""Where environments come from. A suite is one file with a function from name to environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..rollout import Array, Pulse, Rollout
from ..spaces import ActionSpec, ObservationSpec
from .columns import Resume
from .maker import EnvId, env_maker, source_of
from .replaying import Difference

__all__ = ["Columns", "EnvId", "env_maker", "source_of"]


class Columns(Protocol):
    """Environments stepped side by side, under next-step autoreset: what a sampler needs."""

    num_envs: int
    first_column: int
    """number of the first, over all processes"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    row: int
    """rows stepped since the run began"""
    episode: Array
    """number of each column's episode"""
    started: Array
    """row of the first observation of each column's episode"""
    ended: Any
    """the next row of this column only resets"""
    failures: int
    """environments that raised and were rebuilt"""
    pulse: Pulse
    """`pulse[1]` changes with every environment's step and reset, where these are slow"""

    resume: Resume

    def adapt(self, action: Array) -> Any:
        """From a policy's actions to what `step` takes."""

    def reset(self, obs: Array) -> None:
        """Begin the first episode of every column; `obs[B]` receives its observations."""

    def step(self, t: int, actions: Any, out: Rollout) -> None:
        """Row `t` of `out`, whose flags have been cleared: step every column, or reset it."""

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[Difference]:
        """Bring each column with actions to the observation `expected[B]` and the return so far,
        `returns[B]`; which ones came out otherwise.

        Called after `restore`, where `resume` is "replay"; a column that has ended has None.
        """

    def state(self) -> dict[str, Array]: ...

    def restore(self, state: dict[str, Array]) -> None: ...

    def close(self) -> None: ...
