"""Area `files`: runs that two use at once, or that change while they are used."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .doctoring import chmod, put
from .harness import PACED, QUICK, Case, Trial, differs, lost, wait_for, words


def _both(first: str, second: str) -> Callable[[Case], None]:
    """A second command on the same run, while the first is at it."""

    def during(case: Case) -> None:
        if not wait_for(lambda: case.reports() > 3 or case.process.poll() is not None, 40):
            raise words("it did not begin")
        code, said = case.also(second)
        over = case.process.poll() is not None
        allowed = (
            (0, 2) if over else (0,) if second.startswith(("eval", "compare", "list")) else (2,)
        )
        if code not in allowed or "Traceback" in said:
            raise words(f"`paceline {second}` beside it: exit code {code}: {said[-200:]}")

    return during


def _same_moment(args: str, codes: tuple[int, ...]) -> Callable[[Case], None]:
    def during(case: Case) -> None:
        code, said = case.also(args, 90.0)
        if code not in codes or "Traceback" in said:
            raise words(f"`paceline {args}` beside it: exit code {code}: {said[-200:]}")
        ended = case.process.wait(90)
        if sorted((code, ended)) not in ([0, 2], [0, 0]):
            raise lost(f"of two at the same moment: exit codes {ended} and {code}")

    return during


def _copied(case: Case) -> None:
    """What is copied while it trains resumes as the run does."""
    if not wait_for(lambda: case.reports() > 4, 40):
        raise words("it did not begin")
    for number in range(3):
        try:
            shutil.copytree(case.run, case.here / f"copy{number}", symlinks=True)
        except shutil.Error:  # something went away meanwhile, as cp would say
            continue
        time.sleep(0.15)


def _copies_resume(case: Case) -> None:
    for copy in case.here.glob("copy[0-9]"):
        if not (copy / "config.yaml").exists():
            continue
        code, said = case.also(f"resume {copy.name}", 90.0)
        if code or "Traceback" in said:
            raise lost(f"{copy.name}: exit code {code}: {said[-300:]}")
        if difference := differs(copy, case.run):
            raise lost(f"{copy.name} ends otherwise: {difference}")


def _moved_away(case: Case) -> None:
    if not wait_for(lambda: case.reports() > 2, 40):
        raise words("it did not begin")
    case.run.rename(case.here / "elsewhere")


def _gone(path: Path) -> None:
    """Also what appears meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def _removed(case: Case) -> None:
    if not wait_for(lambda: case.reports() > 2, 40):
        raise words("it did not begin")
    shutil.rmtree(case.run, ignore_errors=True)


def _disturb(name: str, what: Callable[[Path], Any]) -> Callable[[Case], None]:
    def during(case: Case) -> None:
        if not wait_for(lambda: case.reports() > 2, 40):
            raise words("it did not begin")
        what(case.run / name)

    return during


SLOW: dict[str, str | None] = {"FAULT_PACE": "0.01"}


def _together() -> list[Trial]:
    paced = f"train {PACED}"
    rows: list[Trial] = [
        Trial(
            "files",
            f"beside training: {second}",
            paced,
            (0,),
            during=_both(paced, second),
            variables=SLOW,
            resume="serial",
        )
        for second in (
            "resume run",
            f"train {QUICK} --overwrite",
            f"train {QUICK}",
            "eval run --episodes 2",
            "list",
        )
    ]
    rows += [
        Trial(
            "files",
            "two resume at the same moment",
            "resume run",
            (0, 2),
            run="serial",
            during=_same_moment("resume run", (0, 2)),
            variables=SLOW,
        ),
        Trial(
            "files",
            "two train at the same moment",
            paced,
            (0, 2),
            variables=SLOW,
            during=_same_moment(f"train {PACED}", (0, 2)),
        ),
        Trial(
            "files",
            "two overwrite at the same moment",
            f"{paced} --overwrite",
            (0, 2),
            during=_same_moment(f"train {PACED} --overwrite", (0, 2)),
            run="serial",
        ),
        Trial(
            "files",
            "two evaluate at the same moment",
            "eval run --episodes 20",
            (0,),
            during=_same_moment("eval run --episodes 20", (0,)),
            run="serial:done",
        ),
        Trial(
            "files",
            "two compare into one folder",
            "compare run run --output-dir c",
            (0, 2),
            during=_same_moment("compare run run --output-dir c", (0, 2)),
            run="serial:done",
        ),
        Trial(
            "files",
            "copied while it trains",
            paced,
            (0,),
            variables=SLOW,
            during=_copied,
            after=_copies_resume,
            timeout=90.0,
        ),
        Trial(
            "files",
            "moved while it trains",
            paced,
            (0, 2, 75),
            variables=SLOW,
            during=_moved_away,
            known=True,
        ),
        Trial(
            "files",
            "removed while it trains",
            paced,
            (0, 2, 75),
            variables=SLOW,
            during=_removed,
            known=True,
        ),
    ]
    disturbed: dict[str, tuple[str, Callable[[Path], Any], tuple[int, ...], str]] = {
        "metrics removed": ("metrics.jsonl", Path.unlink, (0, 75), ""),
        "metrics truncated": ("metrics.jsonl", lambda p: p.write_bytes(b""), (0, 75), ""),
        "metrics a folder": ("metrics.jsonl", lambda p: (p.unlink(), p.mkdir()), (0, 75), ""),
        "config.yaml removed": ("config.yaml", Path.unlink, (0, 75), ""),
        "run.json removed": ("run.json", Path.unlink, (0, 75), ""),
        "run.json torn": ("run.json", lambda p: p.write_bytes(b"{"), (0, 75), ""),
        "the lock removed": (".lock", Path.unlink, (0,), "serial"),
        "checkpoints removed": ("checkpoints", _gone, (0, 75), ""),
        "checkpoints a file": (
            "checkpoints",
            lambda p: (_gone(p), p.write_bytes(b"")),
            (0, 75),
            "",
        ),
        "a checkpoint removed": (
            "checkpoints",
            lambda p: shutil.rmtree(min(p.iterdir())),
            (0,),
            "serial",
        ),
        "a checkpoint's file a pipe": (
            "checkpoints",
            lambda p: os.mkfifo(min(p.iterdir()) / "pipe"),
            (0,),
            "serial",
        ),
        "eval.json a folder": ("eval.json", lambda p: (p / "x").mkdir(parents=True), (0, 75), ""),
    }
    rows += [
        Trial(
            "files",
            f"while it trains: {name}",
            paced,
            codes,
            resume=resume,
            variables=SLOW,
            during=_disturb(file, what),
        )
        for name, (file, what, codes, resume) in disturbed.items()
    ]
    unprivileged = 'exec setpriv --inh-caps=-all --bounding-set=-all -- "$@"'
    read_only: dict[str, tuple[str, str, int, tuple[int, ...]]] = {
        "run": ("resume run", ".", 0o555, (2, 75)),
        "checkpoints": ("resume run", "checkpoints", 0o555, (0, 2, 75)),
        "run for eval": ("eval run --episodes 2", ".", 0o555, (0,)),
        "run for overwrite": (f"train {QUICK} --overwrite", ".", 0o555, (2,)),
        "metrics": ("resume run", "metrics.jsonl", 0o444, (0, 2, 75)),
        "config.yaml unreadable": ("resume run", "config.yaml", 0o000, (2,)),
        "run unreadable": ("resume run", ".", 0o000, (2,)),
        "run unreadable for eval": ("eval run", ".", 0o000, (2,)),
        "run unreadable for compare": ("compare run run --output-dir c", ".", 0o000, (2,)),
        "checkpoints unreadable": ("eval run", "checkpoints", 0o000, (2,)),
        "run without x": ("resume run", ".", 0o600, (2,)),
    }
    rows += [
        Trial(
            "files",
            f"mode {mode:o}: {name}",
            args,
            codes,
            run="serial",
            shell=unprivileged,
            prepare=chmod(file, mode),
        )
        for name, (args, file, mode, codes) in read_only.items()
    ]
    return rows


def _fifo(case: Case) -> None:
    os.mkfifo(case.here / "pipe")


def _sparse(case: Case) -> None:
    with (case.run / "metrics.jsonl").open("r+b") as file:
        file.truncate(40 * 10**9)


def _big_names(case: Case) -> None:
    put("checkpoints/100000000/x", b"")(case)


def _stranger_log(case: Case) -> None:
    victim = case.here / "victim.txt"
    victim.write_text("precious\n")
    config = case.run / "config.yaml"
    text = config.read_text().replace("log_jsonl: null", f"log_jsonl: {victim}")
    config.write_text(text)


def _victim(case: Case) -> None:
    if (case.here / "victim.txt").read_text() != "precious\n":
        raise lost("a stranger's log_jsonl led to another file being written")


def _squares(case: Case) -> None:
    (case.run / "checkpoints" / "9²").mkdir()


def _known() -> list[Trial]:
    paced = f"train {PACED}"

    def one(name: str, args: str, codes: tuple[int, ...], **more: Any) -> Trial:
        return Trial("files", f"known: {name}", args, codes, known=True, **more)

    return [
        one(
            "FIFO as log_jsonl",
            f"train {QUICK} --log-jsonl pipe",
            (0, 2),
            prepare=_fifo,
            timeout=30.0,
        ),
        one("sparse 40 GB metrics", "resume run", (0, 2), run="serial", prepare=_sparse),
        one(
            "sparse 40 GB metrics, compare",
            "compare run run --output-dir c",
            (0, 2),
            run="serial",
            prepare=_sparse,
        ),
        one("checkpoint 10^8", "resume run", (0, 2), run="serial", prepare=_big_names),
        one(
            "stranger's log_jsonl",
            "resume run",
            (0, 2),
            run="serial",
            prepare=_stranger_log,
            after=_victim,
        ),
        one("9² directory", "resume run", (0,), run="serial", prepare=_squares),
        one("9² directory, eval", "eval run --episodes 2", (0,), run="serial", prepare=_squares),
        one(
            "unwritable metrics",
            paced,
            (0, 75),
            variables=SLOW,
            during=_disturb("metrics.jsonl", lambda p: (p.unlink(), p.mkdir())),
        ),
    ]


def trials() -> list[Trial]:
    return _together() + _known()
