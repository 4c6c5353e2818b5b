"""The C++ compiler of a step: why it failed, and for how long it is waited for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from ..storage.compiler_cache import CACHE, compiled_cache, wanted_compiler

Compiled = Callable[..., list[Tensor]]
COMPILER_TIMEOUT = 900.0
"""Seconds after which a compiler is taken to hang; on a busy machine it takes a minute or two."""
NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
LITTLE_ROOM = 2**24
"""Bytes that a compiled step takes, with all that the compiler writes on its way."""


def compiled(function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Compiled:
    """Trace `function` on inputs of the right shapes, and compile it for these shapes alone.

    Straight to Inductor: `torch.compile` checks its guards at every call, which takes longer than
    a whole optimiser step, and is three times as long in compiling.
    """
    from torch._inductor import codecache, config
    from torch._inductor import compile as inductor
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch may have put its own choice there, in /tmp, which nobody asked for or cleans up.
    if os.environ.get(CACHE) in (None, default_cache_dir()):
        os.environ[CACHE] = compiled_cache()

    config.compile_threads = 1  # no pool of processes to leave behind
    headers = Path(os.environ[CACHE]) / "precompiled_headers"  # else in /tmp, come what may
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
    with torch.no_grad():
        # Tracing executes the function, and what that changes must not be ours.
        copies = [tensor.clone() for tensor in inputs]
        return inductor(make_fx(function)(*copies), inputs)  # type: ignore[arg-type]


def scalar(value: float) -> Tensor:
    """A Python float would be compiled in as a constant."""
    return torch.tensor(value, dtype=torch.float64)


def compiler_missing() -> str | None:
    """Why compiled steps can't be had here, or None."""
    wanted = wanted_compiler(os.environ.get("CXX"))
    if not shutil.which(wanted):
        return f"there is no C++ compiler {wanted} (install it, or name another with CXX)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are missing (install python3-dev)"
    return None


def compile_failure_reason(error: BaseException) -> str:
    """What kept a step from being compiled, as far as torch and the compiler tell."""
    told = "\n".join(_told(error))
    cache = os.environ.get(CACHE) or compiled_cache()
    if any(words in told for words in NO_ROOM):
        folders = [cache, os.environ.get("TMPDIR") or tempfile.gettempdir()]
        full = [folder for folder in folders if _room(folder) < LITTLE_ROOM]
        return f"there is no space left on the disk of {' or '.join(full or folders)}"
    if "SIGKILL" in told or "Killed" in told:
        return "the compiler was killed, as happens where memory runs out"
    if "failed to map segment" in told:
        return f"nothing in {cache} may be executed; name another folder with {CACHE}"
    if found := re.search(r"^.*\berror: .*$", told, re.M):
        return found[0][:200]
    cause = told.splitlines()[0][:200]
    if "[Errno" in cause:
        return cause
    return f"{cause}; if {cache} is damaged, remove it"


def _told(error: BaseException | None) -> Iterator[str]:
    """What an error and its causes say; and the compiler, where torch keeps that to itself."""
    while error is not None:
        yield str(error).strip() or type(error).__name__
        if type(error).__name__ == "InvalidCxxCompiler":
            command = [wanted_compiler(os.environ.get("CXX")), "-x", "c++", "-", "-o", os.devnull]
            try:
                subprocess.run(
                    command, input=b"int main() {}", capture_output=True, check=True, timeout=60
                )
            except subprocess.CalledProcessError as failed:
                yield f"{failed}\n{failed.stderr.decode(errors='replace')}"
            except (OSError, subprocess.TimeoutExpired) as failed:
                yield str(failed)
        error = error.__cause__ or error.__context__


def _room(folder: str) -> int:
    """Bytes that are free on its disk."""
    there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    return shutil.disk_usage(there).free


@contextmanager
def compiler_timeout(seconds: float) -> Iterator[list[int]]:
    """Meanwhile, a compiler that takes this long is ended; a list that gets its process id."""
    ended: list[int] = []
    name = Path(wanted_compiler(os.environ.get("CXX"))).name

    def end() -> None:
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                if name in (Path(part).name for part in process.cmdline()[:2]):
                    ended.append(process.pid)
                    for one in (*process.children(recursive=True), process):
                        one.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield ended
    finally:
        timer.cancel()
