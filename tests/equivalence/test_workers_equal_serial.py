"""Workers = serial, to the bit, when serial acts in the same blocks of columns."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import trees
from environments import ACTIONS, OBSERVATIONS, Anything, serial_in_blocks
from safetensors.numpy import load_file
from saved_runs import assert_same, small_config
from trees import family, gone

import paceline
from paceline.errors import EnvironmentFailed
from paceline.policy.actor import make_actor
from paceline.processes.forkserver import Spawner
from paceline.run.build import build
from paceline.samplers import process_pool

pytestmark = pytest.mark.timeout(60)

WORKERS = 2


@contextmanager
def by_workers(config, workers=WORKERS):
    with build(config.replace(num_workers=workers, sampler="workers")) as parts:
        yield parts


@contextmanager
def in_blocks(config, blocks=WORKERS):
    """The same run within this process, its columns acting in as many blocks."""
    with build(config) as parts:
        parts.sampler.close()
        with closing(serial_in_blocks(parts, config.seed, blocks)) as sampler:
            sampler.publish(parts.learner.weights, parts.learner.version)
            yield replace(parts, sampler=sampler)


def snapshot(rollout):
    """All of a rollout as bytes, with its episodes; not the gaps between an observation's parts."""
    arrays = {name: array.tobytes() for name, array in rollout.arrays().items()}
    if rollout.obs.dtype.names:
        arrays["obs"] = [rollout.obs[part].tobytes() for part in rollout.obs.dtype.names]
    return arrays | {"episodes": rollout.episodes}


def turn(parts):
    """One turn of the ring; returns what was sampled."""
    rollout = parts.sampler.collect()
    assert (rollout.version == parts.learner.version).all()
    seen = snapshot(rollout)
    parts.learner.update(rollout, 1.0)
    parts.sampler.publish(parts.learner.weights, parts.learner.version)
    return seen


WORLDS = {
    "CartPole": ("CartPole-v1", {}),
    "LunarLander": ("LunarLander-v3", {}),
    "Pendulum": ("Pendulum-v1", {"rollout_steps": 64}),
    "masked dict": (
        partial(Anything, OBSERVATIONS["dict"], ACTIONS["multidiscrete"], masked=True),
        {},
    ),
    "images": (
        partial(Anything, OBSERVATIONS["image and numbers"], ACTIONS["discrete"]),
        {"num_envs": 2, "rollout_steps": 8},
    ),
    "discrete": ("FrozenLake-v1", {}),
    "native vector": ("CartPole-v1", {"env": {"vector": True}}),
    "time limit": ("CartPole-v1", {"env": {"time_limit": 7}}),
    "frame stack": ("CartPole-v1", {"env": {"frame_stack": 3}}),
    "normalizers": ("Pendulum-v1", {"normalize_obs": True, "normalize_return": True}),
    "lstm": ("CartPole-v1", {"memory": "lstm", "memory_segment": 16}),
    "gru, masked dict": (
        partial(Anything, OBSERVATIONS["dict"], ACTIONS["multidiscrete"], masked=True),
        {"memory": "gru", "memory_inputs": ("action", "reward")},
    ),
    "mingru, images": (
        partial(Anything, OBSERVATIONS["image and numbers"], ACTIONS["discrete"]),
        {"num_envs": 2, "rollout_steps": 8, "memory": "mingru"},
    ),
    "lstm, impala": ("CartPole-v1", {"algo": "impala", "memory": "lstm"}),
    "a2c": ("CartPole-v1", {"algo": "a2c"}),
    "impala": ("CartPole-v1", {"algo": "impala"}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WORLDS)
def test_workers_sample_and_learn_what_blocks_of_serial_do(name):
    """Every array and episode of every rollout, then the weights and the open episodes."""
    env_id, options = WORLDS[name]
    config, episodes = small_config(env_id, **options), 0
    with by_workers(config) as ours, in_blocks(config) as theirs:
        for _ in range(6):
            seen = turn(ours)
            assert seen == turn(theirs)
            episodes += len(seen["episodes"])
        assert_same(ours.learner.state(), theirs.learner.state())
        assert_same(ours.sampler.state(), theirs.sampler.state())
    assert episodes or name in ("LunarLander", "normalizers")  # theirs last longer than that


@pytest.mark.parametrize(
    ("workers", "forked"), [(1, True), pytest.param(3, True, marks=pytest.mark.slow), (6, False)]
)
def test_any_number_of_workers_forked_or_fresh_equals_as_many_blocks(monkeypatch, workers, forked):
    """Fresh interpreters, as on systems where there is nothing to fork from."""
    if not forked:
        monkeypatch.setattr(process_pool, "process_starter", lambda entry, preload: Spawner(entry))
    config, before = small_config("CartPole-v1", num_envs=6), set(psutil.Process().children())
    with by_workers(config, workers) as ours, in_blocks(config, workers) as theirs:
        for _ in range(3):
            assert turn(ours) == turn(theirs)
        started = set(psutil.Process().children()) - before
        assert len(started) == (1 if forked else workers)
    assert gone(started, within=3)


def test_a_table_gives_the_same_whatever_the_blocks():
    """A look-up rounds the same for any number of rows: serial in one block is equal too."""
    config = small_config("FrozenLake-v1", hidden=())
    with by_workers(config) as ours, build(config) as theirs:
        for _ in range(4):
            one, other = turn(ours), turn(theirs)
            by_column = [sorted(seen.pop("episodes"), key=repr) for seen in (one, other)]
            assert one == other and by_column[0] == by_column[1]


def test_nothing_is_left_of_the_workers_when_they_are_closed():
    before = set(family())
    with by_workers(small_config("CartPole-v1")) as parts:
        turn(parts)
        processes = set(family()) - before
        assert len(processes) == WORKERS + 1  # and the server that forks them
        files = psutil.Process().num_fds()
    assert gone(processes, within=3)
    assert psutil.Process().num_fds() < files


def test_every_rollout_is_made_by_the_weights_that_learn_from_it():
    """Rollout k says version k in every column, and those weights give its log-probabilities."""
    config = small_config("Pendulum-v1", lr=0.05)
    with by_workers(config) as parts:
        actor = make_actor(parts.network, config.num_envs)
        head = np.empty(
            (config.rollout_steps, config.num_envs, actor.distribution.size), np.float32
        )
        for version in range(8):
            rollout = parts.sampler.collect()
            assert rollout.version.tolist() == [version] * 4
            assert rollout.column.tolist() == [0, 1, 2, 3]
            actor.load(parts.learner.weights)
            for obs, parameters in zip(rollout.obs, head, strict=False):
                actor.step(obs, None, None, parameters)
            expected = actor.distribution.logp(head, rollout.action)
            np.testing.assert_allclose(rollout.logp, expected, rtol=1e-4, atol=1e-4)
            parts.learner.update(rollout, 1.0)
            parts.sampler.publish(parts.learner.weights, version + 1)
            for array in rollout.arrays().values():
                array[...] = 0  # what stands here next has been written by a worker


def test_impala_over_workers_sees_no_lag():
    with by_workers(small_config("CartPole-v1", algo="impala")) as parts:
        for _ in range(4):
            rollout = parts.sampler.collect()
            metrics = parts.learner.update(rollout, 1.0)
            parts.sampler.publish(parts.learner.weights, parts.learner.version)
            assert metrics["rho_mean"] == pytest.approx(1.0, abs=1e-5)


RESUMED = ("CartPole", "masked dict", "native vector")
RESUMED_TOO = ("Pendulum", "images", "discrete", "frame stack", "normalizers")


@pytest.mark.parametrize(
    "name", [*RESUMED, *(pytest.param(name, marks=pytest.mark.slow) for name in RESUMED_TOO)]
)
def test_a_restored_sampler_of_workers_goes_on_as_if_it_had_never_stopped(name):
    """And so does a serial one in the same blocks: the state is the same thing."""
    env_id, options = WORLDS[name]
    config = small_config(env_id, **options)
    with by_workers(config) as parts:
        for _ in range(3):
            turn(parts)
        state, learner = parts.sampler.state(), parts.learner.state()
        expected, last = [turn(parts) for _ in range(3)], parts.sampler.state()
    for again in (by_workers, in_blocks):
        with again(config) as twin:
            twin.learner.restore(learner)
            assert twin.sampler.restore({k: np.array(v) for k, v in state.items()}) == []
            twin.sampler.publish(twin.learner.weights, twin.learner.version)
            assert_same(twin.sampler.state(), state)
            assert [turn(twin) for _ in range(3)] == expected
            assert_same(twin.sampler.state(), last)


def test_a_rollout_of_workers_that_no_weights_followed_is_taken_back_by_the_state():
    config = small_config("CartPole-v1")
    with by_workers(config) as parts:
        for _ in range(3):
            turn(parts)
        now = parts.sampler.state()
        expected = snapshot(parts.sampler.collect())
        assert_same(parts.sampler.state(), now)
        weights, version = parts.learner.weights.copy(), parts.learner.version
    with by_workers(config) as twin:
        assert twin.sampler.restore(now) == []
        twin.sampler.publish(weights, version)
        assert snapshot(twin.sampler.collect()) == expected


def run(folder, **options):
    """A whole run in a directory; the arrays of its last checkpoint."""
    config = small_config("FrozenLake-v1", hidden=(), total_iters=5, eval_episodes=1, track="none")
    reports = list(paceline.train(config.replace(output_dir=str(folder), **options)))
    newest = max(p for p in (folder / "checkpoints").iterdir() if p.name.isdigit())
    return load_file(newest / "state.safetensors"), reports


def test_a_checkpoint_of_workers_holds_the_open_episodes_that_serial_has(tmp_path):
    serial, theirs = run(tmp_path / "serial")
    workers, ours = run(tmp_path / "workers", num_workers=WORKERS)
    assert [report.episode_return for report in ours] == [r.episode_return for r in theirs]
    learned = {name for name in serial if name.startswith("learner.")}
    assert_same({n: serial[n] for n in learned}, {n: workers[n] for n in learned})
    for name in serial.keys() - learned:
        rest = name.removeprefix("sampler.0.")
        parts = [workers[f"sampler.{number}.{rest}"] for number in range(WORKERS)]
        if parts[0].ndim == 0:  # row and rollout: the same for all
            assert all(part == serial[name] for part in parts), name
        else:
            np.testing.assert_array_equal(np.concatenate(parts), serial[name], err_msg=name)
    assert len(workers) == len(learned) + WORKERS * (len(serial) - len(learned))


def witness(image=False):
    """An environment that shows whether torch has been imported where it lives.

    It reaches a worker by value: importing this module there would itself import torch.
    """

    class Witness(gym.Env):
        shape, dtype = ((8, 8, 1), np.uint8) if image else ((1,), np.float32)
        observation_space = gym.spaces.Box(0, 1 if not image else 255, shape, dtype)
        action_space = gym.spaces.Discrete(2)

        def look(self):
            return np.full(self.shape, "torch" in sys.modules, self.dtype)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.look(), {}

        def step(self, action):
            return self.look(), 0.0, bool(self.np_random.random() < 0.1), False, {}

    return Witness


def private_mb(pid):
    """What would be given back if this process alone went."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(sizes) / 2**10


@pytest.mark.parametrize("memory", [None, "lstm"])
def test_a_worker_with_vectors_never_imports_torch(memory):
    """Nor with a normalizer of observations."""
    with by_workers(small_config(witness(), normalize_obs=True, memory=memory)) as parts:
        for _ in range(3):
            rollout = parts.sampler.collect()
            assert not rollout.obs.any()
            parts.learner.update(rollout, 1.0)
            parts.sampler.publish(parts.learner.weights, parts.learner.version)
        found = trees.workers()
        assert len(found) == WORKERS
        for worker in found:
            assert "libtorch" not in Path(f"/proc/{worker.pid}/maps").read_text()
    assert "libtorch" in Path("/proc/self/maps").read_text()


def test_a_worker_with_images_does_import_torch():
    """So the test above would see it."""
    with by_workers(small_config(witness(image=True))) as parts:
        assert parts.sampler.collect().obs.all()
        for worker in trees.workers():
            assert "libtorch" in Path(f"/proc/{worker.pid}/maps").read_text()


def test_a_worker_takes_less_than_60_mb_of_its_own():
    with by_workers(small_config("LunarLander-v3", num_envs=16)) as parts:
        for _ in range(3):
            turn(parts)
        found = trees.workers()
        assert len(found) == WORKERS
        assert all(private_mb(worker.pid) < 60 for worker in found)


def test_an_environment_that_raises_is_rebuilt_in_its_worker_and_counted():
    class Fragile(gym.make("CartPole-v1").unwrapped.__class__):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps == 10:
                raise RuntimeError("as it is meant to")
            return super().step(action)

    with by_workers(small_config(Fragile)) as ours, in_blocks(small_config(Fragile)) as theirs:
        for _ in range(3):
            assert turn(ours) == turn(theirs)
        assert ours.sampler.env_restarts == theirs.sampler.env_restarts > 0
        assert ours.sampler.restarts == 0


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_an_environment_may_not_show_ends_the_run_as_it_does_in_serial():
    class Infinite(gym.make("CartPole-v1").unwrapped.__class__):
        def step(self, action):
            seen, *rest = super().step(action)
            return seen * np.float32(np.inf), *rest

    said = []
    for way in (by_workers, in_blocks):
        with way(small_config(Infinite)) as parts, pytest.raises(EnvironmentFailed) as error:
            parts.sampler.collect()
        said.append(str(error.value))
    assert said[1].startswith("env 0, ")
    assert any(said[0].startswith(f"env {n}, ") for n in (0, 2))  # whichever worker said so first
