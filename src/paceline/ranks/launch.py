"""launch: a run's ranks, started by torchrun's elastic agent on this host, and what they report.

The agent runs in a process of its own, with an environment in which nothing is left that another
launcher, a strange host name or a proxy may have put there. Every rank has a line to this process:
down it goes what is to be done and when to stop, up come rank 0's reports and everybody's words.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from typing import Any

import gymnasium as gym

from ..config import Config
from ..envs.gym import registered
from ..errors import EnvironmentFailed, PacelineError, StoppedEarly
from ..files import shown
from ..launcher import LAUNCH, LINE, asked_at
from ..machine import THREAD_VARIABLES
from ..metrics import Report
from ..sending import by_value

log = logging.getLogger("paceline")

TICK = 0.1
"""Seconds between two looks at whether somebody wants to stop."""
GRACE = 20.0
"""Seconds that ranks have to leave when the run has failed."""
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


# What a rank says.


@dataclass(frozen=True)
class Hello:
    rank: int
    pid: int
    attempt: int


@dataclass(frozen=True)
class Said:
    level: int
    text: str


@dataclass(frozen=True)
class Lost:
    """Another rank has gone, or hangs: in what words."""

    text: str
    hangs: int | None
    """id of its process, if it is still there"""


@dataclass(frozen=True)
class Ended:
    """Its part of the run is done, or was stopped where all agreed to."""


@dataclass(frozen=True)
class Failed:
    """The run can't go on, however often it is started again."""

    error: PacelineError


STOP = "stop"
ALONE = "leave ranks at 1"


def launch(job: Job, config: Config, stopping: Callable[[], bool]) -> Iterator[Report]:
    """Start the ranks; yield rank 0's reports; leaving the loop ends them, with a checkpoint."""
    ranks = Ranks(job, config)
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
    def __init__(self, job: Job, config: Config) -> None:
        self._job = by_value(job, ALONE)
        self._most = config.max_restarts
        self._folder = str(getattr(job.subject, "output_dir", job.subject))
        key, name = secrets.token_bytes(32), secrets.token_hex(16)
        # Linux has names that no directory knows; elsewhere it is a file in the temporary folder.
        address = f"\0paceline-{name}" if sys.platform == "linux" else None
        self._door = Listener(address, "AF_UNIX", backlog=config.processes, authkey=key)
        self._lines: dict[Connection[Any, Any], Hello | None] = {}
        self._attempt, self._failures, self._furthest = 0, 0, 0
        self._lost: str | None = None
        """what befell the rank that went first, if one did"""
        self._stop = False
        line = f"{os.fsencode(self._door.address).hex()}:{key.hex()}"
        self._agent = _agent(config.processes, {LINE: line, LAUNCH: name})

    def reports(self, stopping: Callable[[], bool]) -> Iterator[Report]:
        """Until all ranks have left."""
        over = False
        while not over:
            gone = self._agent.poll() is not None
            if not self._stop and stopping():
                self.stop()
            heard = self._heard()
            over = gone and not heard
            for line in heard:
                message = self._received(line)
                match message:
                    case Report():
                        if message.iter > self._furthest:  # else it was only done again
                            self._furthest, self._failures = message.iter, 0
                        yield message
                    case Hello():
                        self._welcome(line, message)
                    case Said():
                        log.log(message.level, "%s", message.text)
                    case Lost():
                        self._lost = self._lost or message.text
                        self._end(message.hangs)
                    case Failed(error):
                        raise error
                    case Ended():
                        self._hang_up(line)
        if self._agent.returncode:
            what = self._lost or "the launcher of ranks has gone"
            raise StoppedEarly(f"{what}; go on with `paceline resume {shown(self._folder)}`")

    def _heard(self) -> list[Connection[Any, Any]]:
        """Lines on which something was said."""
        door = self._door._listener._socket  # type: ignore[attr-defined]
        ready = wait([door, *self._lines], TICK)
        if door in ready:
            with suppress(Exception):  # somebody else, who does not know the key
                self._lines[self._door.accept()] = None
        return [line for line in ready if isinstance(line, Connection)]

    def _received(self, line: Connection[Any, Any]) -> Any:
        if line not in self._lines:  # hung up meanwhile
            return None
        try:
            return line.recv()
        except (EOFError, OSError):
            hello = self._lines[line]
            if hello is not None and hello.attempt == self._attempt and self._lost is None:
                self._lost = f"rank {hello.rank} (pid {hello.pid}) has gone"
            self._hang_up(line)
            return None

    def _welcome(self, line: Connection[Any, Any], hello: Hello) -> None:
        if hello.attempt > self._attempt:
            self._begin_again(hello.attempt)
        self._lines[line] = hello
        with suppress(OSError):
            line.send_bytes(self._job)
            if self._stop:
                line.send(STOP)

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
        for line, hello in list(self._lines.items()):
            # What a rank's environment has started may hold its line open, and outlive it.
            if hello is not None and hello.attempt < attempt:
                self._hang_up(line)

    def _end(self, pid: int | None) -> None:
        """Kill a rank that hangs, for which the agent would otherwise wait."""
        ours = [hello.pid for hello in self._lines.values() if hello is not None]
        if pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Have all ranks stop where they next agree."""
        self._stop = True
        for line, hello in self._lines.items():
            if hello is not None:
                with suppress(OSError):
                    line.send(STOP)

    def _hang_up(self, line: Connection[Any, Any]) -> None:
        del self._lines[line]
        line.close()

    def close(self) -> None:
        """Make sure that nobody is left."""
        if self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._agent.wait(GRACE)
        self._agent.kill()
        self._agent.wait()
        for line in list(self._lines):
            self._hang_up(line)
        self._door.close()


def _foreign(name: str) -> bool:
    return name in FOREIGN or name.startswith(FAMILIES)


def _agent(processes: int, told: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that starts this many ranks, and starts all of them again when one goes."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; "
        f"from paceline.machine import end_with; end_with({os.getpid()}); "
        f"from paceline.ranks.agent import main; main({processes})"
    )
    kept = {k: v for k, v in os.environ.items() if not _foreign(k)}
    ours = {
        **dict.fromkeys(THREAD_VARIABLES, "1"),
        # Else ranks that are started again meet where those met that have gone.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=kept | ours | told,
    )
