"""Environment variables of a launcher: whether this process is a rank, which one, and of how many.

A rank is a process in which RANK and WORLD_SIZE are set, and which knows where to meet the others:
from MASTER_ADDR and MASTER_PORT, or from an init_method. torchrun sets them, `--ranks` does in the
processes that it starts, and a user may.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from ..errors import BadInput

PLACE = ("RANK", "WORLD_SIZE")
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
ENV = "env://"
"""The init_method by which ranks meet at MASTER_ADDR and MASTER_PORT."""
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


def launched(check_parent: bool = False, init_method: str = ENV) -> int | None:
    """World size of the launch to which this process belongs; None if it is not a rank.

    With `check_parent` its parent has to be a launcher: where a user asks for ranks, variables that
    were merely inherited from an outer launch do not keep them from being started.
    """
    needed = (*PLACE, *ADDRESS) if init_method == ENV else PLACE
    missing = any(name not in os.environ for name in needed)
    if missing or (check_parent and not _child_of_launcher()):
        return None
    try:
        rank, size = (int(os.environ[name]) for name in PLACE)
    except ValueError:
        rank, size = 0, 0
    if 0 <= rank < size:
        return size
    raise BadInput(
        f"{variables()} in the environment are not those of a rank; unset them, or write --ranks 1"
    )


def variables() -> str:
    """RANK and WORLD_SIZE as text; empty if they are not set, or those of a single process."""
    found = {name: os.environ[name] for name in PLACE if name in os.environ}
    if len(found) < len(PLACE) or list(found.values()) == ["0", "1"]:
        return ""
    return " ".join(f"{name}={value[:40]!r}" for name, value in found.items())


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


def rank(check_parent: bool = False, init_method: str = ENV) -> int | None:
    """Rank of this process; None if it is not a rank (see `launched`)."""
    return None if launched(check_parent, init_method) is None else int(os.environ["RANK"])


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


def meeting_place(init_method: str) -> str:
    """In a rank: address of the rendezvous; env:// only where the launcher hosts the store."""
    if init_method != ENV:
        return init_method
    if RENDEZVOUS in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return os.environ.get(RENDEZVOUS, init_method)
    host, port = (os.environ[name] for name in ADDRESS)
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def check_init_method(place: str) -> None:
    """Refuse an existing file that is not a store of torch's: torch would hang in it."""
    scheme, _, path = place.partition("://")
    if scheme != "file" or not os.path.lexists(path):
        return
    try:
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                # Another rank may be writing it right now, so a beginning will do.
                if STORE_HEADER.startswith(file.read(len(STORE_HEADER))):
                    return
        cause = "which exists and is not a file of a rendezvous"
    except OSError as error:
        cause = f"which can't be opened: {error.strerror}"
    raise BadInput(f"init_method is {place!r}, {cause}; name a file that does not exist yet")


def local_size(processes: int) -> int:
    """In a rank: how many of the `processes` of the run are on this host, or else all."""
    return _number("LOCAL_WORLD_SIZE") or processes


def local_rank() -> int:
    """In a rank: its number among those of its host."""
    return _number("LOCAL_RANK")


def _number(variable: str) -> int:
    """The value of an environment variable; 0 where it is no number."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else 0
