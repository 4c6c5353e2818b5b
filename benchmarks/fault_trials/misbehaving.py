"""CartPole that misbehaves: `what` is done at the `at`-th call of `where` of its process."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ctypes
import gc
import json
import locale
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from .worlds import note


class Incomparable(float):
    """A number of which nothing can be asked."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("FAULT: not to be compared")

    __lt__ = __gt__ = __le__ = __ge__ = __ne__ = __eq__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("FAULT: not to be shown")

    __repr__ = __str__


class Unsendable(Exception):
    """Can't be pickled, nor be made from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("FAULT")
        self.lock = threading.Lock()


def _raiser(error: Any) -> Any:
    def throw() -> None:
        raise error() if callable(error) else error

    return throw


def _recurse() -> None:
    _recurse()


def _fork(then: str) -> None:
    if os.fork() == 0:
        if then == "raise":
            raise RuntimeError("FAULT: in what was forked")
        if then == "exit":
            os._exit(0)
        if then == "sys.exit":
            sys.exit(3)
        time.sleep(30 if then == "wait" else 0)


def _threads(number: int, daemon: bool, seconds: float) -> None:
    for _ in range(number):
        threading.Thread(target=time.sleep, args=(seconds,), daemon=daemon).start()


def _thread_raises() -> None:
    thread = threading.Thread(target=_raiser(RuntimeError("FAULT: in a thread")))
    thread.start()
    thread.join()


def _timer_raises() -> None:
    def handle(*_: Any) -> None:
        raise TimeoutError("FAULT: time is up")

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def _torch(name: str, *args: Any) -> Any:
    def call() -> None:
        import torch

        found: Any = torch
        for part in name.split("."):
            found = getattr(found, part)
        found(*args)

    return call


def _double() -> None:
    import torch

    torch.set_default_dtype(torch.float64)


def _inference_mode() -> None:
    import torch

    torch.inference_mode().__enter__()


def _broken(module: Any, name: str) -> Any:
    return lambda: setattr(module, name, _raiser(RuntimeError("FAULT: patched")))


def _no_gil(seconds: int) -> None:
    ctypes.PyDLL(None).sleep(seconds)


def _to_parent(kind: int) -> None:
    """Unless that is who makes the trial."""
    if b"PACELINE_FAULTS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes():
        os.kill(os.getppid(), kind)


def _rank_variables() -> None:
    told = {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "nowhere", "MASTER_PORT": "x"}
    os.environ.update(told)


DO: dict[str, Any] = {
    "nothing": lambda: None,
    # processes and threads
    "fork, child ends": lambda: _fork("exit"),
    "fork, child waits": lambda: _fork("wait"),
    "fork, child raises": lambda: _fork("raise"),
    "fork, child sys.exit": lambda: _fork("sys.exit"),
    "subprocess": lambda: subprocess.run(["true"], check=True),
    "subprocess waits": lambda: subprocess.Popen(["sleep", "30"]) and None,
    "own session waits": lambda: subprocess.Popen(["sleep", "30"], start_new_session=True) and None,
    "200 threads": lambda: _threads(200, True, 30),
    "thread that stays": lambda: _threads(1, False, 40),
    "thread raises": _thread_raises,
    # signals
    "SIGTERM ignored": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
    "SIGCHLD ignored": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN) and None,
    "all signals blocked": lambda: (
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()) and None
    ),
    "alarm": lambda: signal.alarm(1) and None,
    "timer raises": _timer_raises,
    "SIGINT to itself": lambda: os.kill(os.getpid(), signal.SIGINT),
    "SIGTERM to itself": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGTERM to its parent": lambda: _to_parent(signal.SIGTERM),
    "SIGTERM to its group": lambda: os.killpg(0, signal.SIGTERM),
    "wakeup fd": lambda: signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1]) and None,
    # files and streams
    "close 0-2": lambda: os.closerange(0, 3),
    "close 3-10": lambda: os.closerange(3, 11),
    "close 3-63": lambda: os.closerange(3, 64),
    "5 MB to stdout": lambda: print("x" * 5_000_000),
    "5 MB to stderr": lambda: print("x\n" * 2_500_000, file=sys.stderr) and None,
    "no newline": lambda: sys.stdout.write("loading…") and None,
    "binary to fd 1": lambda: os.write(1, bytes(range(256)) * 10) and None,
    "stdout None": lambda: setattr(sys, "stdout", None),
    "stderr None": lambda: setattr(sys, "stderr", None),
    "stdout closed": lambda: sys.stdout.close(),
    "stderr closed": lambda: sys.stderr.close(),
    "reads stdin": lambda: sys.stdin.read() and None,
    "input()": lambda: input("which level? ") and None,
    "chdir": lambda: os.chdir("/"),
    "umask 0777": lambda: os.umask(0o777) and None,
    "16 files at most": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)),
    "empty files only": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    # settings of the process
    "environ cleared": lambda: os.environ.clear(),
    "variables of a rank": _rank_variables,
    "warnings are errors": lambda: warnings.simplefilter("error"),
    "warns": lambda: warnings.warn("FAULT: old", DeprecationWarning, stacklevel=1),
    "warns 10,000 times": lambda: (
        [warnings.warn(f"FAULT {i}", stacklevel=1) for i in range(10**4)] and None
    ),
    "logging disabled": lambda: logging.disable(),
    "root logs everything": lambda: logging.basicConfig(level=1),
    "recursion limit 60": lambda: sys.setrecursionlimit(
        len([*_frames()]) + 60,
    ),
    "numpy raises": lambda: np.seterr(all="raise") and None,
    "numpy seeded": lambda: np.random.seed(0),
    "random seeded": lambda: random.seed(0),
    "torch seeded": _torch("manual_seed", 0),
    "torch 4 threads": _torch("set_num_threads", 4),
    "torch without gradients": _torch("set_grad_enabled", False),
    "torch inference mode": _inference_mode,
    "torch on meta": _torch("set_default_device", "meta"),
    "torch float64": lambda: _double(),
    "torch anomalies": _torch("autograd.set_detect_anomaly", True),
    "torch deterministic": _torch("use_deterministic_algorithms", True),
    "torch flushes denormals": _torch("set_flush_denormal", True),
    "gc disabled": lambda: gc.disable(),
    "nice 19": lambda: os.nice(19) and None,
    "one CPU": lambda: os.sched_setaffinity(0, {0}),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C") and None,
    "traced": lambda: sys.settrace(lambda *_: None),
    "sys.path cleared": lambda: sys.path.clear(),
    "modules cleared": lambda: [sys.modules.pop(n) for n in [*sys.modules] if "json" in n] and None,
    "atexit raises": lambda: atexit.register(_raiser(RuntimeError("FAULT: at exit"))) and None,
    "excepthook raises": lambda: setattr(sys, "excepthook", _raiser(RuntimeError("FAULT"))),
    "print patched": _broken(builtins, "print"),
    "json.dumps patched": _broken(json, "dumps"),
    "time.sleep patched": _broken(time, "sleep"),
    "np.zeros patched": _broken(np, "zeros"),
    "os.fsync patched": _broken(os, "fsync"),
    # memory and time
    "1 GB kept": lambda: setattr(builtins, "_kept", np.ones(2**27)),
    "10 TB wanted": lambda: bytearray(10**13) and None,
    "recursion": _recurse,
    "GIL held 4 s": lambda: _no_gil(4),
    "sleep 4 s": lambda: time.sleep(4),
    "sleep forever": lambda: time.sleep(1000),
    "crash": lambda: ctypes.string_at(0) and None,
    "abort": lambda: os.abort(),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(7)": lambda: os._exit(7),
    # errors
    "StopIteration": _raiser(StopIteration),
    "GeneratorExit": _raiser(GeneratorExit),
    "KeyboardInterrupt": _raiser(KeyboardInterrupt),
    "SystemExit": _raiser(lambda: SystemExit(0)),
    "MemoryError": _raiser(MemoryError),
    "BaseException": _raiser(lambda: BaseException("FAULT")),
    "CancelledError": _raiser(asyncio.CancelledError),
    "ExceptionGroup": _raiser(lambda: ExceptionGroup("FAULT", [ValueError("1"), OSError("2")])),
    "unspeakable error": _raiser(Unspeakable),
    "unsendable error": _raiser(lambda: Unsendable(1, 2)),
    "endless message": _raiser(lambda: RuntimeError("FAULT " * 10**6)),
    "surrogates": _raiser(lambda: RuntimeError("FAULT \ud800 \x1b[31m \0")),
    "BrokenPipeError": _raiser(lambda: BrokenPipeError(32, "FAULT")),
    "ConnectionResetError": _raiser(lambda: ConnectionResetError(104, "FAULT")),
    "EOFError": _raiser(EOFError),
    "TimeoutError": _raiser(lambda: TimeoutError("FAULT")),
    "ENOSPC": _raiser(lambda: OSError(28, "No space left on device", "level.bin")),
    "FileNotFoundError": _raiser(lambda: FileNotFoundError(2, "FAULT", "level.bin")),
    "AssertionError": _raiser(lambda: AssertionError),
    "BadInput": _raiser(
        lambda: __import__("paceline").BadInput("FAULT: raised by the environment itself")
    ),
    "StoppedEarly": _raiser(
        lambda: __import__("paceline").StoppedEarly("FAULT: raised by the environment itself")
    ),
    "Warning": _raiser(lambda: UserWarning("FAULT")),
}

RETURNS: dict[str, Any] = {
    "reward that can't be compared": lambda r: (r[0], Incomparable(1.0), *r[2:]),
    "reward None": lambda r: (r[0], None, *r[2:]),
    "reward text": lambda r: (r[0], "1.0", *r[2:]),
    "reward array of one": lambda r: (r[0], np.array([1.0]), *r[2:]),
    "reward array of two": lambda r: (r[0], np.array([1.0, 2.0]), *r[2:]),
    "reward complex": lambda r: (r[0], 1j, *r[2:]),
    "reward NaN": lambda r: (r[0], float("nan"), *r[2:]),
    "reward 1e308": lambda r: (r[0], 1e308, *r[2:]),
    "reward Decimal": lambda r: (r[0], Decimal(1), *r[2:]),
    "reward Fraction": lambda r: (r[0], Fraction(1, 3), *r[2:]),
    "reward huge int": lambda r: (r[0], 10**400, *r[2:]),
    "reward bool": lambda r: (r[0], True, *r[2:]),
    "obs None": lambda r: (None, *r[1:]),
    "obs list": lambda r: ([float(x) for x in r[0]], *r[1:]),
    "obs float64": lambda r: (r[0].astype(float), *r[1:]),
    "obs objects": lambda r: (r[0].astype(object), *r[1:]),
    "obs text": lambda r: (np.array(["a"] * 4), *r[1:]),
    "obs NaN": lambda r: (r[0] * np.nan, *r[1:]),
    "obs too long": lambda r: (np.concatenate([r[0], r[0]]), *r[1:]),
    "obs scalar": lambda r: (np.float32(1), *r[1:]),
    "obs (1, 4)": lambda r: (r[0][None], *r[1:]),
    "obs read-only": lambda r: (_read_only(r[0]), *r[1:]),
    "obs backwards": lambda r: (r[0][::-1], *r[1:]),
    "obs masked": lambda r: (np.ma.masked_array(r[0], [1, 0, 0, 0]), *r[1:]),
    "obs tensor": lambda r: (__import__("torch").as_tensor(r[0]), *r[1:]),
    "obs int64": lambda r: (r[0].astype(int), *r[1:]),
    "obs a generator": lambda r: ((x for x in r[0]), *r[1:]),
    "terminated text": lambda r: (*r[:2], "False", *r[3:]),
    "terminated None": lambda r: (*r[:2], None, *r[3:]),
    "terminated array": lambda r: (*r[:2], np.array([False]), *r[3:]),
    "terminated 2": lambda r: (*r[:2], 2, *r[3:]),
    "terminated NaN": lambda r: (*r[:2], float("nan"), *r[3:]),
    "always terminated": lambda r: (*r[:2], True, *r[3:]),
    "always truncated": lambda r: (*r[:3], True, r[4]),
    "both": lambda r: (*r[:2], True, True, r[4]),
    "info None": lambda r: (*r[:4], None),
    "info list": lambda r: (*r[:4], [1]),
    "info lambda": lambda r: (*r[:4], {"f": lambda: 0}),
    "info 1 MB": lambda r: (*r[:4], {"x": np.zeros(2**17)}),
    "info episode": lambda r: (*r[:4], {"episode": "x", "final_observation": 3, "_elapsed": None}),
    "four values": lambda r: (r[0], r[1], r[2], r[4]),
    "six values": lambda r: (*r, None),
    "None": lambda r: None,
    "a generator": lambda r: (x for x in r),
    "a list": lambda r: list(r),
}
"""Of a step; those that begin with obs also of a reset."""


def _read_only(obs: Any) -> Any:
    obs = obs.copy()
    obs.setflags(write=False)
    return obs


def _frames() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


class Misbehaves(CartPoleEnv):  # type: ignore[misc]
    calls = 0
    """of `where`, in this process"""

    def __init__(
        self, what: str = "nothing", where: str = "step", at: int = 20, worker: bool = False
    ) -> None:
        super().__init__()
        if worker and sys.argv[0] != "-c":  # only in workers is it to misbehave
            what = "nothing"
        self._what, self._where, self._at = what, where, at
        self._do("init")

    def _do(self, where: str) -> None:
        if where == self._where and self._what in DO:
            Misbehaves.calls += 1
            if Misbehaves.calls == self._at or not self._at:
                note("misbehaving")
                DO[self._what]()

    def _returned(self, where: str, result: Any) -> Any:
        change = RETURNS.get(self._what)
        if change is None or where != self._where:
            return result
        Misbehaves.calls += 1
        if self._at and Misbehaves.calls < self._at:
            return result
        return change(result)

    def reset(self, **options: Any) -> Any:
        self._do("reset")
        return self._returned("reset", super().reset(**options))

    def step(self, action: Any) -> Any:
        self._do("step")
        return self._returned("step", super().step(action))

    def close(self) -> None:
        self._do("close")
        super().close()

    def __del__(self) -> None:
        if getattr(self, "_where", "") == "del":
            self._do("del")


gym.register("Misbehaves-v0", Misbehaves, max_episode_steps=500)
