"""Does bfloat16 learn the same? Paired seeds on an image task, and the first minibatch's ratio.

    python benchmarks/precision.py --seeds 8

The task is small enough to finish on a CPU without instructions for bfloat16, where it is emulated:
what is learned is the same there, and how fast is not asked. Writes
benchmarks/results/precision.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import paceline
from paceline.run import choices
from paceline.run.build import build

TASK: dict[str, Any] = {
    "env_id": "toy:identity",
    "env": {"kwargs": {"image": True, "size": 6, "length": 10}},
    "preset": "images",
    "encoder": "small",
    "hidden": (64,),
    "num_envs": 8,
    "rollout_steps": 64,
    "total_steps": 12_000,
    "track": "none",
    "device": "cpu",
    "threads": 1,
    "eval_episodes": 50,
}


def learned(precision: str, seed: int) -> dict[str, float]:
    """The mean return over training, and of the policy at its end."""
    with tempfile.TemporaryDirectory() as folder:
        config = paceline.Config(**TASK, precision=precision, seed=seed, output_dir=f"{folder}/run")
        returns = [report.episode_return for report in paceline.train(config)]
        final = json.loads((Path(folder) / "run" / "eval.json").read_text())["mean"]
    return {"area": float(np.mean([r for r in returns if r is not None])), "final": final}


def ratios(precision: str, env_id: str, **options: Any) -> dict[str, float]:
    """How far the first minibatch's probability ratios are from 1."""
    config = paceline.Config(
        env_id=env_id, precision=precision, device="cpu", total_steps=10**6, **options
    )
    with build(config) as parts:
        sampler, learner = parts.sampler, parts.learner
        assert sampler is not None
        sampler.begin()
        rollout = sampler.collect()
        seen = learner.observations(rollout)
        inputs = learner.module.inputs(seen.parts)
        rows = rollout.reward.size // config.minibatch_count
        minibatch = seen.gather_images(tuple(part[:rows] for part in inputs))
        with torch.no_grad():
            action = torch.from_numpy(rollout.action).flatten(0, 1)[:rows]
            logp = learner.module.predict(minibatch, action).logp.numpy()
        away = np.abs(np.exp(logp - rollout.logp.ravel()[:rows]) - 1)
    return {"mean": float(away.mean()), "max": float(away.max())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    emulated = choices.bf16_missing(False)
    choices.bf16_missing = lambda gpu: None  # type: ignore[assignment]
    found: dict[str, Any] = {"emulated": emulated, "runs": []}
    for env_id, more in (
        ("atari:Pong", {"num_envs": 4, "rollout_steps": 64}),
        ("procgen:coinrun", {"num_envs": 4, "rollout_steps": 64}),
    ):
        found[env_id] = ratios("bf16", env_id, **more)
        print(f"{env_id}: first ratios differ from 1 by {found[env_id]}", flush=True)
    for seed in range(options.seeds):
        row = {precision: learned(precision, seed) for precision in ("fp32", "bf16")}
        found["runs"].append(row)
        print(f"seed {seed}: {row}", flush=True)
    for what in ("area", "final"):
        differences = [row["bf16"][what] - row["fp32"][what] for row in found["runs"]]
        found[what] = sign_flips(differences)
        print(f"{what}: mean difference {np.mean(differences):+.3f}, p {found[what]:.2f}")
    file = Path(__file__).parent / "results" / "precision.json"
    file.write_text(json.dumps(found, indent=1))


def sign_flips(differences: list[float]) -> float:
    """The exact two-sided p of a sign-flip test of their mean: every choice of signs."""
    size = len(differences)
    flips = np.array([[1 if k >> i & 1 else -1 for i in range(size)] for k in range(2**size)])
    means = np.abs((flips * np.array(differences)).mean(1))
    return float((means >= abs(np.mean(differences)) - 1e-12).mean())


if __name__ == "__main__":
    main()
