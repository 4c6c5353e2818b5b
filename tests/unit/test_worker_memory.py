"""Shared memory: everything has a place of its own, and nobody reads half of the weights."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from environments import OBSERVATIONS

from paceline.envs.spaces import action_spec, observation_spec
from paceline.processes.shared_memory import CACHE_LINE, anonymous_file
from paceline.rollout import RolloutSpec
from paceline.samplers.worker_memory import PublishedWeights, WorkerMemory

ABSENT = ("before", "value", "state", "stepped", "over")
"""Fields that not every rollout has."""
pytestmark = pytest.mark.timeout(60)


def layout(obs="box", weights=7, workers=3, slots=2, steps=3, columns=5):
    act = gym.spaces.Discrete(4)
    spec = observation_spec(OBSERVATIONS[obs], action_spec(act), {"action_mask": 1})
    stored = spec.stored, action_spec(act).stored, spec.history
    return weights, workers, slots, RolloutSpec(steps, columns, *stored)


@contextmanager
def shared(sizes, views=2):
    """The memory as so many processes would see it, through mappings of their own."""
    file = anonymous_file()
    try:
        yield [WorkerMemory(file, *sizes) for _ in range(views)]
    finally:
        os.close(file)


def arrays_of(memory):
    """All of it, by name."""
    found = {"header": memory.weights._header, "weights": memory.weights._values}
    for number, heartbeat in enumerate(memory.heartbeats):
        found[f"heartbeat {number}"] = np.frombuffer(heartbeat, np.int64)
    for number, slot in enumerate(memory.slots):
        found |= {f"slot {number} {name}": array for name, array in slot.arrays().items()}
    return found


@pytest.mark.parametrize("obs", ["box", "discrete", "dict", "image and numbers"])
def test_no_two_arrays_overlap_or_share_a_cache_line(obs):
    with shared(layout(obs), views=1) as (memory,):
        spans = []
        for name, array in arrays_of(memory).items():
            assert array.flags.c_contiguous, name
            assert array.size or name.endswith(ABSENT), name  # not everyone has them
            begin = array.__array_interface__["data"][0]
            assert begin % CACHE_LINE == 0, name
            spans.append((begin, begin + array.nbytes))
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert begin >= end
            assert begin // CACHE_LINE > (end - 1) // CACHE_LINE


def test_a_slot_has_the_shapes_of_a_rollout():
    sizes = _, workers, slots, rollout = layout(steps=6, columns=4)
    with shared(sizes, views=1) as (memory,):
        assert (len(memory.slots), len(memory.heartbeats)) == (slots, workers)
        for slot in memory.slots:
            assert (slot.steps, slot.columns) == (6, 4)
            assert slot.obs.shape[:2] == (7, 4) and slot.obs.dtype == rollout.obs[1]


def test_what_one_side_writes_the_other_sees_in_the_same_place():
    with shared(layout("image and numbers")) as (ours, theirs):
        rng = np.random.default_rng(0)
        mine, others = arrays_of(ours), arrays_of(theirs)
        for array in mine.values():
            array.view(np.uint8)[...] = rng.integers(0, 256, array.view(np.uint8).shape)
        for name, array in mine.items():
            assert array.tobytes() == others[name].tobytes(), name
            assert not np.shares_memory(array, others[name])


def test_the_file_has_no_name_and_is_not_inherited():
    file = anonymous_file()
    try:
        assert "(deleted)" in os.readlink(f"/proc/self/fd/{file}")  # noqa: PTH115
        assert not os.get_inheritable(file)
    finally:
        os.close(file)


def test_the_memory_lasts_as_long_as_somebody_has_it():
    with shared(layout()) as (ours, theirs):
        ours.weights.write(np.arange(7, dtype=np.float32), 4)
    out = np.empty(7, np.float32)  # the descriptor is closed, the mappings are not
    assert theirs.weights.read(out) == 4 and out.tolist() == list(range(7))


# The sequence lock.


def weights_of(size=8, checked=False):
    return PublishedWeights(np.zeros(4, np.int64), np.zeros(size, np.float32), checked)


def full(value, size=8):
    return np.full(size, value, np.float32)


both = pytest.mark.parametrize("checked", [False, True])


@both
def test_the_latest_weights_are_read_with_their_version(checked):
    weights, out = weights_of(checked=checked), full(-1)
    for version in (1, 2, 2**40):
        weights.write(full(version), version)
        assert weights.version == weights.read(out) == version
        assert out.tolist() == full(version).tolist()


class Halting:
    """Weights that, while they are being written, wait until they may go on."""

    def __init__(self, values):
        self.values, self.begun, self.go_on = values, threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.begun.set()
        assert self.go_on.wait(20)
        return self.values


def read_once(weights, release):
    """Version and values that a reader gets, which has to wait until something is released."""
    out, read = full(-1), []
    reader = threading.Thread(target=lambda: read.append(weights.read(out)))
    reader.start()
    time.sleep(0.1)
    assert reader.is_alive() and not read
    release()
    reader.join(20)
    return read, out.tolist()


@both
def test_a_reader_that_comes_in_the_middle_of_a_write_waits_for_its_end(checked):
    weights, slow = weights_of(checked=checked), Halting(full(2))
    weights.write(full(1), 1)
    writer = threading.Thread(target=weights.write, args=(slow, 2))
    writer.start()
    assert slow.begun.wait(20)
    assert read_once(weights, slow.go_on.set) == ([2], full(2).tolist())
    writer.join(20)


class Meddled(np.ndarray):
    """An array during, or after, whose first copies somebody writes anew what is copied."""

    def __setitem__(self, place, values):
        plain, half = self.view(np.ndarray), len(self) // 2
        self.copies += 1
        if self.copies > len(self.writes):
            plain[:] = values
        elif self.inside:
            plain[:half] = values[:half]
            self.writes[self.copies - 1]()
            plain[half:] = values[half:]
        else:
            plain[:] = values
            self.writes[self.copies - 1]()


@both
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("number", [1, 3])
def test_a_copy_during_which_there_was_a_write_is_thrown_away(checked, inside, number):
    """A write in the middle of the copy, or between it and the second look at the header."""
    weights = weights_of(checked=checked)
    weights.write(full(1), 1)
    out = full(-1).view(Meddled)
    out.copies, out.inside = 0, inside
    out.writes = [lambda v=v: weights.write(full(v), v) for v in range(2, 2 + number)]
    assert weights.read(out) == 1 + number
    assert out.copies == 1 + number
    assert out.tolist() == full(1 + number).tolist()


@pytest.mark.parametrize(("field", "place", "late"), [("_values", 3, 9), ("_header", 1, 1)])
def test_a_checksum_detects_values_or_a_version_that_arrive_late(field, place, late):
    """As on machines where other cores may see writes in another order."""
    weights = weights_of(checked=True)
    weights.write(full(2), 2)
    array = getattr(weights, field)
    array[place] = late
    assert read_once(weights, lambda: array.__setitem__(place, 2)) == ([2], full(2).tolist())


# With a process that writes all the time.

SIZE = 2**18
"""Floats: a megabyte, which no copy takes at once."""
WRITER = """
import mmap, sys, time
import numpy as np
from paceline.rollout import RolloutSpec
from paceline.samplers.worker_memory import PublishedWeights

file, size, checked = map(int, sys.argv[1:])
buffer = mmap.mmap(file, 64 + 4 * size)
values = np.ndarray(size, np.float32, buffer, 64)
weights = PublishedWeights(np.ndarray(4, np.int64, buffer), values, bool(checked))
print("ready", flush=True)
version, end = 0, time.monotonic() + 30
while time.monotonic() < end:
    version += 1
    weights.write(np.full(size, version, np.float32), version)
    time.sleep(0.0005)
"""


@contextmanager
def written_all_the_time(checked):
    """Weights that another process writes, every value equal to the version; and the values."""
    file = anonymous_file()
    os.ftruncate(file, 64 + 4 * SIZE)
    command = [sys.executable, "-c", WRITER, str(file), str(SIZE), str(int(checked))]
    process = subprocess.Popen(command, pass_fds=(file,), stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        buffer = mmap.mmap(file, 64 + 4 * SIZE)
        values = np.ndarray(SIZE, np.float32, buffer, 64)
        yield PublishedWeights(np.ndarray(4, np.int64, buffer), values, checked), values
    finally:
        process.kill()
        process.communicate()
        os.close(file)


def torn(values):
    return values.min() != values.max()


@both
def test_no_read_is_torn_while_another_process_writes(checked):
    """Without the lock, copies of the same memory in the same time are."""
    out, seen, without = np.empty(SIZE, np.float32), set(), 0
    with written_all_the_time(checked) as (weights, values):
        while weights.version == 0:
            time.sleep(0.001)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            version = weights.read(out)
            assert out[0] == version and not torn(out)
            seen.add(version)
        end = time.monotonic() + 2
        while time.monotonic() < end and without < 10:
            out[:] = values
            without += torn(out)
    assert len(seen) > 50  # so there was something to read
    assert without > 0
