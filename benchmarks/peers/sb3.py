"""Stable-Baselines3's side: `learn` on what its own `make_vec_env` gives, without logging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cases import Setting
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from torch import nn
from worker import Train, serve


@contextmanager
def stable_baselines3(
    setting: Setting,
    kind: type[VecEnv] = DummyVecEnv,
    make: Callable[[Setting, Any], Any] | None = None,
) -> Iterator[Train]:
    env = environments(setting, kind)
    if setting.normalize:
        env = VecNormalize(env, gamma=setting.gamma)
    model = (make or algorithm)(setting, env)
    model.set_logger(Logger(folder=None, output_formats=[]))

    def train(iterations: int) -> int:
        before = model.num_timesteps
        model.learn(total_timesteps=iterations * setting.rows, reset_num_timesteps=False)
        return model.num_timesteps - before

    try:
        yield train
    finally:
        env.close()


def environments(setting: Setting, kind: type[VecEnv]) -> Any:
    """Atari with the library's own preprocessing, which is that of the literature."""
    if not setting.env_id.startswith("atari:"):
        return make_vec_env(setting.env_id, n_envs=setting.num_envs, seed=0, vec_env_cls=kind)
    # Gymnasium imports the module that registers it, also in the processes that step it.
    name = f"ale_py:{setting.env_id.removeprefix('atari:')}NoFrameskip-v4"
    env = make_atari_env(name, n_envs=setting.num_envs, seed=0, vec_env_cls=kind)
    return VecFrameStack(env, 4)


def algorithm(setting: Setting, env: Any) -> A2C | PPO:
    """The setting in Stable-Baselines3's words; what it does not name is the default."""
    if setting.algo == "a2c":
        return A2C(**common(setting, env))
    return PPO(**common(setting, env), **of_ppo(setting))


def common(setting: Setting, env: Any) -> dict[str, Any]:
    """Arguments that its algorithms share."""
    found: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": env,
        "n_steps": setting.steps,
        "learning_rate": setting.lr,
        "gamma": setting.gamma,
        "gae_lambda": setting.gae_lambda,
        "ent_coef": setting.entropy_coef,
        "max_grad_norm": setting.max_grad_norm,
        "policy_kwargs": {
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": nn.Tanh,
        },
        "device": "cpu",
        "seed": 0,
        "verbose": 0,
    }
    if setting.env_id.startswith("atari:"):
        found |= {"policy": "CnnPolicy", "policy_kwargs": {}}
    return found


def of_ppo(setting: Setting) -> dict[str, Any]:
    return {
        "n_epochs": setting.epochs,
        "batch_size": setting.rows // setting.minibatches,
        "clip_range": setting.clip,
    }


if __name__ == "__main__":
    serve(stable_baselines3)
