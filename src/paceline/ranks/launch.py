"""launch: a run's ranks, started by torchrun's elastic agent on this host, and what they report.

The agent runs in a process of its own, whose environment holds nothing of another launcher. Every
rank has a channel to this process: down go the job and when to stop, up come reports and the log.
Nothing here listens where another user could connect: see `channel.py` and `_meeting_place`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium as gym
import psutil

from ..config.schema import Config
from ..envs.suites.gym import registered
from ..errors import EnvironmentFailed, LostRank, PacelineError, StoppedEarly
from ..processes.channel import Channel, Listener
from ..processes.hardware import THREAD_VARIABLES, nameless_file, oom_kills, python_command
from ..processes.launcher import LAUNCH, LINE, MEETING, asked_at, check_init_method
from ..processes.sending import Logged, by_value
from ..run.report import Report
from ..storage.files import shown

log = logging.getLogger("paceline")

TICK = 0.1
"""Seconds between two looks at whether somebody wants to stop."""
GRACE = 20.0
"""Seconds that ranks have to leave when the run has failed."""
STOP_SECONDS = 20.0
"""That ranks have to finish their iteration and save when they are told to stop."""
FOREIGN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that launchers set; all of `FAMILIES` besides."""
FAMILIES = ("TORCHELASTIC_", "PET_")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Job:
    """What every rank is to do: `paceline.session`'s train or resume, with these arguments."""

    what: str
    subject: Config | str
    changes: dict[str, Any]
    registered: list[gym.envs.registration.EnvSpec]
    """environments that the process which starts the ranks knows, and they may not"""
    command: list[str]
    """what the user has typed"""
    asked: float
    """when"""


def job(what: str, subject: Config | str, env_id: Any, /, **changes: Any) -> Job:
    return Job(what, subject, changes, registered(env_id), sys.argv, asked_at())


# What a rank says; or a `LostRank`, of another, or any other `PacelineError`: the run can't go on,
# however often it is started again.


@dataclass(frozen=True)
class Hello:
    rank: int
    pid: int
    attempt: int


@dataclass(frozen=True)
class Ended:
    """Its part of the run is done, or was stopped where all agreed to."""


STOP = "stop"
ALONE = "leave ranks at 1"


def launch(
    job: Job, config: Config, processes: int, stopping: Callable[[], bool]
) -> Iterator[Report]:
    """Start the ranks; yield rank 0's reports; leaving the loop ends them, with a checkpoint."""
    ranks = Ranks(job, config, processes)
    try:
        yield from ranks.reports(stopping)
    except GeneratorExit:
        ranks.stop()
        for _ in ranks.reports(lambda: True):
            pass
        raise
    finally:
        ranks.close()


class Ranks:
    def __init__(self, job: Job, config: Config, processes: int) -> None:
        check_init_method(config.init_method)
        self._job = by_value(job, ALONE)
        self._most = config.max_restarts
        self._folder = str(getattr(job.subject, "output_dir", job.subject))
        self._channels: dict[Channel, Hello | None] = {}
        self._attempt, self._failures, self._furthest = 0, 0, 0
        self._lost: str | None = None
        """what befell the rank that went first, if one did"""
        self._oom_kills = oom_kills()
        self._stop_by: float | None = None
        """when ranks that were told to stop must have left"""
        with ExitStack() as stack:
            self._listener = Listener(processes)
            stack.callback(self._listener.close)
            told = {
                LINE: self._listener.address,
                LAUNCH: secrets.token_hex(16),
                MEETING: _meeting_place(stack),
            }
            self._agent = _agent(processes, told)
            self._resources = stack.pop_all()

    def reports(self, stopping: Callable[[], bool]) -> Iterator[Report]:
        """Until all ranks have left."""
        over = False
        while not over:
            gone = self._agent.poll() is not None
            if self._stop_by is None and stopping():
                self.stop()
            self._check_deadline()
            heard = self._heard()
            over = gone and not heard
            for channel in heard:
                message = self._received(channel)
                match message:
                    case Report():
                        if message.iter > self._furthest:  # else it was only done again
                            self._furthest, self._failures = message.iter, 0
                        yield message
                    case Hello():
                        self._welcome(channel, message)
                    case Logged(level, text, trace):
                        log.log(level, "%s%s", text, f"\n{trace}" if trace else "")
                    case LostRank():
                        self._lost = self._lost or f"{message}{self._memory_told()}"
                        self._end(message.hangs)
                    case PacelineError():
                        raise message
                    case Ended():
                        self._hang_up(channel)
        if self._agent.returncode:
            what = self._lost or "the launcher of ranks has gone"
            raise StoppedEarly(f"{what}; go on with `paceline resume {shown(self._folder)}`")

    def _check_deadline(self) -> None:
        """Ranks that were told to stop, and hang, are not waited for."""
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            raise StoppedEarly(
                f"the ranks did not stop within {STOP_SECONDS:.0f} s and were ended; go on from "
                f"the last checkpoint with `paceline resume {shown(self._folder)}`"
            )

    def _heard(self) -> list[Channel]:
        """Channels on which something was said."""
        ready = wait([self._listener.socket, *self._channels], TICK)
        if self._listener.socket in ready and (channel := self._listener.accept()) is not None:
            self._channels[channel] = None
        if not ready:
            self._wake_agent()
        return [channel for channel in ready if isinstance(channel, Connection)]

    def _wake_agent(self) -> None:
        """An agent that somebody has stopped (SIGSTOP) starts no ranks again, and never ends."""
        with suppress(psutil.Error):
            if psutil.Process(self._agent.pid).status() == psutil.STATUS_STOPPED:
                log.warning("the launcher of ranks was stopped; it is told to go on")
                self._agent.send_signal(signal.SIGCONT)

    def _received(self, channel: Channel) -> Any:
        if channel not in self._channels:  # hung up meanwhile
            return None
        try:
            return channel.recv()
        except (EOFError, OSError):
            hello = self._channels[channel]
            if hello is not None and hello.attempt == self._attempt and self._lost is None:
                self._lost = f"rank {hello.rank} (pid {hello.pid}) has gone{self._memory_told()}"
            self._hang_up(channel)
            return None

    def _memory_told(self) -> str:
        """What may have ended a rank, where the kernel says so."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return ": the system ran out of memory" if self._oom_kills > before else ""

    def _welcome(self, channel: Channel, hello: Hello) -> None:
        if hello.attempt > self._attempt:
            self._begin_again(hello.attempt)
        self._channels[channel] = hello
        with suppress(OSError):
            channel.send_bytes(self._job)
            if self._stop_by is not None:
                channel.send(STOP)

    def _begin_again(self, attempt: int) -> None:
        self._attempt = attempt
        self._failures += 1
        what = self._lost or "a rank has gone"
        if self._failures > self._most:
            raise EnvironmentFailed(
                f"{what}; that was failure {self._failures} in a row without getting any further"
            )
        log.warning("%s; all ranks start again from the last checkpoint", what)
        self._lost = None
        for channel, hello in list(self._channels.items()):
            # What a rank's environment has started may hold its channel open, and outlive it.
            if hello is not None and hello.attempt < attempt:
                self._hang_up(channel)

    def _end(self, pid: int | None) -> None:
        """Kill a rank that hangs, for which the agent would otherwise wait."""
        ours = [hello.pid for hello in self._channels.values() if hello is not None]
        if pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Have all ranks stop where they next agree."""
        self._stop_by = time.monotonic() + STOP_SECONDS
        for channel, hello in self._channels.items():
            if hello is not None:
                with suppress(OSError):
                    channel.send(STOP)

    def _hang_up(self, channel: Channel) -> None:
        del self._channels[channel]
        channel.close()

    def close(self) -> None:
        """Make sure that nobody is left."""
        self._wake_agent()
        if self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._agent.wait(GRACE)
        self._agent.kill()
        self._agent.wait()
        for channel in list(self._channels):
            self._hang_up(channel)
        self._resources.close()


def _meeting_place(stack: ExitStack) -> str:
    """A file:// address that only this user's processes can open, and that leaves nothing behind.

    On Linux it is memory of this process, which others of the same user open through /proc.
    """
    if sys.platform == "linux":
        file = nameless_file()
        stack.callback(os.close, file)
        return f"file:///proc/{os.getpid()}/fd/{file}"
    folder = tempfile.mkdtemp(prefix="paceline-")  # mode 0700
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return f"file://{folder}/meeting"


def _agent(processes: int, told: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that starts this many ranks, and starts all of them again when one goes."""
    code = (
        f"from paceline.processes.hardware import end_with; end_with({os.getpid()}); "
        f"from paceline.ranks.elastic import main; main({processes})"
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN and not name.startswith(FAMILIES)
    }
    ours = {
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    return subprocess.Popen(
        python_command(code),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=kept | ours | told,
    )
