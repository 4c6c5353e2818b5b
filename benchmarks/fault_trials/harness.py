"""One trial: a command in a folder of its own, disturbed, and judged from outside."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MARK = "PACELINE_FAULTS"
"""Environment variable by which the processes of a trial are known, orphans included."""
BENCHMARKS = Path(__file__).parents[1]
INJECT = Path(__file__).parent / "inject"
SHARED_MEMORY = Path("/dev/shm")
QUICK = "--env-id CartPole-v1 --total-iters 3 --compile off --track none --output-dir run"
PACED = (
    "--env-id CartPole-v1 --env.wrappers fault_trials.worlds:Paced --preset none --num-envs 4 "
    "--rollout-steps 16 --total-iters 12 --save-every 128 --eval-episodes 2 --compile off "
    "--track none --seed 3 --log-every 1 --output-dir run"
)
WAYS = {
    "serial": PACED,
    "normalized": f"{PACED} --normalize-obs true --normalize-return true",
    "a2c": f"{PACED} --algo a2c",
    "impala": f"{PACED} --algo impala",
    "workers": f"{PACED} --num-workers 2",
    "ranks": f"{PACED} --ranks 2",
    "stream": f"{PACED} --algo impala --num-workers 2",
    "a3c": f"{PACED} --algo a3c --num-workers 2",
    "compiled": PACED.replace("--compile off", "--compile on"),
}
"""Ways of running of which finished and half-finished runs are kept, to start trials from."""
EXACT = ("serial", "normalized", "a2c", "impala", "workers", "ranks", "compiled")
TIMES = re.compile(r"^(time|fps|t_\w+|memory_mb|cpu_percent|restarts|env_restarts)$")
"""Metrics that differ between two equal runs, or between one that was disturbed and one not."""
NEVER = re.compile(
    r"resource_tracker|leaked|Exception ignored|Exception in thread|Fatal Python error|core dumped|"
    r"AssertionError|<frozen |terminate called"
)
"""What no user should read, unless the environment has written it."""


@dataclass(frozen=True)
class Trial:
    """What is done and what is expected. Placeholders in `args`: {here}, {Q}, {PACED}."""

    area: str
    name: str
    args: str | list[str] = ""
    codes: tuple[int, ...] = (0,)
    script: str = ""
    """Python code that is run instead of the command"""
    says: str = ""
    """pattern that the output must have"""
    run: str = ""
    """way of running of which `run` is a half-finished run; `way:done` for a finished one"""
    prepare: Callable[[Case], Any] | None = None
    during: Callable[[Case], Any] | None = None
    after: Callable[[Case], Any] | None = None
    """these return or raise `Wrong` complaints"""
    variables: dict[str, str | None] = field(default_factory=dict)
    shell: str = ""
    """bash code in which "$@" is the command"""
    interpreter: tuple[str, ...] = ()
    resume: str = ""
    """way of running to whose undisturbed end `paceline resume run` must lead"""
    quotes: bool = False
    """the environment's own traceback may be shown"""
    dies: bool = False
    """killed: it can't clean up its temporary files"""
    timeout: float = 60.0
    rough: bool = False
    """nobody could expect good words: only what is left and whether it ends is judged"""
    known: bool = False


class Wrong(Exception):
    """What a trial should not have shown: kind (lost, hung, wrong words) and sentence."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


def lost(text: str) -> Wrong:
    return Wrong("lost", text)


def words(text: str) -> Wrong:
    return Wrong("wrong words", text)


class Case:
    """A trial that is being made."""

    def __init__(self, trial: Trial, here: Path, kept: Kept) -> None:
        self.trial, self.here, self.kept, self.mark = trial, here, kept, uuid.uuid4().hex
        self.run = here / "run"
        self.output = here / "output"
        self.process: psutil.Popen
        self.code: int | None = None
        for name in ("tmp", "phases"):
            (here / name).mkdir()

    def environment(self, **more: str | None) -> dict[str, str]:
        base: dict[str, str | None] = {
            "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), str(INJECT)]),
            "TMPDIR": str(self.here / "tmp"),
            "FAULT_PHASES": str(self.here / "phases"),
            MARK: self.mark,
        }
        merged = {**os.environ, **base, **more}
        return {name: value for name, value in merged.items() if value is not None}

    def command(self, args: str | list[str]) -> list[str]:
        if isinstance(args, str):
            args = args.replace("{Q}", QUICK).replace("{PACED}", PACED)
            args = shlex.split(args)
        args = [arg.replace("{here}", str(self.here)) for arg in args]
        return [sys.executable, *self.trial.interpreter, "-m", "paceline", *args]

    def start(self) -> None:
        trial = self.trial
        command = self.command(trial.args)
        if trial.script:
            (self.here / "script.py").write_text(trial.script)
            command = [sys.executable, *trial.interpreter, "script.py"]
        if trial.shell:
            command = ["bash", "-c", trial.shell.replace("{here}", str(self.here)), "-", *command]
        with self.output.open("wb") as output:
            self.process = psutil.Popen(
                command,
                cwd=self.here,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(**trial.variables),
                start_new_session=True,
            )

    def said(self) -> str:
        return self.output.read_bytes().decode(errors="replace")

    def also(self, args: str, timeout: float = 60.0, **more: str | None) -> tuple[int, str]:
        """Another command beside it, or after it; its exit code and output."""
        try:
            done = subprocess.run(
                self.command(args),
                cwd=self.here,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise Wrong("hung", f"`paceline {args}` took more than {timeout:.0f} s") from None
        return done.returncode, done.stdout.decode(errors="replace")

    def marked(self) -> list[psutil.Process]:
        """Living processes of this trial, wherever they hang."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def reports(self) -> int:
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def phase(self, name: str) -> bool:
        return (self.here / "phases" / name).exists()

    def finish(self) -> None:
        """Wait for the end, but no longer than the trial may take."""
        try:
            self.code = int(self.process.wait(self.trial.timeout))
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            stacks = ", ".join(f"{p.pid} {p.status()}" for p in self.marked())
            raise Wrong("hung", f"not over after {self.trial.timeout:.0f} s ({stacks})") from None

    def clean(self) -> None:
        for process in self.marked():
            try:
                process.kill()
            except psutil.Error:
                continue
        if hasattr(self, "process"):
            self.process.wait()


class Kept:
    """Runs that trials start from, and what undisturbed ones end with; made once each."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()

    def of(self, way: str) -> Path:
        """A folder with `run`, stopped in the middle, and `whole`, undisturbed."""
        folder = self._folder / way
        with self._lock:
            if not folder.exists():
                self._make(way, folder)
        return folder

    def _make(self, way: str, folder: Path) -> None:
        (folder / "phases").mkdir(parents=True)
        path = {"PYTHONPATH": str(BENCHMARKS), "FAULT_PHASES": str(folder / "phases")}
        command = [sys.executable, "-m", "paceline", "train", *shlex.split(WAYS[way])]
        options: dict[str, Any] = {
            "cwd": folder,
            "env": os.environ | path,
            "stdout": subprocess.DEVNULL,
            "stdin": subprocess.DEVNULL,
        }
        subprocess.run(command, check=True, timeout=240, **options)
        (folder / "run").rename(folder / "whole")
        options["env"] = options["env"] | {"FAULT_PACE": "0.002"}
        process = subprocess.Popen(command, **options)
        metrics = folder / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 4, 120)
        process.send_signal(signal.SIGTERM)
        if process.wait(60) != 75:
            raise RuntimeError(f"{way}: SIGTERM led to exit code {process.returncode}")


def wait_for(condition: Callable[[], Any], timeout: float) -> Any:
    """What `condition()` returns once that is something, or None after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.002)
    return None


def attempt(trial: Trial, kept: Kept) -> dict[str, Any]:
    """Make a trial and judge it; a row of the result."""
    began = time.monotonic()
    complaints: list[Wrong] = []
    shared = _shared_names()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        case = Case(trial, Path(folder), kept)
        try:
            if trial.run:
                way, _, state = trial.run.partition(":")
                source = kept.of(way) / ("whole" if state == "done" else "run")
                shutil.copytree(source, case.run, symlinks=True)
            for step in (trial.prepare, Case.start, trial.during, Case.finish):
                if step:
                    step(case)  # type: ignore[arg-type]
            for judge in (_left, _whole) if trial.rough else (_code, _words, _left, _whole):
                try:
                    judge(case)
                except Wrong as wrong:
                    complaints.append(wrong)
            if trial.after:
                trial.after(case)
        except Wrong as wrong:
            complaints.append(wrong)
        except Exception as error:  # the trial itself is wrong, which has to be seen
            complaints.append(Wrong("broken trial", f"{type(error).__name__}: {error}"))
        finally:
            said = case.said() if case.output.exists() else ""
            case.clean()
    if new := _lasting(_shared_names() - shared):
        complaints.append(lost(f"left in /dev/shm: {', '.join(sorted(new)[:5])}"))
    kinds = [wrong.kind for wrong in complaints]
    order = ("broken trial", "hung", "lost", "wrong words")
    outcome = next((kind for kind in order if kind in kinds), "survived")
    shown = trial.args if isinstance(trial.args, str) else shlex.join(trial.args)
    return {
        "area": trial.area,
        "name": trial.name,
        "command": trial.script or shown[:300],
        "shell": trial.shell,
        "variables": trial.variables,
        "expected": list(trial.codes),
        "exit_code": case.code,
        "outcome": outcome,
        "known": trial.known,
        "seconds": round(time.monotonic() - began, 2),
        "complaints": [plain(f"{wrong.kind}: {wrong.text}") for wrong in complaints],
        "output": plain(said[-1500:]) if complaints else "",
    }


def plain(text: str) -> str:
    """Without the folders of the machine on which it was said."""
    text = re.sub(r"/[^\s\"']*/(faults-\w+)", r"\1", text)
    return re.sub(
        r"/[^\s\"']*/((?:src/paceline|benchmarks|site-packages|python3\.\d+)/)", r"\1", text
    )


def _code(case: Case) -> None:
    trial, said = case.trial, case.said()
    if case.code not in trial.codes:
        raise words(f"exit code {case.code}, not one of {list(trial.codes)}")
    if case.code == 2 and not trial.script:
        sentences = [line for line in said.splitlines() if line.startswith("paceline: ")]
        if not sentences:
            raise words("exit code 2 without a sentence")
        if len(said.splitlines()) > 25 or len(sentences[0]) < 20:
            raise words("exit code 2 with too much or too little text")
    if trial.says and not re.search(trial.says, said):
        raise words(f"nothing like {trial.says!r} was said")


def _words(case: Case) -> None:
    said = case.said()
    if "Traceback (most recent call last)" in said and not _quoted(case, said):
        raise words("a traceback")
    if (found := NEVER.search(said)) and not case.trial.quotes:
        raise words(f"{found[0]!r} was printed")


def _quoted(case: Case, said: str) -> bool:
    """Whether every traceback ends in the environment's own code, and is not what ends the run."""
    if not case.trial.quotes:
        return False
    last = [line for line in said.splitlines() if line.strip()][-1]
    return case.code == 0 or any(line.startswith("paceline: ") for line in [last, *_heads(said)])


def _heads(said: str) -> list[str]:
    """Lines before a traceback that quote it."""
    return [line for line in said.splitlines() if line.startswith("paceline: ")]


def _left(case: Case) -> None:
    """Nothing may be left of a command that is over."""
    left = None
    if not wait_for(lambda: not case.marked(), 8.0):
        left = "; ".join(" ".join(p.cmdline())[:120] or p.name() for p in case.marked())
        raise lost(f"processes left: {left}")
    files = sorted(str(p.relative_to(case.here / "tmp")) for p in (case.here / "tmp").iterdir())
    if files and not case.trial.dies:
        raise lost(f"temporary files left: {', '.join(files[:5])}")


def _whole(case: Case) -> None:
    """What was written is whole, and leads where an undisturbed run leads."""
    way = case.trial.resume
    if not way or (case.trial.dies and not (case.run / "config.yaml").exists()):
        return  # killed before it was a run
    for left in case.run.glob(".tmp-*"):
        if not case.trial.dies:
            raise lost(f"{left.name} left in the run")
    code, said = case.also("resume run", 120.0)
    if code or "Traceback" in said:
        raise lost(f"resume: exit code {code}: {said.strip()[-300:]}")
    if way in EXACT and (difference := differs(case.run, case.kept.of(way) / "whole")):
        raise lost(f"resumed, but not as undisturbed: {difference}")


def differs(run: Path, other: Path) -> str:
    """What two finished runs do not have in common but should; nothing if they are equal."""
    pair = [max((where / "checkpoints").glob("[0-9]*")) for where in (run, other)]
    if pair[0].name != pair[1].name:
        return f"last checkpoint {pair[0].name}, not {pair[1].name}"
    one, two = ((path / "weights.safetensors").read_bytes() for path in pair)
    ours, theirs = metrics(run), metrics(other)
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=False), 1):
        if mine != its:
            keys = [key for key in its if mine.get(key) != its[key]]
            return f"metrics from line {number} on ({', '.join(keys[:4])})"
    if len(ours) != len(theirs):
        return f"{len(ours)} lines of metrics, not {len(theirs)}"
    return "" if one == two else "weights"


def metrics(run: Path) -> list[dict[str, Any]]:
    """What is the same in two equal runs."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not TIMES.match(k)} for line in lines]


def _shared_names() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.exists() else set()


def _lasting(names: set[str]) -> set[str]:
    """Those that no living process has mapped or opened."""
    if not names:
        return set()
    time.sleep(1.0)
    used = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {name for name in names if f"/dev/shm/{name}" in maps.read_text()}
        except OSError:
            continue
    return {name for name in names - used if (SHARED_MEMORY / name).exists()}
