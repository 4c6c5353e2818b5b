"""What is compared: each case is one setting, run by Paceline and by each of its peers.

Standard library only: every side reads it, in whichever environment it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PEERS = {
    "sb3": "Stable-Baselines3",
    "subproc": "Stable-Baselines3 with SubprocVecEnv",
    "recurrent": "RecurrentPPO of sb3-contrib",
    "textbook": "the textbook loop",
}
"""Whom Paceline is measured against, by the name of the side."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The work of one iteration, the same on every side."""

    algo: str = "ppo"
    env_id: str = "CartPole-v1"
    num_envs: int = 8
    steps: int = 128
    """of each environment in one rollout"""
    epochs: int = 4
    minibatches: int = 4
    lr: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5
    normalize: bool = False
    """running statistics of observations and of returns"""
    compile: str = "on"
    """Paceline's own option: `on` or `off`"""
    memory: str = ""
    """recurrent cell: `lstm`; on our side also `gru` and `mingru`"""
    vector: bool = False
    """Paceline's own option: Gymnasium's vector entry point instead of Python environments"""

    workers: int = 0
    """Paceline's own option: worker processes"""
    threads: int = 1
    """of the learner"""

    @property
    def rows(self) -> int:
        return self.num_envs * self.steps

    @property
    def title(self) -> str:
        """The setting in words, without what all cases share."""
        parts = [f"{self.algo.upper()} on {self.env_id}, {self.num_envs} envs × {self.steps}"]
        if self.algo == "ppo":
            parts.append(f"{self.epochs} epochs × {self.minibatches} minibatches")
        if self.memory:
            parts.append(f"{self.memory} for policy and value")
        if self.normalize:
            parts.append("normalized")
        if self.lr == 0:
            parts.append("learning rate 0")
        if self.vector:
            parts.append("vector entry point")
        if self.workers:
            parts.append(f"{self.workers} workers")
        parts.append("compiled" if self.compile == "on" else "eager")
        return ", ".join(parts)


@dataclass(frozen=True)
class Case:
    setting: Setting
    iterations: int
    """of one measurement; the same on every side, so that all have learned equally much"""
    peers: tuple[str, ...] = ("sb3",)


A2C = Setting(
    algo="a2c", steps=5, epochs=1, minibatches=1, lr=7e-4, gae_lambda=1.0, entropy_coef=0.0
)

CASES = {
    "a": Case(Setting(compile="off"), 60),
    "b": Case(Setting(), 60),
    "c": Case(Setting(num_envs=64), 20),
    "d": Case(Setting(num_envs=64, vector=True), 20),
    "e": Case(
        Setting(env_id="HalfCheetah-v5", steps=256, epochs=10, minibatches=32, normalize=True), 5
    ),
    # At a learning rate of 0 every side stays with a random policy, and so in the same world: how
    # long a lander's step takes depends on what it touches.
    "f": Case(Setting(env_id="LunarLander-v3", num_envs=16, lr=0.0), 15, peers=("sb3", "textbook")),
    # Both libraries' defaults. Paceline compiles by itself where a run is long enough.
    "g": Case(replace(A2C, compile="off"), 500),
    "h": Case(A2C, 500),
    # Two cores for everybody: Stable-Baselines3 may choose how to use them.
    "i": Case(
        Setting(env_id="LunarLander-v3", num_envs=16, lr=0.0, workers=2), 10, ("sb3", "subproc")
    ),
    # An LSTM of 64 for actor and critic each, on whole rollouts of every environment.
    "j": Case(Setting(memory="lstm", compile="off"), 10, ("recurrent",)),
    "k": Case(Setting(memory="mingru"), 10, ("recurrent",)),
}
