"""A rank that `--ranks` has started: does its part of the run, and tells who started it."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import closing, suppress
from typing import Any, NoReturn

from .. import session
from ..envs.suites.gym import register
from ..errors import BadInput, EnvironmentFailed, LostRank, PacelineError, StoppedEarly
from ..processes import launcher
from ..processes.channel import Channel, connect
from ..processes.hardware import CACHE, compiled_cache, leave
from ..processes.sending import LogSender, received
from ..processes.stopping import handling
from .launch import ALONE, STOP, Ended, Hello, Job

START_AGAIN = 1
"""Exit code at which the agent starts all ranks again, as it does when one is killed."""


def main(agent: int) -> NoReturn:
    os.environ.setdefault(CACHE, compiled_cache())
    channel = connect(os.environ[launcher.LINE])
    if channel is None:  # nobody wants this rank, nor any other
        if os.getppid() == agent:  # else it has gone, and whoever adopted this rank is no agent
            os.kill(agent, signal.SIGTERM)
        os._exit(START_AGAIN)
    line = Line(channel)
    code = line.work(int(os.environ["RANK"]))
    line.close()
    leave(code)


class Line:
    """The rank's end of its line."""

    def __init__(self, connection: Channel) -> None:
        self._connection, self._stop, self._over = connection, False, False
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """whoever listens may take their time, and this rank is not to seem to hang"""
        self._speaker = threading.Thread(target=self._speak, daemon=True)
        self._speaker.start()

    def work(self, rank: int) -> int:
        """Do what there is to do; the exit code."""
        self.send(Hello(rank, os.getpid(), launcher.restarts()))
        pickled = self._connection.recv_bytes()
        threading.Thread(target=self._listen, daemon=True).start()
        log = logging.getLogger("paceline")
        log.setLevel(logging.INFO)
        log.addHandler(LogSender(self.send, f"rank {rank}: " if rank else ""))
        try:
            with handling(self._told_to_stop):
                self._run(received(pickled, ALONE), rank)
        except LostRank as error:
            self.send(error)
            return START_AGAIN
        except (StoppedEarly, BadInput) as error:
            self.send(error)
        except PacelineError as error:
            error.args = (f"rank {rank}: {error}" if rank else str(error),)
            self.send(error)
        except BaseException as error:
            traceback.print_exc()
            # Signals are handled: a KeyboardInterrupt, say, is an environment's own.
            kind = PacelineError if isinstance(error, Exception) else EnvironmentFailed
            self.send(kind(f"rank {rank} broke: {type(error).__name__}: {error}"))
            return START_AGAIN
        else:
            self.send(Ended())
        return 0

    def _run(self, job: Job, rank: int) -> None:
        sys.argv, launcher.asked = job.command, job.asked
        register(job.registered)
        what = getattr(session, job.what)
        with closing(what(job.subject, lambda: self._stop, **job.changes)) as reports:
            for report in reports:
                if rank == 0:
                    self.send(report)
                if report.stopping:
                    break

    def send(self, message: Any) -> None:
        self._over |= isinstance(message, Ended | PacelineError)
        self._outbox.put(message)

    def _speak(self) -> None:
        with suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)

    def close(self) -> None:
        """Wait until everything has been said."""
        self._outbox.put(None)
        self._speaker.join()

    def _listen(self) -> None:
        """Stop when told to; end at once when nobody is there any more."""
        try:
            while True:
                self._stop = self._connection.recv() == STOP
        except (EOFError, OSError):
            if not self._over:
                os._exit(START_AGAIN)

    def _told_to_stop(self, *_: object) -> None:
        self._stop = True
