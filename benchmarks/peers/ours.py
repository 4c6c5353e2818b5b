"""Paceline's side: the ring itself, as `paceline train` runs it, without files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from cases import Setting
from worker import NotOffered, Train, serve

from paceline import Config
from paceline.config.schema import EnvConfig
from paceline.ring import ring
from paceline.run.budget import Budget, Progress
from paceline.run.build import build


@contextmanager
def paceline(setting: Setting) -> Iterator[Train]:
    config = configuration(setting)
    with build(config) as parts:
        progress = Progress()
        reports = ring(parts, Budget(steps=10**12), progress, config.log_every)

        def train(iterations: int) -> int:
            """A report may cover several iterations; the last one is waited for."""
            before, until = progress.steps, progress.iter + iterations
            while progress.iter < until:
                next(reports)
            return progress.steps - before

        yield train


def configuration(setting: Setting) -> Config:
    """The setting in Paceline's words; what it does not name is the default."""
    env: dict[str, Any] = {}
    if setting.vector:
        if "vector" not in {entry.name for entry in fields(EnvConfig)}:
            raise NotOffered("this Paceline has no option env.vector")
        env["vector"] = True
    algorithm: dict[str, Any] = {
        "gae_lambda": setting.gae_lambda,
        "entropy_coef": setting.entropy_coef,
    }
    if setting.algo == "ppo":  # the others standardize each minibatch, so this one must
        algorithm |= {"clip": setting.clip, "normalize_advantage": "minibatch"}
    return Config(
        algo=setting.algo,
        env_id=setting.env_id,
        preset="none",
        num_envs=setting.num_envs,
        num_workers=setting.workers,
        rollout_steps=setting.steps,
        epochs=setting.epochs,
        minibatches=setting.minibatches,
        lr=setting.lr,
        gamma=setting.gamma,
        max_grad_norm=setting.max_grad_norm,
        normalize_obs=setting.normalize,
        normalize_return=setting.normalize,
        hidden=(64, 64),
        activation="tanh",
        memory=setting.memory or None,
        shared_trunk=False,
        compile=setting.compile,
        device="cpu",
        threads=1,
        env=env,
        **{setting.algo: algorithm},
    )


if __name__ == "__main__":
    serve(paceline)
