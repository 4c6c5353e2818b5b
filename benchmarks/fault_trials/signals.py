"""Area `signals`: signals of every kind, at every phase, to every process of a run."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .harness import WAYS, Case, Trial, wait_for, words

STOPPED, DONE = (75,), (0,)
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
SLOW = "0.003"


def targets(case: Case, which: str) -> list[psutil.Process]:
    """Processes of the trial: main, worker N, server, rank N, agent, or all."""
    if which == "main":
        return [case.process]
    tree = [case.process, *case.process.children(recursive=True)]
    if which == "all":
        return tree
    kind, _, number = which.partition(" ")
    lines = {process.pid: " ".join(process.cmdline()) for process in tree[1:]}
    if kind == "server":
        found = [p for p in tree[1:] if "forkserver" in lines[p.pid] and p.ppid() != os.getpid()]
        return [p for p in found if p.ppid() == case.process.pid]
    if kind == "worker":
        servers = {p.pid for p in targets(case, "server")}
        found = sorted((p for p in tree if p.ppid() in servers), key=lambda p: p.pid)
    elif kind == "rank":
        found = [p for p in tree[1:] if "paceline.ranks.rank" in lines[p.pid]]
        found.sort(key=lambda p: int(p.environ().get("RANK", "0")))
    else:
        found = [p for p in tree[1:] if "paceline.ranks.elastic" in lines[p.pid]]
    return found[int(number or 0) :][:1]


def moment(case: Case, when: str) -> None:
    """Wait until it is time: `0.3s`, `report 3`, `phase saving`, or words of the output."""
    if re.fullmatch(r"[\d.]+s", when):
        time.sleep(float(when[:-1]))
        return
    kind, _, what = when.partition(" ")
    conditions: dict[str, Callable[[], bool]] = {
        "report": lambda: case.reports() >= int(what),
        "phase": lambda: case.phase(what),
        "said": lambda: what in case.said(),
        "compiler": lambda: any("cc1plus" in _name(p) for p in _tree(case)),
    }
    if not wait_for(lambda: conditions[kind]() or case.process.poll() is not None, 60):
        raise words(f"never came to {when}")


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _tree(case: Case) -> list[psutil.Process]:
    try:
        return list(case.process.children(recursive=True))
    except psutil.Error:
        return []


def send(kinds: str, when: str, to: str = "main", apart: float = 0.01) -> Callable[[Case], None]:
    """Send signals, one after the other, `apart` seconds; `group` is the whole process group."""

    def during(case: Case) -> None:
        moment(case, when)
        for number, kind in enumerate(kinds.split()):
            if number:
                time.sleep(apart)
            code = getattr(signal, kind)
            try:
                if to == "group":
                    os.killpg(case.process.pid, code)
                    continue
                found = wait_for(lambda: targets(case, to), 20)
                for process in found or []:
                    os.kill(process.pid, code)
            except (ProcessLookupError, psutil.Error):
                return  # it was over before

    return during


def _row(
    way: str, kinds: str, when: str, codes: tuple[int, ...], to: str = "main", **more: object
) -> Trial:
    apart = float(str(more.pop("apart", 0.01)))
    variables = {"FAULT_PACE": SLOW, **dict(more.pop("variables", {}))}  # type: ignore[call-overload]
    flags = str(more.pop("flags", ""))
    fatal = not set(kinds.split()) <= {*STOPS, "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGWINCH"}
    return Trial(
        "signals",
        f"{way}: {kinds} to {to} at {when}",
        f"train {WAYS[way]} {flags}",
        codes,
        during=send(kinds, when, to, apart),
        resume=str(more.pop("resume", way)),
        variables=variables,
        dies=bool(more.pop("dies", fatal)),
        timeout=90.0,
        **more,  # type: ignore[arg-type]
    )


def trials() -> list[Trial]:
    saving: dict[str, str] = {"FAULT_INJECT": "os.fsync:9:0.5"}
    evaluating = {"FAULT_EVALUATION": "0.5"}
    found = []
    for kind in STOPS:
        found.append(_row("serial", kind, "report 3", STOPPED))
        found.append(_row("ranks", kind, "report 3", STOPPED))
        found.append(_row("workers", kind, "report 3", STOPPED))
    found += [
        _row("serial", "SIGTERM", "phase stepping", (75, 0)),
        _row("serial", "SIGINT", "phase saving", (75, 0), variables=saving),
        _row(
            "serial",
            "SIGTERM",
            "phase evaluating",
            (75, 0),
            variables=evaluating,
            flags="--eval-every 192",
            resume="",
        ),
        _row("serial", "SIGHUP", "said trained for", (75, 0), variables=evaluating),
        _row("serial", "SIGTERM", "said trained for", (75, 0), variables=evaluating),
        _row("workers", "SIGTERM", "phase stepping", (75, 0)),
        _row("ranks", "SIGTERM", "phase saving", (75, 0), variables=saving),
        _row("ranks", "SIGINT", "said trained for", (75, 0), variables=evaluating),
        _row("stream", "SIGTERM", "report 3", (75, 0)),
        _row("a3c", "SIGINT", "report 2", (75, 0)),
        _row("normalized", "SIGTERM", "report 5", STOPPED),
        _row("impala", "SIGINT", "report 5", STOPPED),
    ]
    for seconds in ("0.08s", "0.12s", "0.2s", "0.5s", "0.9s", "1.3s"):
        # Nothing may have been begun, so there may be nothing to resume.
        found.append(_row("serial", "SIGINT", seconds, (75, 130, -2, 0), resume=""))
        found.append(_row("serial", "SIGTERM", seconds, (75, -15, 0), resume=""))
    for seconds in ("0.6s", "1.2s", "2s", "3s"):
        found.append(_row("ranks", "SIGTERM", seconds, (75, -15, 0), resume=""))
        found.append(_row("workers", "SIGINT", seconds, (75, 130, -2, 0), resume=""))
    found += _others() + _two() + _members() + _commands()
    return found


def _others() -> list[Trial]:
    """Signals that nobody handles: the run ends or goes on, and is where it was."""
    rows = []
    for kind, way in (
        *(("SIGQUIT", "serial"), ("SIGQUIT", "workers"), ("SIGUSR1", "ranks"), ("SIGQUIT", "a3c")),
        *(("SIGUSR2", "serial"), ("SIGALRM", "workers"), ("SIGXCPU", "serial")),
        *(("SIGABRT", "ranks"), ("SIGSEGV", "workers"), ("SIGUSR1", "stream")),
        *(("SIGKILL", "ranks"), ("SIGKILL", "a3c"), ("SIGKILL", "stream"), ("SIGKILL", "serial")),
    ):
        rows.append(_row(way, kind, "report 2", (-signal.Signals[kind], 75, 0)))
    for kind, way in (
        *(("SIGPIPE", "serial"), ("SIGCHLD", "workers"), ("SIGWINCH", "serial")),
        *(("SIGURG", "workers"), ("SIGCONT", "ranks")),
    ):
        rows.append(_row(way, kind, "report 3", DONE, dies=False))
    rows.append(_row("ranks", "SIGCHLD", "report 3", DONE))
    rows.append(_row("ranks", "SIGPIPE", "report 3", DONE, to="all", dies=False))
    return rows


def _two() -> list[Trial]:
    """Two signals, and signals to the process group."""
    rows = []
    for way in ("serial", "workers", "ranks", "a3c"):
        at = "report 3" if way != "a3c" else "report 2"
        rows += [
            _row(way, "SIGTERM SIGTERM", at, (75, 0), dies=True),
            _row(way, "SIGINT SIGINT", at, (75, 0), to="group", dies=True),
            _row(way, "SIGINT", at, (75, 0), to="group"),
            _row(way, "SIGTERM", at, (75, 0), to="all", dies=True),
            _row(way, "SIGSTOP SIGCONT", at, DONE, to="group", apart=1.5),
            _row(way, "SIGTERM SIGKILL", at, (75, -9, 0), dies=True),
        ]
    return rows


def _members() -> list[Trial]:
    """Signals to one process of a run with several: it goes on, or stops as a whole."""
    rows = []
    timeouts = "--worker-timeout 3s"
    for to in ("worker 0", "worker 1", "server"):
        kinds = ("SIGKILL", "SIGQUIT", "SIGTERM", "SIGINT") if to != "worker 1" else ("SIGUSR1",)
        for kind in kinds:
            rows.append(_row("workers", kind, "report 3", (0, 75), to=to, dies=True))
        rows.append(_row("workers", "SIGSTOP SIGCONT", "report 3", DONE, to=to, apart=1.0))
        rows.append(
            _row(
                "workers",
                "SIGSTOP",
                "report 3",
                (0, 3),
                to=to,
                flags=timeouts,
                dies=True,
                resume="",
            )
        )
        rows.append(_row("stream", "SIGKILL", "report 3", DONE, to=to, dies=True))
    for to in ("rank 0", "rank 1", "agent"):
        for kind in ("SIGKILL", "SIGQUIT", "SIGTERM", "SIGINT", "SIGHUP"):
            rows.append(_row("ranks", kind, "report 3", (0, 75), to=to, dies=True))
        rows.append(_row("ranks", "SIGSTOP SIGCONT", "report 3", DONE, to=to, apart=1.5))
        rows.append(_row("a3c", "SIGKILL", "report 2", (0, 75), to=to, dies=True))
    rows += [
        _row(
            "ranks",
            "SIGSTOP",
            "report 3",
            (0, 75),
            to="rank 1",
            flags="--rank-timeout 5s",
            dies=True,
        ),
        _row(
            "ranks",
            "SIGSTOP",
            "report 3",
            (0, 3, 75),
            to="agent",
            flags="--rank-timeout 5s",
            dies=True,
            known=True,
        ),
    ]
    return rows


def _half(case: Case) -> None:
    (case.here / "runs").mkdir(exist_ok=True)


def _commands() -> list[Trial]:
    """Commands beside `train`, stopped in the middle: nothing of them is left."""
    whole = "--compile off --track none"
    commands = {
        "eval": ("eval run --episodes 3000", "serial:done"),
        "scale": (f"scale --ranks 1,2 --repeats 2 --iters 400 --output-dir s {whole}", ""),
        "bench": (
            "bench --algos ppo,a3c --modes parallel,ranks --seeds 1 --total-steps 60000 "
            f"--output-dir b {whole}",
            "",
        ),
        "tune": (f"tune --time 20s --output t.yaml {whole}", ""),
        "check": ("check CartPole-v1 --seconds 3", ""),
        "compare": ("compare run run --output-dir c", "serial:done"),
        "doctor": ("doctor", ""),
        "list": ("list", ""),
    }
    rows = []
    for name, (args, run) in commands.items():
        for kind in ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGQUIT"):
            for when in ("0.3s", "3s"):
                if name in ("compare", "doctor", "list") and when != "0.3s":
                    continue
                if kind == "SIGKILL" and when == "0.3s":
                    continue
                if kind in ("SIGQUIT", "SIGHUP") and (when != "3s" or name != "bench"):
                    continue
                codes = (0, 75, 130, 3, -signal.Signals[kind])
                rows.append(
                    Trial(
                        "signals",
                        f"{name}: {kind} at {when}",
                        args,
                        codes,
                        run=run,
                        during=send(kind, when),
                        dies=kind in ("SIGKILL", "SIGQUIT"),
                    )
                )
    rows += [
        Trial(
            "signals",
            f"compiling: {kind} {when}",
            f"train {WAYS['compiled']}",
            (75, 0, -signal.Signals[kind]),
            during=call_with_cache(send(kind, when)),
            shell='export TORCHINDUCTOR_CACHE_DIR="{here}/cache"; exec "$@"',
            dies=kind == "SIGKILL",
            known=kind == "SIGTERM",
            timeout=120.0,
        )
        for kind in ("SIGTERM", "SIGINT", "SIGKILL")
        for when in ("2.5s", "compiler x")
    ]
    return rows


def call_with_cache(step: Callable[[Case], None]) -> Callable[[Case], None]:
    def during(case: Case) -> None:
        Path(case.here, "cache").mkdir(exist_ok=True)
        step(case)

    return during
