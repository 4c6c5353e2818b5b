"""W ranks × B columns = 1 rank × W·B columns = DistributedDataParallel.

The one rank acts and shuffles in W blocks of columns; what is left is the order in which floats are
added up.
"""

from __future__ import annotations

import shlex
import zlib
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from environments import serial_in_blocks
from gymnasium import spaces
from learners import ONE_STEP
from safetensors.numpy import load
from saved_runs import PLAIN
from torch import nn

import paceline
from paceline.distributed import Local
from paceline.distributed.allreduce import Allreduce
from paceline.distributed.rendezvous import join_group
from paceline.envs.spaces import ActionSpec, observation_spec
from paceline.errors import Diverged
from paceline.learning.algorithms.a2c import A2C
from paceline.learning.algorithms.ppo import PPO
from paceline.learning.learner import CHECK_EVERY, CRITIC_CARRY, Learner
from paceline.learning.optimizers import OPTIMIZERS, Adam
from paceline.policy.network import NetworkSpec
from paceline.rollout import Rollout
from paceline.run.build import build
from paceline.run.topology import topology_of

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("clean")]

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
ITERS = 5


def joined(place, rank, size, backend="auto"):
    return closing(Allreduce(join_group(place, rank, size, 20.0), backend, timeout=20.0))


# The whole ring.


def config_of(size=1, **options):
    """`size` ranks that have four columns each."""
    sizes = {"num_envs": 4, "ranks": size, "rollout_steps": 24, "hidden": (16,)}
    return paceline.Config(**(PLAIN | sizes | {"total_iters": 1000} | options))


def turns_of(parts, iters):
    """By turn: what each column sampled, as bytes, a checksum of the weights, and the metrics.
    Then the learner's state."""
    sampled, weights, metrics = [], [], []
    for turn in range(iters):
        rollout = parts.sampler.collect()
        arrays = (rollout.obs, rollout.action, rollout.reward, rollout.valid)
        columns = [[a[:, i].tobytes() for a in arrays] for i in range(rollout.columns)]
        sampled.append(columns)
        rows = int(rollout.valid.sum())
        metrics.append(parts.learner.update(rollout, 1.0 - turn / iters) | {"rows": rows})
        parts.sampler.publish(parts.learner.weights, parts.learner.version)
        weights.append(zlib.crc32(parts.learner.flat.storage.numpy().data))
    return sampled, weights, metrics, parts.learner.state()


def rank_of(place, rank, size, options, backend="auto"):
    config = config_of(size, **options)
    topology = replace(topology_of(config), rank=rank, started=True)
    with (
        joined(place, rank, size, backend) as sync,
        build(config, sync=sync, topology=topology) as parts,
    ):
        return turns_of(parts, ITERS)


@contextmanager
def in_blocks(size, options):
    """The same run within this process, all columns in as many blocks as there are ranks."""
    config = config_of(**options)
    columns = size * config.num_envs
    with build(config) as parts:
        parts.sampler.close()
        plan = replace(parts.learner._config, blocks=size)
        optimizer = OPTIMIZERS[config.optimizer](eps=config.optimizer_eps)
        given = parts.network, config.algorithm, optimizer, Local(), plan, columns
        learner = Learner(*given, torch.device("cpu"))
        spec = replace(parts.spec, columns=columns)
        sampler = serial_in_blocks(parts, config.seed, size, spec)
        sampler.publish(learner.weights, learner.version)
        with closing(sampler):
            yield replace(parts, sampler=sampler, learner=learner)


RUNS = {
    "ppo": {"algo": "ppo", "epochs": 3, "minibatches": 4},
    "a2c": {"algo": "a2c"},
    "impala": {"algo": "impala"},
    "normalizers": {"normalize_obs": True, "normalize_return": True, "minibatches": 2},
    "target kl": {"epochs": 4, "minibatches": 4, "lr": 3e-3, "ppo": {"target_kl": 0.002}},
    "annealed": {"lr_schedule": "linear", "ppo": {"clip_schedule": "linear"}, "minibatches": 3},
    "minibatches of other sizes": {"epochs": 2, "minibatches": 1, "ppo": {"value_clip": 0.2}},
    "lstm": {"memory": "lstm", "memory_segment": 8, "epochs": 2, "minibatches": 3},
    "mingru, shared": {"memory": "mingru", "shared_trunk": True, "minibatches": 2},
    "gru, impala": {"memory": "gru", "algo": "impala", "memory_segment": 12},
    "impala, normalizers": {"algo": "impala", "normalize_obs": True, "normalize_return": True},
}
DEFAULT = ("ppo", "a2c", "impala", "normalizers", "target kl", "lstm")


def cases():
    for name in RUNS:
        marks = () if name in DEFAULT else pytest.mark.slow
        yield pytest.param(name, 2, id=f"{name}-2", marks=marks)
    yield pytest.param("ppo", 3, id="ppo-3")
    yield pytest.param("normalizers", 3, id="normalizers-3", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "size"), list(cases()))
def test_ranks_sample_and_learn_what_one_rank_with_their_columns_does(together, name, size):
    options = RUNS[name]
    ranks = together(rank_of, size, options)
    with in_blocks(size, options) as parts:
        sampled, _, metrics, state = turns_of(parts, ITERS)
    for turn in range(ITERS):
        columns = [column for found in ranks for column in found[0][turn]]
        assert columns == sampled[turn], f"rollout {turn}"
        assert len({tuple(column) for column in columns}) == len(columns)
        assert len({found[1][turn] for found in ranks}) == 1, f"weights after update {turn}"
    if CRITIC_CARRY in state:
        carries = np.concatenate([found[3][CRITIC_CARRY] for found in ranks])
        np.testing.assert_allclose(carries, state[CRITIC_CARRY], **CLOSE)
    for found in ranks:
        ours = found[3]
        for key in state.keys() - {"return.running", CRITIC_CARRY}:
            np.testing.assert_allclose(ours[key], state[key], **CLOSE, err_msg=key)
        for mine, theirs in zip(found[2], metrics, strict=True):
            assert mine.keys() == theirs.keys()
            for key in mine.keys() - {"rows"}:
                assert mine[key] == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key
    if options.get("normalize_return"):
        running = np.concatenate([found[3]["return.running"] for found in ranks])
        np.testing.assert_allclose(running, state["return.running"], **CLOSE)
        rows = sum(metrics["rows"] for found in ranks for metrics in found[2])
        assert size * ITERS * 80 < rows < size * ITERS * 96  # some only reset
        for name in ("obs.count", "return.count"):  # every row counts once
            counts = [float(found[3][name]) for found in ranks]
            assert counts == pytest.approx([rows] * size, abs=1e-3)
    if "target_kl" in options.get("ppo", {}):  # some updates end early, all ranks agree where
        (made,) = {int(found[3]["counts"][1]) for found in ranks}
        assert ITERS < made < ITERS * options["epochs"] * options["minibatches"]


def test_through_the_network_two_ranks_learn_the_same(together):
    """Two numbers have the same sum in either order: to the bit what memory gives."""
    here = together(rank_of, 2, RUNS["ppo"])
    there = together(rank_of, 2, RUNS["ppo"], "gloo")
    assert [found[:2] for found in there] == [found[:2] for found in here]


# One update, on rollouts made by hand.


OBS = observation_spec(spaces.Box(-1, 1, (3,)))
ACT = ActionSpec("discrete", 4)
NETWORK = NetworkSpec(OBS, ACT, (8,), "tanh")


def learner_of(sync, algorithm, columns=2, **options):
    config = replace(ONE_STEP, **options)
    return Learner(NETWORK, algorithm, Adam(), sync, config, columns, torch.device("cpu"))


def rollout_of(learner, rank, valid=None, steps=200, columns=2):
    """Rank `rank`'s; of its rows the first `valid` count, each step of all columns at a time."""
    rng = np.random.default_rng(rank)
    out = Rollout.allocate(steps, columns, OBS.stored, ACT.stored)
    out.obs[:] = rng.normal(size=out.obs.shape)
    out.action[:] = rng.integers(4, size=out.action.shape)
    out.reward[:] = rng.normal(1.0 + rank, 1.0 + 2 * rank, size=out.reward.shape)
    out.begin(out.obs[0], np.zeros(columns, bool))
    if valid is not None:
        out.valid[valid // columns :] = False
        out.truncated[valid // columns - 1] = True
    inputs = learner.module.inputs({"vector": torch.from_numpy(out.obs[:-1]).flatten(0, 1)})
    with torch.no_grad():
        logp = learner.module.predict(inputs, torch.from_numpy(out.action).flatten()).logp
    out.logp[:] = logp.numpy().reshape(out.logp.shape)
    return out


def beside(rollouts):
    """Rollouts of several ranks as one with all their columns."""
    names = rollouts[0].arrays()
    arrays = {
        name: np.concatenate([r.arrays()[name] for r in rollouts], 0 if a.ndim == 1 else 1)
        for name, a in names.items()
    }
    arrays["column"] = np.arange(len(arrays["column"]))
    return Rollout(**arrays)


def gradient_of(learner):
    """The mean gradient of the latest minibatch, before it was clipped."""
    buffer = learner._step.buffer
    return (buffer[: len(learner.flat.weights)] / buffer[-1]).numpy().copy()


class Plain(nn.Module):
    """What a user of torch would write."""

    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
        self.value = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, obs):
        return self.policy(obs), self.value(obs).squeeze(-1)

    def flat(self, take=lambda parameter: parameter):
        """In the order in which a learner has them: dense weights as [in, out]."""
        return np.concatenate([take(p).detach().t().numpy().ravel() for p in self.parameters()])


def plain_of(learner):
    plain = Plain()
    theirs = list(learner.module.parameters())
    with torch.no_grad():
        for ours, parameter in zip(plain.parameters(), theirs, strict=True):
            ours.copy_(parameter)
    np.testing.assert_array_equal(plain.flat(), learner.flat.weights.numpy())
    return plain


def loss_of(plain, rows):
    """A2C's, as a mean over the rows that count."""
    kept = rows.weight > 0
    logits, value = plain(rows.inputs[0][kept])
    chosen = torch.distributions.Categorical(logits=logits)
    policy = -(chosen.log_prob(rows.action[kept]) * rows.advantage[kept]).mean()
    error = 0.5 * (value - rows.returns[kept, 0]).square().mean()
    return policy + 0.5 * error - 0.02 * chosen.entropy().mean()


ALGORITHM = A2C(entropy_coef=0.02)


def ddp_of(place, rank, size, updates):
    """Weights after each update, of our learner and of a module in DistributedDataParallel."""
    dist.init_process_group("gloo", f"{place}-ddp", rank=rank, world_size=size)
    ours, theirs, gradients = [], [], []
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, ALGORITHM)
        plain = plain_of(learner)
        wrapped = nn.parallel.DistributedDataParallel(plain)
        optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2, eps=1e-5)
        for number in range(updates):
            rollout = rollout_of(learner, rank + size * number)
            rows = learner.prepare_batch(rollout).rows
            optimizer.zero_grad()
            loss_of(wrapped, rows).backward()
            whole = plain.flat(lambda parameter: parameter.grad)
            norm = nn.utils.clip_grad_norm_(plain.parameters(), ONE_STEP.max_grad_norm)
            optimizer.step()
            metrics = learner.update(rollout, 1.0)
            assert norm > ONE_STEP.max_grad_norm, "what is not clipped would prove less"
            assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
            gradients.append((gradient_of(learner), whole))
            ours.append(learner.flat.weights.numpy().copy())
            theirs.append(plain.flat())
    dist.destroy_process_group()
    return ours, theirs, gradients


def test_ranks_learn_what_distributed_data_parallel_does(together):
    """Where all ranks have as many rows: gradients before clipping, and weights after Adam."""
    first, second = together(ddp_of, 2, 4)
    for ours, theirs, gradients in (first, second):
        for mine, whole in gradients:
            np.testing.assert_allclose(mine, whole, **CLOSE)
        for mine, its in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, its, **CLOSE)
    for mine, other in zip(first[0], second[0], strict=True):
        assert mine.tobytes() == other.tobytes()


VALID = (100, 300)


def uneven_of(place, rank, size):
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, ALGORITHM)
        learner.update(rollout_of(learner, rank, VALID[rank]), 1.0)
        return gradient_of(learner), learner.flat.weights.numpy().copy()


def test_a_row_weighs_the_same_on_whatever_rank_it_is(together):
    """100 and 300 rows: the gradient of all 400, and not the mean of two means."""
    one = learner_of(Local(), ALGORITHM, columns=4)
    plain = plain_of(one)
    parts = [rollout_of(one, rank, valid) for rank, valid in enumerate(VALID)]
    means = []
    for part in (*parts, whole := beside(parts)):
        rows = one.prepare_batch(part).rows
        plain.zero_grad()
        loss_of(plain, rows).backward()
        means.append(plain.flat(lambda parameter: parameter.grad))
    one.update(whole, 1.0)
    for gradient, weights in together(uneven_of, 2):
        np.testing.assert_allclose(gradient, means[2], **CLOSE)
        np.testing.assert_allclose(gradient, gradient_of(one), **CLOSE)
        np.testing.assert_allclose(weights, one.flat.weights.numpy(), **CLOSE)
        mean_of_means = (means[0] + means[1]) / 2
        assert np.abs(gradient - mean_of_means).max() > 0.05 * np.abs(gradient).max()


def advantage_of(place, rank, size):
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, PPO(normalize_advantage="rollout"))
        rows = learner.prepare_batch(rollout_of(learner, rank, VALID[rank])).rows
        return rows.advantage[rows.weight > 0].numpy().copy()


def test_advantages_are_normalised_over_the_rows_of_all_ranks(together):
    found = together(advantage_of, 2)
    assert tuple(map(len, found)) == VALID
    whole = np.concatenate(found).astype(np.float64)
    assert whole.mean() == pytest.approx(0, abs=1e-6)
    assert whole.std() == pytest.approx(1, rel=1e-5)
    for own in found:
        assert abs(own.mean()) > 0.05 and abs(own.std() - 1) > 0.01, "else this proves nothing"
    one = learner_of(Local(), PPO(normalize_advantage="rollout"), columns=4)
    parts = [rollout_of(one, rank, valid) for rank, valid in enumerate(VALID)]
    rows = one.prepare_batch(beside(parts)).rows
    table = rows.advantage.reshape(200, 4)
    for rank, (own, valid) in enumerate(zip(found, VALID, strict=True)):
        expected = table[: valid // 2, 2 * rank : 2 * rank + 2].ravel().numpy()
        np.testing.assert_allclose(own, expected, **CLOSE)


def empty_of(place, rank, size):
    """Rank 1 has not a single row that counts."""
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, PPO(), epochs=2, minibatches=2)
        rollout = rollout_of(learner, rank)
        rollout.valid[:] = rank == 0
        metrics = learner.update(rollout, 1.0)
        return metrics["loss"], learner.flat.weights.numpy().copy()


def test_a_rank_without_a_row_that_counts_learns_what_the_others_do(together):
    one = learner_of(Local(), PPO(), columns=4, epochs=2, minibatches=2, blocks=2)
    parts = [rollout_of(one, rank) for rank in range(2)]
    parts[1].valid[:] = False
    metrics = one.update(beside(parts), 1.0)
    (loss, weights), (other, others) = together(empty_of, 2)
    assert weights.tobytes() == others.tobytes() and loss == other
    assert loss == pytest.approx(metrics["loss"], rel=1e-4)
    np.testing.assert_allclose(weights, one.flat.weights.numpy(), **CLOSE)


def kl_of(place, rank, size, shift):
    """Rank 1's rollout comes from another policy, rank 0's from this one."""
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, PPO(target_kl=0.05), epochs=3, minibatches=2)
        rollout = rollout_of(learner, rank)
        rollout.logp[:] -= shift * rank
        learner.update(rollout, 1.0)
        return learner._step.count


@pytest.mark.parametrize(("shift", "made"), [(1.0, 0), (0.1, 6)])
def test_one_rank_that_has_gone_too_far_stops_all(together, shift, made):
    """k3 of a shift by 1 is e − 2 there, and half of that over both: more than 1.5 × 0.05."""
    assert together(kl_of, 2, shift) == [made] * 2


# Ranks that no longer agree.


def compared_of(place, rank, size, odd, by_update):
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, ALGORITHM)
        learner.check_ranks_agree()
        if rank == odd:
            learner.flat.weights[5] += 1e-7
        if by_update:
            learner.version = CHECK_EVERY - 1
        with pytest.raises(Diverged) as error:
            if by_update:
                learner.update(rollout_of(learner, rank), 1.0)
            else:
                learner.check_ranks_agree()
        return str(error.value)


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("by_update", [False, True], ids=["asked", "by itself"])
def test_a_rank_with_other_weights_is_named(together, odd, by_update):
    for said in together(compared_of, 3, odd, by_update):
        assert f"the weights of rank {odd} are not those of the other ranks" in said


def started_of(place, rank, size):
    """Each rank begins with weights of its own."""
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, ALGORITHM, seed=rank)
        return zlib.crc32(learner.flat.storage.numpy().data)


def test_all_ranks_start_with_the_weights_of_rank_0(together):
    rank_0 = zlib.crc32(learner_of(Local(), ALGORITHM, seed=0).flat.storage.numpy().data)
    assert together(started_of, 3) == [rank_0] * 3


def broken_of(place, rank, size):
    """One rank's rewards are not a number: nobody learns from them, and all know."""
    with joined(place, rank, size) as sync:
        learner = learner_of(sync, ALGORITHM)
        before = learner.state()
        rollout = rollout_of(learner, rank)
        rollout.reward[3, 0] = np.nan if rank == 1 else rollout.reward[3, 0]
        with pytest.raises(Diverged):
            learner.update(rollout, 1.0)
        after = learner.state()
        return all(after[name].tobytes() == before[name].tobytes() for name in before)


def test_what_is_no_number_on_one_rank_ends_the_update_on_all(together):
    assert together(broken_of, 2) == [True, True]


# The whole command.


OPTIONS = shlex.split(
    "--ranks 2 --preset none --num-envs 4 --rollout-steps 32 --epochs 2 --minibatches 2 "
    "--compile off --eval-episodes 1 --normalize-obs --normalize-return"
)


@pytest.fixture(scope="module")
def place(shell_in, tmp_path_factory):
    return shell_in(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def whole(place):
    """A run of two ranks, not interrupted."""
    return place.train("whole", *OPTIONS, "--total-iters", 6)


@pytest.mark.slow
def test_the_same_command_gives_the_same_run_to_the_byte(place, whole):
    again = place.train("again", *OPTIONS, "--total-iters", 6)
    assert again.result() == whole.result()
    assert [line["iter"] for line in whole.metrics()] == [1, 2, 3, 4, 5, 6]
    assert {line["world_size"] for line in whole.metrics()} == {2}


STOPPED = {
    "ppo": (),
    "workers": ("--num-workers", 2),
    "a2c": ("--algo", "a2c", "--epochs", 1, "--minibatches", 1, "--log-every", 1),
    "three ranks": ("--ranks", 3),
}


@pytest.mark.sampled(len(STOPPED))
@pytest.mark.timeout(180)
@pytest.mark.parametrize("more", STOPPED.values(), ids=STOPPED)
def test_ranks_that_were_stopped_go_on_to_the_byte(place, whole, more):
    options = (*OPTIONS, *more, "--overwrite")
    straight = place.train("straight", *options, "--total-iters", 6) if more else whole
    cut = place.train("cut", *options, "--total-iters", 3)
    assert cut.checkpoints()[-1].name == "00000003"
    assert place.resume("cut", "--total-iters", 6).result() == straight.result()


def test_a_checkpoint_of_ranks_holds_the_columns_of_all_under_one_number_each(whole):
    arrays = load(whole.last("state.safetensors"))
    assert {name.split(".")[1] for name in arrays if name.startswith("sampler.")} == {"0", "1"}
    assert arrays["learner.return.running"].shape == (8,)
    rows = whole.metrics()[-1]["steps"]
    assert float(arrays["learner.obs.count"]) == pytest.approx(rows, abs=1e-3)
    assert float(arrays["learner.return.count"]) == pytest.approx(rows, abs=1e-3)
