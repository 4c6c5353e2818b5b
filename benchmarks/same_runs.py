"""Whether a change moved any number: the same runs at two commits, compared byte for byte.

    python benchmarks/same_runs.py --base COMMIT            against the working tree
    python benchmarks/same_runs.py --base COMMIT --only ranks

Each case is trained with a fixed seed at both commits, on this machine, with the same installed
packages. Final weights and state, and metrics but for times, rates, memory and CPU, must be the
same to the byte. What is not deterministic (A3C with several learners, streams) is compared by the
mean of its last returns over a few seeds. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parents[1]
TIMING = ("time", "fps", "memory_mb", "cpu_percent", "t_")
"""Beginnings of the metrics that no two runs share."""
COMMON = "--seed 3 --track none --eval-episodes 2 --total-iters 12 "
SMALL = "--preset none --num-envs 4 --rollout-steps 32 --compile off "
CASES = {
    "ppo": SMALL + "--env-id CartPole-v1",
    "ppo preset": "--env-id CartPole-v1 --compile off",
    "ppo compiled": "--env-id CartPole-v1 --compile on",
    "ppo Box actions, normalizers": SMALL
    + "--env-id Pendulum-v1 --normalize-obs --normalize-return --state-dependent-std",
    "ppo normalizers compiled": "--env-id Pendulum-v1 --compile on --total-iters 6",
    # Schedules from presets: earlier commits have other names for them.
    "ppo KL stop, schedules": "--env-id CartPole-v1 --compile off --ppo.target-kl 0.003 --lr 3e-3",
    "ppo entropy schedule": "--env-id minigrid:Empty-5x5 --compile off --total-iters 4",
    "ppo entropy schedule compiled": "--env-id minigrid:Empty-5x5 --compile on --total-iters 4",
    "ppo minibatch normalization, value clip, shared trunk": SMALL
    + "--ppo.normalize-advantage minibatch --ppo.value-clip 0.2 --shared-trunk --hidden 32,32",
    "ppo discrete observations, masks": SMALL + "--env-id Taxi-v4",
    "ppo frame stack": SMALL + "--env-id CartPole-v1 --env.frame-stack 3",
    "ppo MultiDiscrete": SMALL + "--env-id same_worlds:Many-v0",
    "ppo Dict observations": SMALL + "--env-id same_worlds:Parts-v0",
    "ppo images": SMALL + "--env-id minigrid:Empty-5x5 --total-iters 3",
    "ppo vector entry point": SMALL + "--env-id CartPole-v1 --env.vector --num-envs 16",
    "ppo MuJoCo": SMALL + "--env-id HalfCheetah-v5 --total-iters 4",
    "ppo workers": SMALL + "--env-id CartPole-v1 --num-workers 2",
    "ppo ranks": SMALL + "--env-id CartPole-v1 --ranks 2 --normalize-obs",
    "ppo ranks, KL stop": SMALL + "--env-id CartPole-v1 --ranks 2 --ppo.target-kl 0.003 --lr 3e-3",
    "ppo ranks, workers": SMALL + "--env-id CartPole-v1 --ranks 2 --num-workers 2",
    "a2c": "--algo a2c --env-id CartPole-v1 --compile off --total-iters 200",
    "a2c compiled": "--algo a2c --env-id CartPole-v1 --compile on --total-iters 200",
    "a2c workers": "--algo a2c --env-id CartPole-v1 --compile off --total-iters 60 --num-workers 2",
    "a3c with one learner": "--algo a3c --env-id CartPole-v1 --num-workers 1 --total-iters 100",
    "impala": "--algo impala --env-id CartPole-v1 --compile off --total-iters 60",
    "impala ranks": "--algo impala --env-id CartPole-v1 --compile off --total-iters 30 --ranks 2 "
    "--num-envs 4",
    "toy": SMALL + "--env-id toy:memory",
}
LOOSE = {
    "a3c": "--algo a3c --env-id CartPole-v1 --num-workers 2 --total-steps 30000 --track none",
    "impala stream": "--algo impala --env-id CartPole-v1 --num-workers 2 --total-steps 30000 "
    "--track none --compile off",
}
SEEDS = 4
WORLDS = '''
import gymnasium as gym
import numpy as np


class World(gym.Env):
    """Rewards the first choice in states that it shows; ends after 20 steps."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._seen(), {}

    def step(self, action):
        self._time += 1
        reward = float(np.ravel(action)[0] == self._state % 2)
        return self._seen(), reward, self._time >= 20, False, {}

    def _seen(self):
        self._state = int(self.np_random.integers(4))
        return self.show(self._state)


class Many(World):
    observation_space = gym.spaces.MultiDiscrete([4, 3])
    action_space = gym.spaces.MultiDiscrete([2, 3])

    def show(self, state):
        return np.array([state, state % 3])


class Parts(World):
    observation_space = gym.spaces.Dict(
        {"number": gym.spaces.Discrete(4), "vector": gym.spaces.Box(-1, 1, (2,))}
    )
    action_space = gym.spaces.MultiBinary(2)

    def show(self, state):
        return {"number": state, "vector": np.array([state / 4, -1], np.float32)}


gym.register("Many-v0", Many)
gym.register("Parts-v0", Parts)
'''


class Tree:
    """A source tree, and a folder for its runs."""

    def __init__(self, source: Path, runs: Path) -> None:
        self._source, self._runs = source, runs
        runs.mkdir()
        (runs / "same_worlds.py").write_text(WORLDS)

    def train(self, name: str, flags: str) -> Path:
        folder = self._runs / name.replace(" ", "-").replace(",", "")
        path = os.pathsep.join([str(self._source / "src"), str(self._runs)])
        command = ["-m", "paceline", "train", *shlex.split(flags), "--output-dir", str(folder)]
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=self._runs,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"{name}: exit code {ended.returncode}: {ended.stderr[-500:]}")
        return folder


@contextmanager
def both_trees(base: str, scratch: Path) -> Iterator[list[Tree]]:
    """The commit `base`, and the working tree."""
    old = scratch / "old"
    worktree = ["git", "worktree"]
    subprocess.run([*worktree, "add", "--quiet", "--detach", str(old), base], cwd=ROOT, check=True)
    try:
        yield [Tree(old, scratch / "before"), Tree(ROOT, scratch / "after")]
    finally:
        subprocess.run([*worktree, "remove", "--force", str(old)], cwd=ROOT, check=True)


def metrics(run: Path) -> list[dict[str, object]]:
    """What depends on what was learned, and not on the clock."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(TIMING)} for line in lines]


def difference(one: Path, other: Path) -> str:
    """In what two runs differ; empty if they do not."""
    last = [sorted((run / "checkpoints").glob("[0-9]*"))[-1] for run in (one, other)]
    if last[0].name != last[1].name:
        return f"last checkpoints are {last[0].name} and {last[1].name}"
    for file in ("weights.safetensors", "state.safetensors"):
        if (last[0] / file).read_bytes() != (last[1] / file).read_bytes():
            return f"{file} differs"
    for before, after in zip(metrics(one), metrics(other), strict=True):
        for name in before.keys() | after.keys():
            if before.get(name) != after.get(name):
                return f"iteration {before['iter']}: {name} {before.get(name)} → {after.get(name)}"
    return ""


def last_returns(run: Path) -> float:
    found = [line["episode_return"] for line in metrics(run)]
    return mean([value for value in found if value is not None][-10:])


def loosely(trees: list[Tree], name: str, flags: str) -> str:
    """A difference in the last returns that noise does not explain."""
    scores = []
    for tree in trees:
        runs = [tree.train(f"{name} {seed}", f"{flags} --seed {seed}") for seed in range(SEEDS)]
        scores.append([last_returns(run) for run in runs])
    before, after = map(mean, scores)
    error = ((stdev(scores[0]) ** 2 + stdev(scores[1]) ** 2) / SEEDS) ** 0.5
    said = f"mean of the last returns {before:.1f} → {after:.1f} (standard error {error:.1f})"
    print(f"  {name}: {said}")
    return said if abs(after - before) > 3 * error + 1 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--only", default="", help="cases that have this in their name")
    given = parser.parse_args()
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="same-runs-") as scratch,
        both_trees(given.base, Path(scratch)) as trees,
        ThreadPoolExecutor(2) as both,
    ):
        for name, flags in CASES.items():
            if given.only not in name:
                continue
            runs = both.map(lambda tree, n=name, f=flags: tree.train(n, COMMON + f), trees)
            found = difference(*runs)
            wrong += bool(found)
            print(f"  {name}: {found or 'the same'}", flush=True)
        for name, flags in LOOSE.items():
            if given.only in name:
                wrong += bool(loosely(trees, name, flags))
    print(f"{wrong} differ" if wrong else "nothing differs")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
