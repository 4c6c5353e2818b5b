"""What tests share: the command line as a user has it, and a check that nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import yaml
from together import SHARED_MEMORY, Together, nothing_left, shared_names

from paceline.cli import commands as cli

for _library in ("OMP", "MKL", "OPENBLAS"):  # as the command does, before numpy is imported
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as whatever a shell runs behind it
    signal.signal(signal.SIGINT, signal.default_int_handler)

MARK = "PACELINE_TEST"
"""Environment variable by which a test's processes are known, orphans included."""
LEFT_IN_TEMP = ("pymp-", "torchelastic_", "torchinductor", ".tmp-")
TIMING = ("time", "fps", "memory_mb", "cpu_percent", "t_")
"""Beginnings of the metrics that no two runs share."""


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items):
    """Of the cases of a `sampled` test, all but every n-th are slow."""
    cases = Counter()
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            name = item.path, item.originalname
            if cases[name] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[name] += 1


@dataclasses.dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    cpu: float = 0.0
    """seconds of CPU time that it took, which do not depend on who else is at work"""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, as a reader of its files sees it."""

    path: Path

    def metrics(self):
        return [json.loads(line) for line in self.text("metrics.jsonl").splitlines()]

    def learned(self):
        """The metrics that depend on what was learned, and not on the clock."""
        return [
            {name: value for name, value in line.items() if not name.startswith(TIMING)}
            for line in self.metrics()
        ]

    def text(self, name):
        return (self.path / name).read_text(encoding="utf-8")

    def json(self, name):
        return json.loads(self.text(name))

    def config(self):
        return yaml.safe_load(self.text("config.yaml"))

    def checkpoints(self):
        """Oldest first; neither `best` nor what is half written."""
        return sorted(p for p in (self.path / "checkpoints").glob("*") if p.name.isdigit())

    def last(self, name="weights.safetensors"):
        """Bytes of a file of the newest checkpoint."""
        return (self.checkpoints()[-1] / name).read_bytes()

    def result(self):
        """All that an interrupted run must share with one that was not, to the byte."""
        return {
            "checkpoint": self.checkpoints()[-1].name,
            "weights": self.last(),
            "state": self.last("state.safetensors"),
            "metrics": self.learned(),
            "evaluation": self.json("eval.json"),
        }

    def leftovers(self):
        """What an interrupted write left in the run directory."""
        return sorted(self.path.rglob(".tmp-*"))


def _cpu_of_children():
    """Seconds of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _python_path():
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


class Shell:
    """Runs `paceline` in a directory of its own, which is also on the PYTHONPATH."""

    def __init__(self, folder):
        self.folder = Path(folder)
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)

    def environment(self, **more):
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.folder), *_python_path()]),
            "TMPDIR": str(self.folder / "tmp"),
            "TERM": "xterm",
            **more,
        }

    def start(self, *arguments, **options):
        """The process, just started; the test sees to its end."""
        command = [sys.executable, "-m", "paceline", *map(str, arguments)]
        given = {"stdin": subprocess.DEVNULL, "text": True, "env": self.environment()} | options
        for stream in ("stdout", "stderr"):
            given.setdefault(stream, subprocess.PIPE)
        return subprocess.Popen(command, cwd=self.folder, **given)

    def __call__(self, *arguments, timeout=90, **options):
        """Run to the end."""
        before = _cpu_of_children()
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{arguments} did not end within {timeout} s\n{out}\n{err}")
        return Ended(process.returncode, out or "", err or "", _cpu_of_children() - before)

    def execute(self, *command, timeout=90):
        """Run any command to its end, in the same directory and environment."""
        ended = subprocess.run(
            [*map(str, command)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def train(self, name, *arguments, code=0, **options):
        """Train into the directory `name`, and return it; anything but `code` is an error."""
        ended = self("train", "--output-dir", name, "--track", "none", *arguments, **options)
        assert ended.code == code, ended
        return self.run(name)

    def resume(self, name, *arguments, code=0, **options):
        ended = self("resume", name, *arguments, **options)
        assert ended.code == code, ended
        return self.run(name)

    def train_here(self, name, *arguments):
        """The same training within this process, which saves the import of torch."""
        import paceline
        from paceline.config.flags import parse_config

        place = ["--output-dir", str(self.folder / name), "--track", "none"]
        for _ in paceline.train(parse_config([*place, *map(str, arguments)])):
            pass
        return self.run(name)

    def resume_here(self, name, **changes):
        import paceline

        for _ in paceline.resume(self.folder / name, **changes):
            pass
        return self.run(name)

    def run(self, name):
        return Run(self.folder / name)

    def kill(self, arguments, name, delay, timeout=60, **options):
        """Start, wait until the run is at work and `delay` seconds more, then kill -9.

        Says whether the process was still there to be killed.
        """
        log, config = self.folder / "killed.log", self.folder / name / "config.yaml"
        resumed = config.exists()
        with log.open("w") as output:
            process = self.start(*arguments, stdout=output, stderr=output, **options)
        at_work = (lambda: log.stat().st_size) if resumed else config.exists
        wait_for(lambda: at_work() or process.poll() is not None, timeout)
        time.sleep(delay)
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        assert alive or process.returncode == 0, log.read_text()
        return alive


def wait_for(condition, timeout=60.0, what="it"):
    """Poll until `condition()` holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout} s"
        time.sleep(0.005)


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


@pytest.fixture
def command(shell, monkeypatch, capsys):
    """The command within this process, which saves its start: what has ended."""
    monkeypatch.chdir(shell.folder)

    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def together():
    """One function in several processes that meet."""
    with closing(Together()) as found:
        yield found


@pytest.fixture
def clean(together):
    """For tests that use it: no process and no shared memory is left of them."""
    with nothing_left(together):
        yield


@pytest.fixture(scope="session")
def shell_in():
    """For fixtures that outlive a test: a shell in a directory of their choice."""
    return Shell


@pytest.fixture(scope="session")
def until():
    return wait_for


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """A test of the command line or of faults leaves no process, no /dev/shm name, no temp file."""
    if request.path.parent.name not in ("cli", "faults"):
        yield
        return
    folder = request.getfixturevalue("tmp_path") / "tmp"
    folder.mkdir(exist_ok=True)
    mark, began = uuid.uuid4().hex, time.time()
    children, names = set(psutil.Process().children(recursive=True)), shared_names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield
    left = set(psutil.Process().children(recursive=True)) - children
    if "shell" in request.fixturenames or "shell_in" in request.fixturenames:
        left |= _marked(mark)  # orphans too
    processes = _end(left) if left else []
    shared = _settled(lambda: _unowned(shared_names() - names, began))
    files = [path.name for path in folder.iterdir() if path.name.startswith(LEFT_IN_TEMP)]
    assert not processes, f"processes left behind: {processes}"
    assert not shared, f"left in /dev/shm: {shared}"
    assert not files, f"left in the temporary directory: {files}"


def _marked(mark):
    """Living processes that were started, directly or not, by the test with this mark."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.add(process)
        except (psutil.Error, OSError):
            continue
    return found


def _end(processes):
    """Wait a moment for processes to go by themselves; kill and describe those that do not."""
    _, stayed = psutil.wait_procs(processes, timeout=3)
    described = []
    for process in stayed:
        try:
            described.append(f"{process.pid} {' '.join(process.cmdline())}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(stayed, timeout=3)
    return described


def _unowned(names, since):
    """Names made since then that no living process of somebody else holds open."""
    fresh = set()
    for name in names:
        try:
            if (SHARED_MEMORY / name).stat().st_ctime >= since:
                fresh.add(name)
        except FileNotFoundError:
            continue
    if fresh:
        for process in psutil.process_iter():
            try:
                held = Path(f"/proc/{process.pid}/maps").read_text()
                held += "\n".join(file.path for file in process.open_files())
            except (psutil.Error, OSError):
                continue
            fresh = {name for name in fresh if str(SHARED_MEMORY / name) not in held}
    return sorted(fresh)


def _settled(look):
    """What `look` finds once it has had time to go away."""
    deadline = time.monotonic() + 3
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
