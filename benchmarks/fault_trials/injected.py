"""Area `resources`: calls that fail, signals within them, and clocks that jump."""

from __future__ import annotations

from .harness import Trial
from .resources import row

DONE = (0,)

INJECTED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    # name: (FAULT_INJECT, way, exit codes)
    "EIO in the first fsync": ("os.fsync:1:EIO", "serial", (2, 75)),
    "EIO in the 5th fsync": ("os.fsync:5:EIO", "serial", (0, 75)),
    "EIO in the 9th fsync": ("os.fsync:9:EIO", "serial", (0, 75)),
    "EIO in the 14th fsync": ("os.fsync:14:EIO", "workers", (0, 75)),
    "EIO in every fsync": ("os.fsync:0:EIO", "serial", (2, 75)),
    "ENOSPC in the 3rd replace": ("os.replace:3:ENOSPC", "serial", (0, 2, 75)),
    "EDQUOT in the 2nd rename": ("os.rename:2:EDQUOT", "serial", (0, 75)),
    "EDQUOT in the 2nd rename, ranks": ("os.rename:2:EDQUOT", "ranks", (0, 75)),
    "EROFS in the 4th mkdir": ("os.mkdir:4:EROFS", "serial", (0, 2, 75)),
    "EMFILE in the 30th open": ("os.open:30:EMFILE", "serial", (0, 2, 75)),
    "EINTR in the 7th fsync": ("os.fsync:7:EINTR", "serial", (0, 75)),
    "ENOSPC in the 8th fsync": ("os.fsync:8:ENOSPC", "workers", (0, 75)),
    "ESTALE in the 8th fsync": ("os.fsync:8:ESTALE", "serial", (0, 75)),
    "EIO in rmdir": ("os.rmdir:0:EIO", "serial", (0, 75)),
    "EPERM in unlink": ("os.unlink:0:EPERM", "serial", (0, 2, 75)),
    "EPERM in symlinks": ("os.symlink:0:EPERM", "serial", (0, 75)),
    "EAGAIN in the first fork": ("os.fork:1:EAGAIN", "workers", (0, 2, 3, 75)),
    "EAGAIN in every fork": ("os.fork:0:EAGAIN", "workers", (2, 3, 75)),
    "ENOMEM in memfd_create": ("os.memfd_create:1:ENOMEM", "workers", (0, 2, 3, 75)),
    "ENOSYS in memfd_create": ("os.memfd_create:0:ENOSYS", "ranks", (0, 2, 3, 75)),
    "ENOSYS in pidfd_open": ("os.pidfd_open:0:ENOSYS", "workers", (0, 2, 3, 75)),
    "ENOSYS in pidfd_open, ranks": ("os.pidfd_open:0:ENOSYS", "ranks", (0, 2, 3, 75)),
    "ENOLCK in flock": ("fcntl.flock:0:ENOLCK", "serial", (0, 2)),
    "EPERM in sched_setaffinity": ("os.sched_setaffinity:0:EPERM", "workers", DONE),
    "clock an hour back": ("time.time:40:-3600", "serial", DONE),
    "clock a day ahead": ("time.time:30:+86400", "workers", DONE),
    "clock before 1970": ("time.time:0:-4000000000", "serial", DONE),
    "clock ahead, ranks": ("time.time:20:+86400", "ranks", DONE),
    "SIGTERM in the 9th fsync": ("os.fsync:9:SIGTERM", "serial", (75,)),
    "SIGTERM in a rename": ("os.rename:2:SIGTERM", "serial", (75,)),
    "SIGKILL in the 1st fsync": ("os.fsync:1:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 3rd fsync": ("os.fsync:3:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 6th fsync": ("os.fsync:6:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 9th fsync": ("os.fsync:9:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 12th fsync": ("os.fsync:12:SIGKILL", "workers", (-9,)),
    "SIGKILL in the 2nd rename": ("os.rename:2:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 1st replace": ("os.replace:1:SIGKILL", "serial", (-9,)),
    "SIGKILL in the 3rd replace": ("os.replace:3:SIGKILL", "normalized", (-9,)),
    "SIGKILL while pruning": ("os.rmdir:1:SIGKILL", "serial", (-9,)),
    "SIGINT in the 9th fsync, ranks": ("os.fsync:9:SIGINT", "ranks", (75,)),
    "a save of 5 s, ranks": ("os.fsync:9:5.0", "ranks", DONE),
}


def trials() -> list[Trial]:
    return [
        row(name, how, codes, variables={"FAULT_INJECT": inject}, dies="SIGKILL" in name)
        for name, (inject, how, codes) in INJECTED.items()
        if "1st fsync" not in name
    ]
