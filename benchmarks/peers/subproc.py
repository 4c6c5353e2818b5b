"""Stable-Baselines3's side with a process for every environment."""

from __future__ import annotations

from functools import partial

from sb3 import stable_baselines3
from stable_baselines3.common.vec_env import SubprocVecEnv
from worker import serve

if __name__ == "__main__":
    serve(partial(stable_baselines3, kind=SubprocVecEnv))
