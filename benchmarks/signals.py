"""The first signal, in twenty situations: acknowledged, ended, saved, exit code.

    python benchmarks/signals.py [--only WORD]

Every run steps an environment that takes 2 ms a step, so that an iteration takes about half a
second and an episode of the evaluation up to one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENT = """
import sys, time
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Slow(CartPoleEnv):
    def __init__(self, making=0.0):
        super().__init__()
        print("an environment is being made", file=sys.stderr, flush=True)
        time.sleep(making)

    def step(self, action):
        time.sleep(0.002)
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, False, truncated, info

gym.register("Slow-v0", Slow, max_episode_steps=500)
"""
SCRIPT = """
import logging, sys, time
import paceline

if __name__ == "__main__":
    logging.basicConfig(level=15, format="%(message)s")
    config = paceline.Config(**{options})
    for report in paceline.train(config):
        if {sleeps} and report.iter == 4:
            print("in the loop's body", flush=True)
            time.sleep(60)
"""
OPTIONS = {
    "env_id": "slow:Slow-v0",
    "preset": "none",
    "num_envs": 4,
    "rollout_steps": 64,
    "hidden": [64, 64],
    "compile": "off",
    "track": "none",
    "total_iters": 1000,
    "eval_episodes": 20,
    "output_dir": "run",
}
WAYS = {
    "serial": {},
    "workers": {"num_workers": 2},
    "ranks": {"ranks": 2, "num_envs": 2},
    "a3c": {"algo": "a3c", "num_workers": 2},
}
PHASES = {
    "starting": ({"env": {"kwargs": {"making": 3.0}}}, "an environment is being made"),
    "compiling": ({"compile": "on", "hidden": [64, 63]}, "compiling the minibatch step"),
    "training": ({}, None),
    "body": ({}, "in the loop's body"),
    "evaluating": ({"eval_every": 700}, "evaluating: "),
    "final evaluation": ({"total_iters": 3}, "evaluating: "),
}
"""Options, and what shows that the run is there (None: lines of metrics)."""
CASES = [
    *(("command", "serial", phase) for phase in PHASES if phase != "body"),
    *(("command", "workers", p) for p in ("starting", "compiling", "training", "evaluating")),
    *(("command", "ranks", p) for p in ("starting", "compiling", "training", "final evaluation")),
    ("command", "a3c", "training"),
    *(("Python", "serial", phase) for phase in ("training", "body", "evaluating")),
    *(("Python", way, "training") for way in ("workers", "ranks")),
    ("Python", "ranks", "starting"),
]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Process:
    """A command whose output is read as it comes, with the time of each line."""

    command: list[str]
    folder: str
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        cache = str(Path(self.folder) / "cache")  # so that compiling takes its time
        env = os.environ | {"PYTHONPATH": self.folder, "TORCHINDUCTOR_CACHE_DIR": cache}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(self.command, cwd=self.folder, env=env, **streams)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def first(self, text: str, after: float = 0.0) -> float | None:
        found = (when for when, line in list(self.lines) if text in line and when >= after)
        return next(found, None)


def metrics(folder: str) -> list[dict]:
    path = Path(folder) / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trial(how: str, way: str, phase: str, number: signal.Signals, folder: str) -> dict:
    Path(folder, "slow.py").write_text(ENVIRONMENT)
    more, shows = PHASES[phase]
    options = OPTIONS | WAYS[way] | more
    if how == "Python":
        script = SCRIPT.format(options=options, sleeps=phase == "body")
        Path(folder, "script.py").write_text(script)
        command = [sys.executable, "script.py"]
    else:
        Path(folder, "config.json").write_text(json.dumps(options))
        command = [sys.executable, "-m", "paceline", "train", "--config", "config.json"]
    running = Process(command, folder)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and running.process.poll() is None:
        if len(metrics(folder)) >= 3 if shows is None else running.first(shows):
            break
        time.sleep(0.02)
    time.sleep(0.3)
    sent = time.monotonic()
    running.process.send_signal(number)
    code = running.process.wait(60)
    ended = time.monotonic()
    time.sleep(0.1)
    said = running.first(": saving" if phase == "body" else "finishing this iteration", sent)
    lines = metrics(folder)
    checkpoints = sorted(path.name for path in Path(folder, "run", "checkpoints").glob("0*"))
    saved = not lines or checkpoints[-1:] == [f"{lines[-1]['iter']:08d}"]
    return {
        "case": f"{how}, {way}, {phase}",
        "signal": number.name,
        "acknowledged": round(min(said or ended, ended) - sent, 2),
        "ended": round(ended - sent, 2),
        "iteration": round(max((line["t_iter"] for line in lines), default=0.0), 2),
        "saved": saved,
        "code": code,
        "right code": code == (-number if how == "Python" else 75),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases with this word in their name")
    only = parser.parse_args().only
    for index, case in enumerate(CASES):
        if only in ", ".join(case):
            with tempfile.TemporaryDirectory() as folder:
                row = trial(*case, SIGNALS[index % len(SIGNALS)], folder)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
