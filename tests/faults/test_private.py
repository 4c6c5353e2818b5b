"""What others on the host or the network could reach of a run: nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from ranked import Command

from paceline import BadInput
from paceline.processes.channel import Listener, connect
from paceline.processes.launcher import STORE_HEADER, check_init_method

pytestmark = pytest.mark.timeout(240)

NOBODY = 65534
TINY = "--num-envs 2 --rollout-steps 16 --compile off --track none --eval-episodes 1 "
COMMANDS = {
    "ranks": "train --output-dir run --ranks 2 --total-iters 60 " + TINY,
    "gloo": "train --output-dir run --ranks 2 --backend gloo --total-iters 30 " + TINY,
    "ddppo": "train --output-dir run --algo ddppo --total-iters 60 " + TINY,
    "a3c": "train --output-dir run --algo a3c --num-workers 2 --total-steps 3000 --track none",
    "workers": "train --output-dir run --algo impala --num-workers 2 --total-iters 60 " + TINY,
    "scale": "scale --output-dir run --ranks 1,2 --repeats 1 --warmup-iters 1 --iters 2",
    "tune": "tune --mode parallel --time 10s --output tuned.yaml",
    "bench": "bench --output-dir run --algos ppo --modes ranks --seeds 1 --duration 3s",
}
SLOW = ("ddppo", "scale", "bench", "tune", "gloo", "workers")
root = pytest.mark.skipif(os.geteuid() != 0, reason="takes another user id, which root alone has")


def listeners(process):
    """(address, port) of every TCP socket on which a process of this tree listens."""
    found = set()
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            for held in one.net_connections("inet"):
                if held.status == psutil.CONN_LISTEN or (not held.raddr and held.type != 1):
                    found.add((held.laddr.ip, held.laddr.port))
    return found


def abstract_names():
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.split()[-1] for line in lines if "@paceline-" in line}


@pytest.mark.parametrize(
    "what", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in COMMANDS]
)
def test_nothing_of_a_command_listens_outside_loopback(shell, what):
    command = Command(shell, *COMMANDS[what].split())
    process, seen = psutil.Process(command.pid), set()
    while command.process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            seen |= listeners(process)
        time.sleep(0.02)
    assert command.end() == 0, command.err
    if what == "gloo":  # its own connections, which carry numbers and plain data
        assert {address for address, _ in seen} <= {"127.0.0.1", "::1"}
    else:
        assert not seen


STRANGER = """
import os, socket, sys, time
os.setgid({nobody}); os.setuid({nobody})
ours = socket.socket(socket.AF_UNIX)
ours.connect(chr(0) + sys.argv[1])
ours.settimeout(20)
try:
    print("heard", ours.recv(1))
except OSError as error:
    print("refused", error)
"""


@root
def test_another_user_who_connects_to_the_launcher_is_refused_and_blocks_nothing(shell):
    """One that connects and stays silent would have stopped the console, and Ctrl-C with it."""
    before = abstract_names()
    command = Command(shell, *COMMANDS["ranks"].split())
    (name,) = command.await_(lambda: abstract_names() - before)
    stranger = subprocess.run(
        [sys.executable, "-c", STRANGER.format(nobody=NOBODY), name[1:]],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert stranger.stdout == "heard b''\n"
    assert command.end() == 0, command.err


@root
def test_a_rank_does_not_connect_to_a_launcher_of_another_user():
    """Who listens under the name of a launcher that has gone could send it anything."""
    name = f"paceline-test-{os.getpid()}"
    code = (
        f"import os, socket, time; os.setgid({NOBODY}); os.setuid({NOBODY}); "
        f"s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + {name!r}); s.listen(); "
        "print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stranger:
        try:
            stranger.stdout.readline()
            assert connect(f"@{name}") is None
        finally:
            stranger.kill()


@pytest.fixture
def listener():
    with closing(Listener(1)) as found:
        yield found


@pytest.fixture
def channels(listener, monkeypatch):
    """Both ends of a connection."""
    monkeypatch.setattr("paceline.processes.channel.STALLED", 1)
    with closing(connect(listener.address)) as ours, closing(listener.accept()) as theirs:
        yield ours, theirs


def test_a_process_of_the_same_user_is_accepted(listener, channels):
    ours, theirs = channels
    ours.send("hello")
    assert theirs.receive() == "hello"
    assert listener.accept() is None  # nobody else: it does not wait


def test_a_message_that_is_never_finished_ends_its_channel_only(channels):
    ours, theirs = channels
    with socket.socket(fileno=os.dup(ours.fileno())) as raw:
        raw.send(b"\0\0")
    with pytest.raises(OSError):
        theirs.receive()


@pytest.mark.parametrize(
    "content", [b"somebody's diary\n" * 9, b"\x00" * 64], ids=["text", "zeros"]
)
def test_a_rendezvous_file_that_is_not_a_store_is_refused_and_left_alone(shell, content):
    file = shell.folder / "diary"
    file.write_bytes(content)
    flags = ("--ranks", "2", "--init-method", f"file://{file}", "--total-iters", "2")
    ended = shell("train", "--output-dir", "run", *flags, timeout=30)
    assert ended.code == 2 and "init_method" in ended.err and "Traceback" not in ended.err
    assert file.read_bytes() == content


def test_a_store_that_another_rank_is_just_beginning_is_accepted(tmp_path):
    file = tmp_path / "store"
    for size in range(len(STORE_HEADER) + 1):
        file.write_bytes(STORE_HEADER[:size])
        check_init_method(f"file://{file}")
    file.write_bytes(STORE_HEADER[:-1] + b"!")
    with pytest.raises(BadInput, match="not a file of a rendezvous"):
        check_init_method(f"file://{file}")
