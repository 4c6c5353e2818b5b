"""What a launcher has told this process: whether it is a rank, which one, and of how many.

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
"""What tells one launch from another; the same for all its ranks, however often restarted."""
LINE = "PACELINE_LINE"
"""Where a rank that `--ranks` has started finds the process that wants it."""

MEETING = "PACELINE_MEETING"
"""Where the ranks that `--ranks` has started meet, unless an init_method was given."""

STORE = b"\x09\x00\x00\x00refcount/"
"""How a file begins that torch's FileStore has written."""

asked: float | None = None
"""In a rank that `--ranks` has started: when the user asked for the run."""


def asked_at() -> float:
    """When the user asked for what begins now, by the clock that all processes share."""
    return time.monotonic() if asked is None else asked


def launched(asked: bool = False) -> int | None:
    """How many processes a launcher has started, this being one of them; None without one.

    Where somebody has `asked` for processes to be started, variables that were merely inherited,
    from whatever runs this process, do not keep it from starting them.
    """
    if any(name not in os.environ for name in NEEDED) or (asked and not _child_of_launcher()):
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


def launch_name() -> str | None:
    """What all ranks of one launch have in common, also after a restart; None without one."""
    if LAUNCH in os.environ or not _child_of_launcher():
        return os.environ.get(LAUNCH)
    parent = psutil.Process(os.getppid())
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {parent.pid} {parent.create_time():.2f}"


def rank(asked: bool = False) -> int | None:
    """Which of the processes that a launcher has started this is; None without one."""
    return None if launched(asked) is None else int(os.environ["RANK"])


def restarts() -> int:
    """How often this launch has started its ranks again."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if _child_of_launcher() and count.isdigit() else 0


def attempt() -> str:
    """What tells ranks that were started again from those before them, in the same store."""
    return "/".join(os.environ.get(f"TORCHELASTIC_{n}", "") for n in ("RUN_ID", "RESTART_COUNT"))


def launchers() -> int:
    """In the first rank of a host: how many processes above it belong to the run."""
    if launched(asked=True) is None or local_rank():
        return 0
    return 2 if LINE in os.environ else 1  # with `--ranks`, also who asked for it


def init_method(configured: str) -> str:
    """Where this rank meets the others: env:// only where the launcher hosts the store."""
    if configured != "env://" or launched() is None:
        return configured
    if MEETING in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return os.environ.get(MEETING, configured)
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def check_init_method(place: str) -> None:
    """Refuse a file that is there and is no store of torch's, in which it would hang."""
    scheme, _, path = place.partition("://")
    if scheme != "file" or not os.path.lexists(path):
        return
    try:
        if Path(path).is_file():
            with Path(path).open("rb") as file:
                if file.read(len(STORE)) in (b"", STORE):
                    return
        cause = "which is no file that ranks have met at"
    except OSError as error:
        cause = f"which can't be opened: {error.strerror}"
    raise BadInput(f"init_method is {place!r}, {cause}; name a file that does not exist yet")


def local_size(processes: int) -> int:
    """How many of the `processes` of a run are on this host."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(number) if launched() and number.isdigit() and int(number) else processes


def local_rank() -> int:
    """Which of the processes of this host."""
    number = os.environ.get("LOCAL_RANK", "")
    return int(number) if launched() and number.isdigit() else 0
