"""Checks of what the system allows a user, and of variables that change how threads run."""

from __future__ import annotations

from collections.abc import Mapping

from ...config.text import listed
from ...processes.hardware import THREAD_VARIABLES
from ..findings import Finding
from .cgroups import Allowance

FILES, PROCESSES = 1024, 256
"""What leaves room for any run and its environments."""
OWN_FILES, OWN_PROCESSES, FOR_WORKER = 64, 32, 2
"""What a run takes, and what each worker adds: two files of the learner, a process, a thread."""
BINDING = ("GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
"""Any of them lets GNU's OpenMP, which torch brings along, bind a process' first thread."""


def files(soft: int, hard: int, cpus: int) -> Finding:
    """Limits are negative where there are none."""
    needed = OWN_FILES + FOR_WORKER * cpus
    enough = max(FILES, 2 * needed)
    if soft < 0 or soft >= enough:
        shown = "any number of" if soft < 0 else f"{soft:,}"
        return Finding("ok", "files", f"a process may have {shown} files open")
    raised = f"ulimit -n {enough}"
    if 0 <= hard < enough:
        raised += f", for which root has to raise the hard limit of {hard} first"
    return Finding(
        "problem" if soft < needed else "note",
        "files",
        f"a process may have only {soft} files open: the learner opens two for each worker, and "
        "environments open their own",
        raised,
    )


def processes(soft: int, group: Allowance | None, cpus: int) -> Finding:
    """The user's limit counts all that the user runs; a control group's, what runs in it."""
    if group and not 0 <= soft < group.left:
        left, why = group.left, f"of the {group.limit:,} that the control group allows"
        fix = "raise docker's --pids-limit or systemd's TasksMax"
    elif soft >= 0:
        left, why, fix = soft, "in all for this user", "raise ulimit -u"
    else:
        return Finding("ok", "processes", "any number of processes may be started")
    said = f"{left:,} processes and threads may be started, {why}"
    needed = OWN_PROCESSES + FOR_WORKER * cpus
    if left >= max(PROCESSES, 2 * needed):
        return Finding("ok", "processes", said)
    return Finding(
        "problem" if left < needed else "note",
        "processes",
        f"only {said}: a run takes two for each worker",
        f"{fix}, or use fewer workers",
    )


def threads(environment: Mapping[str, str]) -> Finding:
    """What the user's thread variables do here."""
    given = [f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name)]
    if not given:
        return Finding("ok", "threads", "no variable sets a number of threads")
    if all(entry.endswith("=1") for entry in given):
        return Finding("ok", "threads", f"{listed(given)}: what Paceline sets for itself too")
    return Finding(
        "note",
        "threads",
        f"{listed(given)} {'is' if len(given) == 1 else 'are'} set: the paceline command replaces "
        "this by 1, and paceline.train uses its own option threads while it runs; what else a "
        "Python program does takes it as it is",
        "leave it unset, and choose the learner's threads with --threads",
    )


def binding(environment: Mapping[str, str]) -> Finding | None:
    """GNU's OpenMP binds a process, and so its children, when torch is imported."""
    given = [name for name in BINDING if environment.get(name)]
    if environment.get("OMP_PROC_BIND", "").lower() == "false":
        given = []
    if given:
        shown = listed([f"{name}={environment[name]}" for name in given])
        return Finding(
            "problem",
            "binding",
            f"with {shown} torch binds the process that imports it to its first CPU or core, and "
            "all of a run's workers with it",
            f"unset {' '.join(given)}",
        )
    intel = environment.get("KMP_AFFINITY", "")
    if not intel or intel in ("none", "disabled"):
        return None
    return Finding(
        "note",
        "binding",
        f"KMP_AFFINITY={intel} is set: where torch was built with Intel's OpenMP, it binds the "
        "process that imports it, and all of a run's workers with it",
        "unset KMP_AFFINITY",
    )
