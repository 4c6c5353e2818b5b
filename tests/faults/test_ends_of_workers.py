"""What a run leaves behind when its workers end: good state, closed environments, no processes."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress

import gymnasium as gym
import numpy as np
import psutil
import pytest
import trees
import troubles
from saved_runs import PLAIN
from trees import workers

import paceline
from paceline.errors import EnvironmentFailed
from paceline.processes import forkserver

pytestmark = pytest.mark.timeout(90)


class Simulated(gym.Env):
    """Has a process of its own, as simulators do, and a note of having been closed."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, folder, pause=0.0):
        self.folder, self.pause = folder, pause
        self.simulator = subprocess.Popen(["sleep", "1234"])
        (folder / f"{self.simulator.pid}.made").touch()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(self.pause)
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self):
        self.simulator.kill()
        self.simulator.wait()
        (self.folder / f"{self.simulator.pid}.closed").touch()


def config_of(env_id, folder, **options):
    sizes = {"num_envs": 4, "num_workers": 2, "rollout_steps": 8, "minibatches": 1, "epochs": 1}
    short = {"total_iters": 3, "eval_episodes": 1, "env": {"time_limit": 20}}
    where = {"env_id": env_id, "output_dir": str(folder / "run")}
    return paceline.Config(**(PLAIN | sizes | short | where | options))


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_every_environment_is_closed_also_in_the_middle_of_a_rollout(algo, tmp_path):
    """A stream's workers are always in the middle of one."""
    make = lambda: Simulated(tmp_path, pause=0.01)  # noqa: E731
    for _ in paceline.train(config_of(make, tmp_path, algo=algo)):
        pass
    made = {path.stem for path in tmp_path.glob("*.made")}
    assert {path.stem for path in tmp_path.glob("*.closed")} == made


def test_processes_of_a_killed_workers_environments_end_with_it(tmp_path):
    seen = set()
    for report in paceline.train(config_of(lambda: Simulated(tmp_path), tmp_path, total_iters=9)):
        if report.iter == 3:
            seen = {child for worker in workers() for child in worker.children()}
            workers()[0].kill()
    assert len(seen) == 4
    assert report.restarts == 1
    assert not any(psutil.pid_exists(child.pid) and child.status() != "zombie" for child in seen)


def failing_in_all_workers_but_one(folder):
    """The first worker that makes one may go on making them."""

    class Failing(Simulated):
        def __init__(self):
            if troubles.IN_WORKER:
                chosen = folder / "chosen"
                with suppress(FileExistsError), chosen.open("x") as file:
                    file.write(str(os.getpid()))
                if chosen.read_text() != str(os.getpid()):
                    os._exit(7)
            super().__init__(folder)

    return Failing


def test_a_run_that_fails_before_all_workers_have_begun_leaves_no_half_checkpoint(tmp_path):
    config = config_of(failing_in_all_workers_but_one(tmp_path), tmp_path, max_restarts=1)
    with pytest.raises(EnvironmentFailed, match="exited with 7"):
        list(paceline.train(config))
    assert not list((tmp_path / "run" / "checkpoints").glob("0*"))


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_replaced(monkeypatch, tmp_path):
    """Late answers of the old one are not taken for the new one's."""
    monkeypatch.setattr(forkserver, "ANSWER_TIMEOUT", 1.0)
    config = config_of("CartPole-v1", tmp_path, total_iters=6)
    for report in paceline.train(config):
        if report.iter == 2:
            victim = workers()[0]
            trees.forkserver().suspend()
            victim.kill()
    assert report.restarts >= 1
    assert report.iter == 6
