"""Sync: the same sums for all ranks, everything in order of rank, no wait without an end."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
import zlib
from contextlib import closing, suppress

import numpy as np
import psutil
import pytest
import torch

from paceline.distributed import Local, network, rendezvous
from paceline.distributed.allreduce import Allreduce
from paceline.distributed.rank_memory import FUTEX, SLOT
from paceline.distributed.rendezvous import join_group
from paceline.errors import BadInput, LostRank, PacelineError
from paceline.rollout import Episode

shared = pytest.mark.skipif(not FUTEX, reason="ranks share memory on Linux, x86")
pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("clean")]

BACKENDS = [pytest.param("shm", marks=shared), "gloo"]
SIZES = [2, 3, 4]
NAMES = {"shm": "shared memory", "gloo": "gloo"}


def joined(place, rank, size, backend="auto", timeout=20.0, hosts=None):
    """`hosts` says which host each rank claims to be on."""
    found = join_group(place, rank, size, timeout, hosts[rank] if hosts else "")
    return closing(Allreduce(found, backend, timeout=timeout))


# Sums.


def part_of(rank, kind, count):
    """What a rank has to add; floats whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rank + 1)
    if kind == torch.int64:
        return torch.randint(-(2**40), 2**40, (count,), generator=generator)
    return torch.randn(count, dtype=kind, generator=generator) * 10.0**rank


def sums_of(place, rank, size, backend, kind, count):
    """Checksum of the sum, and how far it is from that in order of rank."""
    expected = part_of(0, kind, count)
    for other in range(1, size):
        expected = expected + part_of(other, kind, count)
    with joined(place, rank, size, backend) as sync:
        found = part_of(rank, kind, count)
        address = found.data_ptr()
        sync.sum(found)
        assert found.data_ptr() == address and found.dtype == kind
        assert (sync.rank, sync.size, sync.world_size) == (rank, size, size)
    assert sync.path == NAMES[backend]
    return zlib.crc32(found.numpy().data), (found - expected).abs().max().item()


LARGE = SLOT // 4 + 800_003
"""float32 numbers: more than one slot holds, and no round number."""
KINDS = {torch.float32: 1e-2, torch.float64: 1e-10, torch.int64: 0}
"""With the error of a sum in another order than that of ranks."""
SUMS = [
    *itertools.product(SIZES, KINDS, [1, 10_007]),
    (2, torch.float32, LARGE),
    pytest.param(4, torch.float32, LARGE, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("size", "kind", "count"), SUMS)
def test_a_sum_is_the_same_to_the_bit_on_all_ranks(together, backend, size, kind, count):
    """Memory adds in order of rank; gloo, where there are more than two, in an order of its own."""
    checksums, distances = zip(*together(sums_of, size, backend, kind, count), strict=True)
    assert len(set(checksums)) == 1
    assert max(distances) <= (0 if backend == "shm" or size == 2 else KINDS[kind])


def shapes_of(place, rank, size, backend):
    with joined(place, rank, size, backend) as sync:
        table = torch.full((3, 5), float(rank + 1))
        sync.sum(table)
        nothing = torch.zeros(0)
        sync.sum(nothing)
        piece = torch.arange(10.0)
        sync.sum(piece[2:4])  # as learners do with a part of a buffer
        crosswise = torch.arange(6.0).reshape(2, 3)
        with suppress(ValueError):  # gloo refuses it
            sync.sum(crosswise.T)
            assert crosswise.tolist() == [[0, 2, 4], [6, 8, 10]]
        return table.tolist(), len(nothing), piece.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sum_takes_any_shape_and_touches_nothing_beside_it(together, backend):
    """A tensor that is not contiguous is summed or refused."""
    expected = [[3.0] * 5] * 3, 0, [0.0, 1.0, 4.0, 6.0, *(float(n) for n in range(4, 10))]
    assert together(shapes_of, 2, backend) == [expected] * 2


def many_of(place, rank, size, backend, turns):
    """Sums of ever changing sizes and kinds; how often one was wrong, and how long they took."""
    rng, wrong = np.random.default_rng(0), 0
    with joined(place, rank, size, backend) as sync:
        began = time.monotonic()
        for turn in range(turns):
            kind = (torch.float32, torch.float64, torch.int64)[turn % 3]
            found = torch.full((int(rng.integers(1, 3000)),), rank + turn, dtype=kind)
            sync.sum(found)
            wrong += bool((found != size * turn + size * (size - 1) // 2).any())
        return wrong, time.monotonic() - began


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_hundreds_of_sums_are_all_right_and_prompt(together, backend, size):
    """Also with more ranks than CPUs: a rank that waits leaves the CPU to the others."""
    for wrong, seconds in together(many_of, size, backend, 300):
        assert wrong == 0
        assert seconds < 10


def waiting_of(place, rank, size, backend):
    """CPU seconds that a rank needs to wait for one that takes its time."""
    with joined(place, rank, size, backend) as sync:
        one = torch.ones(1)
        sync.sum(one)
        began = time.process_time()
        if rank == 0:
            time.sleep(1.0)
        sync.sum(one)
        return time.process_time() - began


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_leaves_the_cpu_to_others(together, backend):
    assert max(together(waiting_of, 4, backend)) < 0.3


# All else that passes between ranks.


def gathered_of(place, rank, size, backend, hosts=None):
    """Objects of very different sizes; those of a whole checkpoint are larger than a slot."""
    with joined(place, rank, size, backend, hosts=hosts) as sync:
        small = sync.gather(["rank", rank])
        uneven = sync.gather(str(rank) * (rank * (SLOT // 2) + rank))
        none = sync.gather(None)
        large = {"w": np.arange(SLOT // 8 + 1000, dtype=np.int64) + rank} if rank == 1 else rank
        lone = sync.gather(large)
        begun = sync.gather(rank)  # still in step
    assert np.array_equal(lone[1]["w"], np.arange(1, SLOT // 8 + 1001))
    counted = [(len(x), x.count(str(n))) for n, x in enumerate(uneven)]
    return small, counted, none, [*lone[:1], *lone[2:]], begun


def all_gathered(size):
    return (
        [["rank", n] for n in range(size)],
        [(n * (SLOT // 2) + n,) * 2 for n in range(size)],
        [None] * size,
        [0, *range(2, size)],
        list(range(size)),
    )


@pytest.mark.parametrize(
    ("backend", "size", "hosts"),
    [
        pytest.param("shm", 2, None, marks=shared),
        ("gloo", 2, None),
        pytest.param("shm", 4, None, marks=[shared, pytest.mark.slow]),
        pytest.param("gloo", 4, None, marks=pytest.mark.slow),
        pytest.param("auto", 4, "aabb", marks=shared),
    ],
)
def test_objects_of_any_size_are_gathered_in_order_of_rank(together, backend, size, hosts):
    assert together(gathered_of, size, backend, hosts) == [all_gathered(size)] * size


def agreed_of(place, rank, size, backend):
    with joined(place, rank, size, backend) as sync:
        flags = [sync.all(True), sync.all(rank != 1), sync.all(False), sync.all(rank == 0)]
        content = torch.full((1000,), float(rank + 1)) if rank else torch.arange(1000.0)
        given = sync.share(content)
        tables = sync.share(torch.full((2, 3), rank + 5, dtype=torch.int64))
        # What other ranks hold before they are given rank 0's content must not matter.
        nan = sync.share(torch.full((3,), float("nan") if rank else 2.0))
        largest = [sync.max(rank), sync.max(-rank), sync.max(7.5)]
        same = given.tolist() == list(range(1000))
        return flags, same, tables.tolist(), nan.tolist(), largest


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_agree_and_start_with_what_rank_0_has(together, backend, size):
    flags, tables, largest = [True, False, False, False], [[5] * 3] * 2, [size - 1, 0, 7.5]
    expected = flags, True, tables, [2.0] * 3, largest
    assert together(agreed_of, size, backend) == [expected] * size


def episode(rank, number):
    """With numbers of its info, under names that not all ranks have."""
    return Episode(10 * rank + number, number / 2, number, {"all": 1 / 3, f"rank {rank}": number})


def reduced_of(place, rank, size, backend):
    episodes = [episode(rank, n) for n in range(rank)]  # rank 0 has none
    with joined(place, rank, size, backend) as sync:
        first = sync.reduce_metrics(np.array([1.0, rank, 0.5]), episodes)
        quiet = sync.reduce_metrics(np.array([0.25]), [])
        again = sync.reduce_metrics(np.array([2.0]), episodes[:1])
        many = sync.reduce_metrics(np.array([1.0]), [episode(rank, n) for n in range(20 * rank)])
        plain = sync.reduce_metrics(np.array([1.0]), [Episode(rank, n / 3, n) for n in range(8)])
    return [(sums.tolist(), found) for sums, found in (first, quiet, again, many, plain)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_metrics_are_added_up_and_every_episode_arrives_once(together, backend, size):
    all_episodes = [episode(r, n) for r in range(size) for n in range(r)]
    expected = [
        ([size, size * (size - 1) / 2, size / 2], all_episodes),
        ([size / 4], []),
        ([2.0 * size], [episode(r, 0) for r in range(1, size)]),
        ([1.0 * size], [episode(r, n) for r in range(size) for n in range(20 * r)]),
        ([1.0 * size], [Episode(r, n / 3, n) for r in range(size) for n in range(8)]),
    ]
    assert together(reduced_of, size, backend) == [expected] * size


def test_the_sync_of_one_process_is_a_no_op():
    sync, tensor = Local(), torch.tensor([1.5, -2.0])
    sync.sum(tensor)
    assert tensor.tolist() == [1.5, -2.0] and sync.share(tensor) is tensor
    assert sync.gather("x") == ["x"] and sync.all(True) and not sync.all(False)
    sums, episodes = np.array([3.0]), [Episode(0, 1.0, 2)]
    assert sync.reduce_metrics(sums, episodes) == (sums, episodes) and sync.max(4.0) == 4.0
    assert (sync.rank, sync.size, sync.world_size, sync.path) == (0, 1, 1, "")


# Several hosts, by the names that ranks give.


SPREAD = {"one after the other": "aabb", "in turns": "abab", "uneven": "aabbb"}


def hosts_of(place, rank, size, hosts):
    """A sum of whole numbers, which no order of adding changes; one of others; who was gathered."""
    with joined(place, rank, size, hosts=hosts) as sync:
        whole = torch.full((5000,), float(2**rank))
        sync.sum(whole)
        broken = part_of(rank, torch.float32, 3000)
        sync.sum(broken)
        shared = sync.share(torch.full((2,), rank + 3.0))
        sums, episodes = sync.reduce_metrics(np.array([1.0]), [Episode(rank, 0.0, 1)])
        numbers = set(whole.tolist()), sums.tolist(), shared.tolist()
        columns = [episode.column for episode in episodes]
        return sync.path, numbers, broken.tolist(), sync.gather(rank), columns


@shared
@pytest.mark.parametrize("hosts", SPREAD.values(), ids=SPREAD)
def test_ranks_of_two_hosts_add_up_and_gather_in_order_of_rank(together, hosts):
    size = len(hosts)
    found = together(hosts_of, size, hosts)
    path, numbers, broken, _, _ = found[0]
    assert path == "shared memory, gloo between 2 hosts"
    assert numbers == ({float(2**size - 1)}, [float(size)], [3.0, 3.0])
    assert all((p, n, b) == (path, numbers, broken) for p, n, b, _, _ in found)
    expected = sum(part_of(rank, torch.float32, 3000).double() for rank in range(size))
    np.testing.assert_allclose(broken, expected.numpy(), rtol=1e-5, atol=1e-2)
    for *_, gathered, columns in found:
        assert gathered == columns == list(range(size))


def test_where_a_host_has_one_rank_all_goes_through_the_network(together):
    for path, numbers, _, gathered, _ in together(hosts_of, 3, "aab"):
        assert path == "gloo"
        assert numbers == ({7.0}, [3.0], [3.0, 3.0]) and gathered == [0, 1, 2]


def refused_of(place, rank, size, hosts):
    with pytest.raises(BadInput) as error:
        joined(place, rank, size, "shm", hosts=hosts)
    return str(error.value)


@pytest.mark.parametrize("hosts", ["ab", "aabb", "aab"])
def test_memory_between_hosts_is_refused(together, hosts):
    for said in together(refused_of, len(hosts), hosts):
        assert "'shm'" in said and "no memory in common" in said and "gloo" in said


# Ranks that go, hang, or take their time.


def lost_of(place, rank, size, backend, timeout, how, hosts=None):
    """Of those that stay: whether they say which rank is lost, and when they have left."""
    one = torch.ones(1)
    with joined(place, rank, size, backend, timeout, hosts) as sync:
        pids = sync.gather(os.getpid())
        if rank == 1:
            how()
        began = time.monotonic()
        said = "no rank was lost"
        try:
            sync.sum(one)
        except LostRank as error:
            said = str(error)
    return f"rank 1 (pid {pids[1]})" in said, said, time.monotonic() - began


def leave():
    time.sleep(0.1)
    os._exit(0)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def hang():
    time.sleep(600)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_leaves_is_named_at_once(together, backend, size):
    for _ in range(4):  # what breaks first, the process or its connections, is a matter of chance
        for found in together(lost_of, size, backend, 60.0, leave, absent=(1,))[::2]:
            named, said, took = found
            assert named and " gone" in said, said
            assert took < 6  # of a timeout of 60 s


def absent_of(place, rank, size, backend):
    """Rank 1 goes when all have met, and before they have made anything of it."""
    rendezvous.MIN_JOIN_SECONDS = 2.0
    found = join_group(place, rank, size, 1.0)
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    with pytest.raises((PacelineError, RuntimeError)):  # as `make_sync` takes it for a lost rank
        Allreduce(found, backend, timeout=1.0)
    return time.monotonic() - began


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_leaves_before_it_has_joined_is_not_waited_for_without_end(together, backend):
    found = together(absent_of, 3, backend, absent=(1,), within=15)
    assert max(found[0], found[2]) < 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [stop, hang])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_that_hangs_is_named_after_the_timeout(together, backend, how):
    """By the first that notices; the other may see that one leave before it has noticed itself."""
    found = together(lost_of, 3, backend, 1.0, how, absent=(1,), within=10)[::2]
    assert any(named and "no sign of life for 1 s" in said for named, said, _ in found), found
    for _, said, took in found:
        assert said != "no rank was lost"
        assert 0.9 < took < 6.0


@pytest.mark.sampled(2)
@shared
@pytest.mark.parametrize("how", [leave, stop])
def test_a_rank_that_is_lost_is_noticed_by_all_hosts(together, how):
    """Rank 1 is not the first of its host; those of the other learn of it from who leaves next."""
    found = together(lost_of, 4, "auto", 1.5, how, "aabb", absent=(1,), within=20)
    named, said, _ = found[0]
    assert named, said
    for _, said, took in found[2:]:
        assert said != "no rank was lost"
        assert took < 5.0


def slow_of(place, rank, size, backend, timeout, seconds, slow, hosts=None):
    """`slow` works on for longer than the timeout, and shows it; the sum in the end."""
    network.STORE_BEAT = 0.2
    with joined(place, rank, size, backend, timeout, hosts) as sync:
        end = time.monotonic() + seconds
        while rank == slow and time.monotonic() < end:
            sync.heartbeat.row += 1
            time.sleep(0.05)
        one = torch.ones(1)
        try:
            sync.sum(one)
        except LostRank as error:
            return str(error)
        return float(one)


WAYS = {
    "memory": pytest.param("shm", 3, None, marks=shared),
    "network": pytest.param("gloo", 3, None),
    "two hosts": pytest.param("auto", 4, "aabb", marks=shared),
}
ways = pytest.mark.parametrize(("backend", "size", "hosts"), WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.slow), -1])
def test_a_rank_that_is_slow_but_alive_is_waited_for(together, backend, size, hosts, slow):
    """And who waits for it is alive too: of two hosts, rank 0 sees only rank 2 wait for rank 3."""
    found = together(slow_of, size, backend, 3.0, 4.0, slow % size, hosts)
    assert found == [float(size)] * size


def steady_of(place, rank, size, backend, slow, hosts=None):
    """`slow` has nothing to show but that it takes part, again and again."""
    network.STORE_BEAT = 0.2
    with joined(place, rank, size, backend, 3.0, hosts) as sync:
        for turn in range(4):
            if rank == slow:
                time.sleep(0.9)  # four times, longer than the timeout
            one = torch.ones(1)
            try:
                sync.sum(one)
            except LostRank as error:
                return f"sum {turn}: {error}"
        return float(one)


@ways
def test_a_rank_that_takes_part_is_alive(together, backend, size, hosts):
    """Minibatch after minibatch it is the last to come, and never for as long as the timeout."""
    assert together(steady_of, size, backend, 2, hosts) == [float(size)] * size


def apart_of(place, rank, size):
    with joined(place, rank, size, "shm") as sync:
        sync.sum(torch.ones(3))
        with pytest.raises(PacelineError) as error:
            sync.sum(torch.ones(10 + rank))
        return str(error.value)


@shared
def test_ranks_that_exchange_different_sizes_fail(together):
    first, second = together(apart_of, 2)
    assert "rank 1 exchanges 44 bytes, and rank 0 40" in first
    assert "rank 0 exchanges 40 bytes, and rank 1 44" in second


# What listens.


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_store_that_rank_0_hosts_listens_at_its_address_alone(together, address):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = together(listening_of, 2, f"tcp://{address}:{port}", port)
    assert found[0] and found[0] <= {"127.0.0.1", "::1"}


def listening_of(place, rank, size, tcp, port):
    group = join_group(tcp, rank, size, 10.0)
    held = psutil.Process().net_connections("tcp")
    found = {one.laddr.ip for one in held if one.status == "LISTEN" and one.laddr.port == port}
    if rank:
        group.store.set("met", "1")
    else:
        group.store.wait(["met"])
    return found
