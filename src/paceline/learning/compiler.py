"""Compiling a step with Inductor: whether it is possible, a timeout, and reasons for failure."""

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

TensorFunction = Callable[..., list[Tensor]]
COMPILER_TIMEOUT = 900.0
"""Seconds after which a C++ compiler counts as hung; on a busy machine it takes 1–2 minutes."""
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
NEEDED_BYTES = 2**24
"""Disk space of a compiled step, including the compiler's temporary files."""


def inductor_compile(function: TensorFunction, inputs: list[Tensor]) -> TensorFunction:
    """Trace `function` and compile it for the shapes of `inputs` only.

    Calls Inductor directly: `torch.compile` checks guards at every call, which takes longer than
    a whole optimizer step, and compiles three times as long.
    """
    from torch._inductor import codecache, config
    from torch._inductor import compile as inductor
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch may have set its default, a folder in /tmp that is never cleaned up.
    if os.environ.get(CACHE) in (None, default_cache_dir()):
        os.environ[CACHE] = compiled_cache()

    config.compile_threads = 1  # no pool of processes that could outlive the run
    headers = Path(os.environ[CACHE]) / "precompiled_headers"  # else always in /tmp
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
    with torch.no_grad():
        # Tracing executes the function, which changes its inputs in place.
        graph = make_fx(function)(*(tensor.clone() for tensor in inputs))
        for node in graph.graph.nodes:
            node.meta.clear()  # fake tensors of the tracing, which Inductor refuses beside its own
        # The calls between kernels in C++ too: in Python they take a sixth of a small step.
        return inductor(graph, inputs, {"cpp_wrapper": True})  # type: ignore[arg-type]


def scalar(value: float) -> Tensor:
    """A 0-d tensor: a Python float would become a constant of the compiled code."""
    return torch.tensor(value, dtype=torch.float64)


def compiler_missing() -> str | None:
    """Why steps can't be compiled on this machine, or None."""
    wanted = wanted_compiler(os.environ.get("CXX"))
    if not shutil.which(wanted):
        return f"there is no C++ compiler {wanted} (install it, or name another with CXX)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's C headers are missing (install python3-dev)"
    return None


def compile_failure_reason(error: BaseException) -> str:
    """Why compiling failed, in one line, from the messages of torch and the compiler."""
    text = "\n".join(_messages(error))
    cache = os.environ.get(CACHE) or compiled_cache()
    if any(words in text for words in DISK_FULL):
        folders = [cache, os.environ.get("TMPDIR") or tempfile.gettempdir()]
        full = [folder for folder in folders if _free_bytes(folder) < NEEDED_BYTES]
        return f"there is no space left on the disk of {' or '.join(full or folders)}"
    if "SIGKILL" in text or "Killed" in text:
        return "the compiler was killed, probably because memory ran out"
    if "failed to map segment" in text:
        return f"files in {cache} may not be executed; set {CACHE} to another folder"
    if found := re.search(r"^.*\berror: .*$", text, re.M):
        return found[0][:200]
    cause = text.splitlines()[0][:200]
    if "[Errno" in cause:
        return cause
    return f"{cause}; if {cache} is damaged, remove it"


def _messages(error: BaseException | None) -> Iterator[str]:
    """Messages of an error and its causes; of the compiler too, where torch does not pass it on."""
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


def _free_bytes(folder: str) -> int:
    """On its disk; the folder itself may not exist yet."""
    existing = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    return shutil.disk_usage(existing).free


@contextmanager
def compiler_timeout(seconds: float) -> Iterator[list[int]]:
    """Kill a compiler that runs longer than this; yields a list that its process id is added to."""
    killed: list[int] = []
    name = Path(wanted_compiler(os.environ.get("CXX"))).name

    def kill() -> None:
        for process in psutil.Process().children():
            with suppress(psutil.Error):
                if name in (Path(part).name for part in process.cmdline()[:2]):
                    killed.append(process.pid)
                    for one in (process, *process.children(recursive=True)):
                        one.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield killed
    finally:
        timer.cancel()
