"""What `run.log` and numbers from `info` cost: CartPole 8 x 128, compiled, on an idle machine.

    python benchmarks/logging_cost.py [--rounds 7] [--duration 8s]

The same environment, which puts three numbers into its last `info`, is trained in turns: without
any of them logged, and with all of them and three more of the loop's own at every iteration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SCRIPT = """
import sys
import paceline
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Scored(CartPoleEnv):
    def reset(self, **options):
        self.steps = 0
        return super().reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if terminated:
            info = {"success": self.steps >= 195, "score": self.steps / 500, "x": float(obs[0])}
        return obs, reward, terminated, truncated, info

if __name__ == "__main__":
    logs, duration = sys.argv[1] == "on", sys.argv[2]
    config = paceline.Config(
        env_id=Scored, preset="none", num_envs=8, rollout_steps=128, epochs=4, minibatches=4,
        env={"time_limit": 500}, compile="on", track="tensorboard", eval_episodes=0, seed=3,
        duration=duration, output_dir="run", log_info="auto" if logs else "none",
    )
    run = paceline.train(config)
    for report in run:
        if logs:
            run.log(one=report.iter, two=report.steps / 2, three=report.fps)
"""


def speed(logs: str, duration: str) -> float:
    """Steps per second after the first fifth of a run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(SCRIPT)
        subprocess.run([sys.executable, "script.py", logs, duration], cwd=folder, check=True)
        text = Path(folder, "run", "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert ("success" in lines[-1] and "one" in lines[-1]) == (logs == "on")
    first = lines[len(lines) // 5]
    return (lines[-1]["steps"] - first["steps"]) / (lines[-1]["time"] - first["time"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--duration", default="8s")
    options = parser.parse_args()
    ratios, off, on = [], [], []
    for number in range(options.rounds):
        order = ("off", "on") if number % 2 else ("on", "off")
        found = {logs: speed(logs, options.duration) for logs in order}
        off.append(found["off"])
        on.append(found["on"])
        ratios.append(found["on"] / found["off"])
        print(f"off {off[-1]:,.0f}  on {on[-1]:,.0f}  ratio {ratios[-1]:.3f}", flush=True)
    print(
        f"medians {median(off):,.0f} and {median(on):,.0f} steps/s, ratio "
        f"{median(on) / median(off):.3f}; of rounds {median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
