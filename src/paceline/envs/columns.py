"""Columns: environments stepped side by side under next-step autoreset. B = columns.

Every episode is reset with a seed of its own, so that it can be replayed from its actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import pack
from typing import Any, Literal, Protocol, Self

import numpy as np

from ..processes.heartbeat import Heartbeat
from ..rollout import Array, Rollout
from .info import InfoReader
from .spaces import ActionSpec, ObservationSpec

Resume = Literal["replay", "state", "none"]
"""How open episodes are restored: replayed from their actions, from a saved state, or not."""
ReplayMismatch = tuple[int, str]
"""An environment whose replayed episode differs from the saved one, and in what it differs."""
RETURN_TOLERANCE = 1e-9
"""Relative. A rollout sums rewards in float64 from its first row on, those of earlier episodes
included, so a return that was summed over one episode alone differs in its last bits."""


def episode_seed(run_seed: int, column: int, episode: int) -> int:
    """The seed of a column's episode: a hash, so that neighbors share nothing."""
    digest = blake2b(pack("<qqq", run_seed, column, episode), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


class Columns(Protocol):
    """What a sampler needs of environments that are stepped side by side.

    A subclass inherits the counters and what checkpoints hold of them.
    """

    num_envs: int
    seed: int
    """of the run"""
    columns_per_env: int = 1
    """agents of one environment; each is a column, and those of an environment are adjacent"""
    first_column: int
    """number of the first column, counted over all processes"""
    obs_spec: ObservationSpec
    act_spec: ActionSpec
    row: int
    """rows stepped since the run began"""
    episode: Array
    """[num_envs] number of the current episode"""
    started: Array
    """[num_envs] row of the current episode's first observation"""
    ended: Any
    """[num_envs] the episode is over: the next row only resets this environment"""
    failures: int = 0
    """environments that raised and were rebuilt"""
    heartbeat: Heartbeat
    """`heartbeat.beats` changes with every step and reset of an environment"""
    resume: Resume
    read_info: InfoReader | None = None
    """from the info of an episode's last step to the numbers that are logged; None: nothing is"""
    adapt: Callable[[Array], Any]
    """from a policy's actions [B, ...] to what `step` takes"""

    def __init__(self, num_envs: int, seed: int, first_column: int) -> None:
        self.num_envs, self.seed, self.first_column = num_envs, seed, first_column
        self.heartbeat = Heartbeat()
        self.row = 0
        self.episode = np.full(num_envs, -1, np.int64)
        self.started = np.zeros(num_envs, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def reset(self, obs: Array) -> None:
        """Begin the next episode of every environment; writes its observation to `obs[B]`."""

    def step(self, t: int, actions: Any, out: Rollout) -> None:
        """Write row `t` of `out`, whose flags are cleared: step or reset every environment.

        `valid` is False for all columns of an environment that is reset, and for an agent that is
        dead or absent, whose reward is 0 and whose observation is repeated. With several agents,
        `stepped` and `over` are written too, the same for all columns of an environment. What
        `read_info` finds at an episode's end goes into `out.final_info[t, environment]`.
        """

    def replay(
        self, actions: Sequence[Array | None], expected: Array, returns: Array
    ) -> list[ReplayMismatch]:
        """Bring each environment back to its observation `expected[B]` by repeating its actions.

        `actions` has one row per step and agent, None where the episode has ended; `returns` are
        the returns so far. Called after `restore`, and only where `resume` is "replay".
        """

    def state(self) -> dict[str, Array]:
        """What a checkpoint needs in addition to the actions of open episodes."""
        return {
            "row": np.array(self.row),
            "episode": self.episode.copy(),
            "started": self.started.copy(),
            "ended": np.array(self.ended),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Take the counters from `state`; the caller then replays or resets."""
        self.row = int(state["row"])
        self.episode[:] = state["episode"]
        self.started[:] = state["started"]
        self.ended[:] = state["ended"].tolist()


def replay_mismatch(
    spec: ObservationSpec, seen: Array, expected: Array, gap: float, magnitude: float, ended: bool
) -> str:
    """In what a replayed episode differs from the saved one; "" if it is the same.

    `gap` lies between the returns, and `magnitude` is the sum of the rewards' absolute values.
    """
    if ended:
        return "ended"
    parts = zip(spec.split(seen).values(), spec.split(expected).values(), strict=True)
    same = all(now.tobytes() == then.tobytes() for now, then in parts)
    kinds = [] if same else ["observation"]
    if not abs(gap) <= RETURN_TOLERANCE * (1.0 + magnitude):
        kinds.append("reward")
    return " and ".join(kinds)
