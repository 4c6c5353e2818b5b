"""The process layer: silence of heartbeats, exit reasons, children that end with their parent."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from paceline.processes import heartbeat
from paceline.processes.heartbeat import HangDetector
from paceline.processes.lifetime import exit_reason
from paceline.processes.shared_memory import Layout

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def test_silence_lasts_until_a_heartbeat_changes(clock):
    detector, found = HangDetector(tick=1.0), []
    for beats in ({0: b"a", 1: b"x"}, {0: b"a", 1: b"y"}, {0: b"a", 1: b"y"}, {0: b"b", 1: b"y"}):
        clock(1.0)
        found.append(list(detector.look(beats).values()))
    assert found == [[0, 0], [1, 0], [2, 1], [0, 2]]


def test_time_in_which_nobody_looked_counts_as_two_ticks(clock):
    detector = HangDetector(tick=1.0)
    detector.look({0: b"a"})
    clock(1000.0)
    assert detector.look({0: b"a"}) == {0: 2.0}


@pytest.mark.parametrize("how", ["forgotten", "left out"])
def test_silence_begins_anew_with_a_process_that_was_forgotten_or_left_out(clock, how):
    detector = HangDetector(tick=1.0)
    detector.look({0: b"a"})
    detector.forget(0) if how == "forgotten" else detector.look({})
    clock(1.0)
    assert detector.look({0: b"a"}) == {0: 0.0}


def test_a_look_is_due_after_half_a_tick(clock):
    detector = HangDetector(tick=1.0)
    clock(0.4)
    assert not detector.due
    clock(0.2)
    assert detector.due


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (None, "is gone"),
        (0, "exited with 0"),
        (7, "exited with 7"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_exit_reasons(code, reason):
    assert exit_reason(code) == reason


def test_arrays_that_do_not_fit_into_shared_memory_are_refused():
    layout = Layout(memoryview(bytearray(128)))
    layout.array((8,), np.float64)
    with pytest.raises(MemoryError):
        layout.array((9,), np.float64)


PARENT = """
import threading, time
from paceline.processes.start import start_python

def start():
    print(start_python("time:sleep", 1000).pid, flush=True)

start() if {main} else threading.Thread(target=start).start()
time.sleep(1000)
"""


@pytest.mark.parametrize("main", [True, False], ids=["main thread", "another thread"])
def test_a_child_ends_with_its_parent_whichever_thread_started_it(main):
    code = PARENT.format(main=main)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.5)
        assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        parent.kill()
    _, left = psutil.wait_procs([child], timeout=5)
    assert not left or child.status() == psutil.STATUS_ZOMBIE
