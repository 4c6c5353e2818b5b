"""Environment variables of a launcher: whether this process is a rank, which one, and of how many.

A rank is a process in which a launcher has set RANK, WORLD_SIZE and where to meet: torchrun, or
the one that `--ranks` starts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from ..errors import BadInput

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LAUNCHERS = ("torchrun", "torch.distributed", "paceline.ranks")
LAUNCH = "PACELINE_LAUNCH"
"""Id of a launch; the same for all its ranks, however often restarted."""
CHANNEL = "PACELINE_CHANNEL"
"""Address at which a rank that `--ranks` has started connects to its launcher."""
RENDEZVOUS = "PACELINE_RENDEZVOUS"
"""Where the ranks that `--ranks` has started meet, unless an init_method was given."""
STORE_HEADER = b"\x09\x00\x00\x00refcount/"
"""First bytes of a file that torch's FileStore has written."""

requested: float | None = None
"""In a rank that `--ranks` has started: when the user asked for the run."""


def requested_at() -> float:
    """When the user asked for the run that begins now, by the clock that all processes share."""
    return time.monotonic() if requested is None else requested


def launched(check_parent: bool = False) -> int | None:
    """World size of the launch to which this process belongs; None if it is not a rank.

    With `check_parent` its parent has to be a launcher: where a user asks for ranks, variables that
    were merely inherited from an outer launch do not keep them from being started.
    """
    missing = any(name not in os.environ for name in NEEDED)
    if missing or (check_parent and not _child_of_launcher()):
        return None
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except ValueError:
        rank, size = 0, 0
    if 0 <= rank < size:
        return size
    shown = " ".join(f"{name}={os.environ[name][:40]!r}" for name in NEEDED[:2])
    raise BadInput(
        f"{shown} in the environment are not those of a rank; unset them, or write --ranks 1"
    )


def _child_of_launcher() -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    try:
        command = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return True
    return any(name in word for word in command for name in LAUNCHERS)


def launch_id() -> str | None:
    """Id that all ranks of one launch share, also after a restart; None without a launcher."""
    if LAUNCH in os.environ or not _child_of_launcher():
        return os.environ.get(LAUNCH)
    parent = psutil.Process(os.getppid())
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {parent.pid} {parent.create_time():.2f}"


def rank(check_parent: bool = False) -> int | None:
    """Rank of this process; None if it is not a rank (see `launched`)."""
    return None if launched(check_parent) is None else int(os.environ["RANK"])


def restarts() -> int:
    """How often this launch has restarted its ranks."""
    return _number("TORCHELASTIC_RESTART_COUNT") if _child_of_launcher() else 0


def attempt() -> str:
    """Prefix that separates restarted ranks from those before them in the same store."""
    return "/".join(os.environ.get(f"TORCHELASTIC_{n}", "") for n in ("RUN_ID", "RESTART_COUNT"))


def launchers() -> int:
    """In the first rank of a host: how many processes above it belong to the run."""
    if launched(check_parent=True) is None or local_rank():
        return 0
    return 2 if CHANNEL in os.environ else 1  # with `--ranks` also the launcher above the agent


def init_method(configured: str) -> str:
    """Address of the rendezvous: env:// only where the launcher hosts the store."""
    if configured != "env://" or launched() is None:
        return configured
    if RENDEZVOUS in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return os.environ.get(RENDEZVOUS, configured)
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def check_init_method(place: str) -> None:
    """Refuse an existing file that is not a store of torch's: torch would hang in it."""
    scheme, _, path = place.partition("://")
    if scheme != "file" or not os.path.lexists(path):
        return
    try:
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                if file.read(len(STORE_HEADER)) in (b"", STORE_HEADER):
                    return
        cause = "which exists and is not a file of a rendezvous"
    except OSError as error:
        cause = f"which can't be opened: {error.strerror}"
    raise BadInput(f"init_method is {place!r}, {cause}; name a file that does not exist yet")


def local_size(processes: int) -> int:
    """How many of the `processes` of a run are on this host: LOCAL_WORLD_SIZE, or all."""
    return (_number("LOCAL_WORLD_SIZE") if launched() else 0) or processes


def local_rank() -> int:
    """Rank of this process among those of its host."""
    return _number("LOCAL_RANK") if launched() else 0


def _number(variable: str) -> int:
    """The value of an environment variable; 0 where it is no number."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else 0
