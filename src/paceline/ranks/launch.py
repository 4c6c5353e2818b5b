"""Launching the ranks of a run on this host, and following what they report.

torchrun's elastic agent starts the ranks. It runs in a process of its own, whose environment holds
nothing of another launcher. Every rank has a channel to this process: down go the job and the order
to stop, up come reports, log messages and errors. Nothing here listens where another user could
connect: see `channel.py` and `_rendezvous_file`.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import psutil

from ..config.schema import Config
from ..envs.suites.gym import registered
from ..errors import BadInput, EnvironmentFailed, LostRank, PacelineError, StoppedEarly
from ..processes.channel import Channel, Listener, LogMessage, pickle_by_value
from ..processes.hardware import oom_kills
from ..processes.launcher import CHANNEL, LAUNCH, RENDEZVOUS, check_init_method, requested_at
from ..processes.lifetime import wait_or_kill, wait_readable
from ..processes.shared_memory import anonymous_file
from ..processes.start import SINGLE_THREADED, start_python
from ..processes.stopping import StopNow
from ..run.report import Report, check_logged
from ..storage.files import shown

log = logging.getLogger("paceline")

TICK = 0.1
"""Seconds between two checks of whether the run is to stop."""
GRACE = 20.0
"""Seconds that ranks have to end when the run has failed."""
STOP_SECONDS = 20.0
"""Seconds that ranks have to finish their iteration and save when they are told to stop."""
FOREIGN = re.compile(
    "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET)_.*"
)
"""Environment variables that launchers set."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Job:
    """What every rank does: `paceline.session`'s train or resume, with these arguments."""

    function: str
    subject: Config | str
    """of train a configuration, of resume a run directory"""
    changes: dict[str, Any]
    registered: list[gym.envs.registration.EnvSpec]
    """environments that this process has registered, and the ranks have not"""
    argv: list[str]
    requested_at: float
    """when the user asked for the run"""


def make_job(function: str, subject: Config | str, env_id: Any, /, **changes: Any) -> Job:
    return Job(function, subject, changes, registered(env_id), sys.argv, requested_at())


@dataclass(frozen=True)
class Hello:
    """First message of a rank."""

    rank: int
    pid: int
    attempt: int


@dataclass(frozen=True)
class Finished:
    """Last message of a rank: its part of the run is done, or was stopped where all agreed to."""

    stopped: bool
    """whether the evaluation at the end was cut short"""


@dataclass(frozen=True)
class Ready:
    """The parts of a rank are made: once all are, they stop together, and save."""

    rank: int


STOP = "stop"
WITHOUT_RANKS = "leave ranks at 1"
FromRank: TypeAlias = Hello | Ready | Report | LogMessage | PacelineError | Finished
"""A `LostRank` is another rank's end; after any other error a restart would not help."""
ToRank: TypeAlias = bytes | str | dict[str, float]
"""The pickled `Job`, then numbers to log, and `STOP`."""
RankChannel: TypeAlias = Channel[ToRank, FromRank]


@contextmanager
def launch(
    job: Job, config: Config, processes: int, stopping: Callable[[], bool]
) -> Iterator[Ranks]:
    """Start the ranks; end them, and wait until they have ended, when the block is left."""
    with closing(Ranks(job, config, processes, stopping)) as ranks:
        yield ranks


class Ranks:
    """The rank processes of one launch, as the process that started them sees them."""

    lockstep = False
    """leaving the loop has the ranks stop together"""

    def __init__(
        self, job: Job, config: Config, processes: int, stopping: Callable[[], bool]
    ) -> None:
        check_init_method(config.init_method)
        self.config, self._processes, self._stopping = config, processes, stopping
        self._job = pickle_by_value(job, WITHOUT_RANKS)
        self._max_restarts = config.max_restarts
        self._folder = str(getattr(job.subject, "output_dir", job.subject))
        self._channels: dict[RankChannel, Hello | None] = {}
        self._ready: set[int] = set()
        """ranks whose parts are made, in this attempt"""
        self._logged: dict[str, float] = {}
        """not yet sent to rank 0"""
        self._attempt, self._failures, self._last_iter = 0, 0, 0
        self._failure: str | None = None
        """what happened to the first rank that was lost in this attempt"""
        self._oom_kills = oom_kills()
        self._stop_by: float | None = None
        """when ranks that were told to stop must have ended"""
        with ExitStack() as stack:
            self._listener = Listener(processes)
            stack.callback(self._listener.close)
            variables = {
                CHANNEL: self._listener.address,
                LAUNCH: secrets.token_hex(16),
                RENDEZVOUS: _rendezvous_file(self._listener, stack),
            }
            self._agent = _start_agent(processes, variables)
            self._resources = stack.pop_all()

    @property
    def directory(self) -> Path:
        return Path(self._folder)

    @property
    def agent(self) -> NoReturn:
        raise self._elsewhere("its policy can't be had", "paceline.load(run.directory)")

    def evaluate(self, episodes: int | None) -> NoReturn:
        raise self._elsewhere("it can't be evaluated from here", "eval_every=… for rank 0")

    def save(self) -> NoReturn:
        raise self._elsewhere("it can't be saved from here", "save_every=… for rank 0")

    def _elsewhere(self, what: str, instead: str) -> BadInput:
        return BadInput(
            f"this run trains in {self._processes} processes of its own, so {what} while it "
            f"trains; use {instead}"
        )

    def log(self, values: Mapping[str, Any]) -> None:
        """Have rank 0 add these to the next report that it writes."""
        self._logged |= check_logged(values)
        for channel, hello in self._channels.items():
            if hello is not None and hello.rank == 0 and 0 in self._ready and self._logged:
                with suppress(OSError):
                    channel.send(self._logged)
                    self._logged = {}

    def reports(self) -> Iterator[Report]:
        """Rank 0's, until all ranks have ended; leaving the loop ends them, with a checkpoint."""
        try:
            yield from self._follow(self._stopping)
        except GeneratorExit:
            self.stop()
            with suppress(StopNow):
                for _ in self._follow(lambda: True):
                    pass
            raise

    def _follow(self, stopping: Callable[[], bool]) -> Iterator[Report]:
        over = cut_short = False
        while not over:
            agent_ended = self._agent.poll() is not None
            if self._stop_by is None and stopping():
                self.stop()
            if self._stop_by is not None and self._starting:
                log.info(f"stopped while the ranks were starting; {self._how_to_go_on()}")
                raise StopNow
            self._check_deadline()
            channels = self._wait()
            over = agent_ended and not channels
            for channel in channels:
                match self._receive(channel):
                    case Report() as report:
                        if report.iter > self._last_iter:  # not one that was only repeated
                            self._last_iter, self._failures = report.iter, 0
                        yield report
                    case Hello() as hello:
                        self._on_hello(channel, hello)
                    case Ready(rank):
                        self._ready.add(rank)
                        self.log({})
                    case LogMessage(level, text, trace):
                        log.log(level, "%s%s", text, f"\n{trace}" if trace else "")
                    case LostRank() as error:
                        self._failure = self._failure or f"{error}{self._memory_cause()}"
                        self._kill_hung(error.hangs)
                    case PacelineError() as error:
                        raise error
                    case Finished(stopped):
                        cut_short = cut_short or stopped
                        self._disconnect(channel)
        if self._agent.returncode:
            failure = self._failure or "the launcher of ranks is gone"
            raise StoppedEarly(f"{failure}; go on with `paceline resume {shown(self._folder)}`")
        if cut_short:
            raise StopNow

    @property
    def _starting(self) -> bool:
        """Whether there are ranks that can't stop together with the others, and save, yet."""
        return len(self._ready) < self._processes

    def _how_to_go_on(self) -> str:
        begun = (self.directory / "checkpoints").exists()
        resume = f"go on from the last checkpoint with `paceline resume {shown(self._folder)}`"
        return resume if begun else "there is nothing to save yet"

    def _check_deadline(self) -> None:
        """Ranks that were told to stop, and hang, are not waited for."""
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            raise StoppedEarly(
                f"the ranks did not stop within {STOP_SECONDS:.0f} s and were ended; go on from "
                f"the last checkpoint with `paceline resume {shown(self._folder)}`"
            )

    def _wait(self) -> list[RankChannel]:
        """Channels with a message, after at most one tick."""
        channels = {channel.fileno(): channel for channel in self._channels}
        listening = self._listener.socket.fileno()
        ready = wait_readable([listening, *channels], TICK)
        if listening in ready and (channel := self._listener.accept()) is not None:
            self._channels[channel] = None
        if not ready:
            self._wake_agent()
        return [channels[fd] for fd in ready if fd in channels]

    def _wake_agent(self) -> None:
        """An agent that was stopped (SIGSTOP) would neither restart ranks nor end."""
        with suppress(psutil.Error):
            if psutil.Process(self._agent.pid).status() == psutil.STATUS_STOPPED:
                log.warning("the launcher of ranks was stopped (SIGSTOP) and is continued")
                self._agent.send_signal(signal.SIGCONT)

    def _receive(self, channel: RankChannel) -> FromRank | None:
        if channel not in self._channels:  # closed meanwhile
            return None
        try:
            return channel.receive()
        except (EOFError, OSError):
            hello = self._channels[channel]
            if hello is not None and hello.attempt == self._attempt and self._failure is None:
                gone = f"rank {hello.rank} (pid {hello.pid}) has gone"
                self._failure = f"{gone}{self._memory_cause()}"
            self._disconnect(channel)
            return None

    def _memory_cause(self) -> str:
        """A likely cause of a rank's end, where the kernel reports it."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return ": the system ran out of memory" if self._oom_kills > before else ""

    def _on_hello(self, channel: RankChannel, hello: Hello) -> None:
        if hello.attempt > self._attempt:
            self._on_restart(hello.attempt)
        self._channels[channel] = hello
        with suppress(OSError):
            channel.send(self._job)
            if self._stop_by is not None:
                channel.send(STOP)

    def _on_restart(self, attempt: int) -> None:
        self._attempt = attempt
        self._failures += 1
        failure = self._failure or "a rank has gone"
        if self._failures > self._max_restarts:
            raise EnvironmentFailed(
                f"{failure}; that was failure {self._failures} in a row without getting any further"
            )
        log.warning("%s; all ranks start again from the last checkpoint", failure)
        self._ready.clear()
        self._failure = None
        for channel, hello in list(self._channels.items()):
            # Processes that a rank's environment has started may hold its channel open.
            if hello is not None and hello.attempt < attempt:
                self._disconnect(channel)

    def _kill_hung(self, pid: int | None) -> None:
        """Kill a rank that hangs, for which the agent would otherwise wait."""
        if pid in [hello.pid for hello in self._channels.values() if hello is not None]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Have all ranks stop where they next agree."""
        self._stop_by = time.monotonic() + STOP_SECONDS
        for channel, hello in self._channels.items():
            if hello is not None:
                with suppress(OSError):
                    channel.send(STOP)

    def _disconnect(self, channel: RankChannel) -> None:
        del self._channels[channel]
        channel.close()

    def close(self) -> None:
        """End the agent, which ends its ranks; those that start end once they are disconnected."""
        self._wake_agent()
        if self._agent.poll() is None:
            self._agent.terminate()
        if self._starting:
            self._disconnect_all()
        wait_or_kill(self._agent, GRACE)
        self._disconnect_all()
        self._resources.close()

    def _disconnect_all(self) -> None:
        for channel in list(self._channels):
            self._disconnect(channel)


def _rendezvous_file(listener: Listener, stack: ExitStack) -> str:
    """A file:// address that only this user's processes can open, and that leaves nothing behind.

    On Linux it is memory of this process, which others of the same user open through /proc;
    elsewhere a file beside the socket of the listener.
    """
    if sys.platform != "linux":
        return f"file://{Path(listener.address).with_name('rendezvous')}"
    file = anonymous_file()
    stack.callback(os.close, file)
    return f"file:///proc/{os.getpid()}/fd/{file}"


def _start_agent(processes: int, variables: dict[str, str]) -> Popen[bytes]:
    """A process that starts this many ranks, and starts all of them again when one fails."""
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    ours = {
        **SINGLE_THREADED,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    return start_python("paceline.ranks.elastic:main", processes, env=kept | ours | variables)
