"""Faults inside a process: FAULT_INJECT is `function:call:what`, several separated by commas.

`function` is one of module os, time or another (os.fsync); `call` counts its calls in each process
(0: every call); `what` is the name of an error (EIO), of a signal (SIGTERM), a float (seconds to
sleep after having noted the phase `saving`), or `+3600` (to add to what it returns).
"""

import errno
import importlib
import os
import signal
import time
from pathlib import Path


def _install(place, number, what):
    module_name, _, name = place.rpartition(".")
    module = importlib.import_module(module_name)
    real, calls = getattr(module, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if number and calls != number:
            return real(*args, **kwargs)
        if what.startswith(("+", "-")):
            return real(*args, **kwargs) + float(what)
        if what.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, what))
            return real(*args, **kwargs)
        if what.startswith("E"):
            code = getattr(errno, what)
            raise OSError(code, os.strerror(code))
        Path(os.environ["FAULT_PHASES"], "saving").touch()
        time.sleep(float(what))
        return real(*args, **kwargs)

    setattr(module, name, wrapped)


for part in filter(None, os.environ.get("FAULT_INJECT", "").split(",")):
    _install(*[kind(word) for kind, word in zip((str, int, str), part.split(":"), strict=True)])
