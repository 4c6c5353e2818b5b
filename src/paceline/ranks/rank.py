"""A rank that `--ranks` has started: does its part of the run, and reports to its launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NoReturn

from .. import session
from ..envs.suites.gym import register
from ..errors import BadInput, EnvironmentFailed, LostRank, PacelineError, StoppedEarly
from ..processes import launcher
from ..processes.channel import PROGRESS, Channel, LogSender, connect, unpickle
from ..processes.lifetime import exit_now
from ..processes.stopping import handle_stop_signals
from ..storage.compiler_cache import CACHE, compiled_cache
from .launch import STOP, WITHOUT_RANKS, Finished, FromRank, Hello, Job, Ready, ToRank

RESTART = 1
"""Exit code at which the agent starts all ranks again, as it does when one is killed."""


def main(agent: int) -> NoReturn:
    os.environ.setdefault(CACHE, compiled_cache())
    channel = connect(os.environ[launcher.CHANNEL])
    if channel is None:  # the launcher is gone, so no rank is needed
        if os.getppid() == agent:  # else the agent is gone, and an init process adopted this rank
            os.kill(agent, signal.SIGTERM)
        os._exit(RESTART)
    rank = Rank(channel, int(os.environ["RANK"]))
    code = rank.work()
    rank.close()
    exit_now(code)


class Rank:
    """Runs the job that comes over the channel to the launcher."""

    def __init__(self, channel: Channel[FromRank, ToRank], rank: int) -> None:
        self._channel, self._rank = channel, rank
        self._stop, self._over = False, False
        self._log: Callable[[dict[str, float]], None] = lambda values: None
        # A launcher that is slow to read must not make this rank look as if it hung.
        self._sender = ThreadPoolExecutor(max_workers=1)

    def work(self) -> int:
        """The exit code."""
        rank = self._rank
        self.send(Hello(rank, os.getpid(), launcher.restarts()))
        job = self._channel.receive()
        assert isinstance(job, bytes)
        threading.Thread(target=self._receive_all, daemon=True).start()
        log = logging.getLogger("paceline")
        log.setLevel(PROGRESS)
        log.addHandler(LogSender(self.send, f"rank {rank}: " if rank else ""))
        try:
            with handle_stop_signals(self._on_signal):
                stopped = self._run(unpickle(job, WITHOUT_RANKS))
        except LostRank as error:
            self.send(error)
            return RESTART
        except (StoppedEarly, BadInput) as error:
            self.send(error)
        except PacelineError as error:
            error.args = (f"rank {rank}: {error}" if rank else str(error),)
            self.send(error)
        except BaseException as error:
            traceback.print_exc()
            # Signals are handled: a KeyboardInterrupt, say, was raised by an environment.
            kind = PacelineError if isinstance(error, Exception) else EnvironmentFailed
            self.send(kind(f"rank {rank} broke: {type(error).__name__}: {error}"))
            return RESTART
        else:
            self.send(Finished(stopped))
        return 0

    def _run(self, job: Job) -> bool:
        """Whether the evaluation at the end was cut short."""
        sys.argv, launcher.requested = job.argv, job.requested_at
        register(job.registered)
        function = getattr(session, job.function)
        with closing(function(job.subject, lambda: self._stop, **job.changes)) as run:
            run.open()
            self._log = run.log
            self.send(Ready(self._rank))
            for report in run:
                if self._rank == 0:
                    self.send(report)
                if report.stopping:
                    break
            self._log = lambda values: None
            return bool(run.stopped)

    def send(self, message: FromRank) -> None:
        self._over |= isinstance(message, Finished | PacelineError)
        self._sender.submit(self._channel.send, message)

    def close(self) -> None:
        """Wait until everything has been sent, unless the launcher is gone."""
        self._sender.shutdown()

    def _receive_all(self) -> None:
        """Stop when told to; end at once when the launcher is gone."""
        try:
            while True:
                message = self._channel.receive()
                if isinstance(message, dict):
                    self._log(message)
                else:
                    self._stop = message == STOP
        except (EOFError, OSError):
            if not self._over:
                os._exit(RESTART)

    def _on_signal(self, *_: object) -> None:
        self._stop = True
