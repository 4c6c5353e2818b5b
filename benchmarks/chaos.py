"""Runs whose workers are killed, stopped and broken: how soon they heal, and what is left of them.

    python benchmarks/chaos.py kills                100 × kill -9 of a worker of one IMPALA run
    python benchmarks/chaos.py stops                20 × SIGSTOP, which only a timeout can tell
    python benchmarks/chaos.py parents              20 × kill -9 of the trainer: what is left of it
    python benchmarks/chaos.py raising              CartPole that raises in 1 of 2,000 steps
    python benchmarks/chaos.py soak --minutes 30    a kill every 20 s: memory, files, threads
    python benchmarks/chaos.py ranks                20 × kill -9 of a rank, five in a run

Which worker or rank, and when, is drawn with --seed. Writes benchmarks/results/chaos-<name>.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.processes.hardware import limit_threads

limit_threads(1)

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402

MARK = "PACELINE_CHAOS"
"""Environment variable by which a run's processes are known, orphans included."""
FOLDER = "PACELINE_CHAOS_FOLDER"
TRAINER = "PACELINE_CHAOS_TRAINER"
SHARED_MEMORY = Path("/dev/shm")
HEALED = re.compile(r"warning: (worker \d+ \(pid (\d+), .*?) at step .*; pid (\d+) takes its place")


class TouchStep(gym.Wrapper[Any, Any, Any, Any]):
    """Leaves the time of its process' first step that is sampled, and not replayed, in a file."""

    noted = False

    def step(self, action: Any) -> Any:
        if not TouchStep.noted and not _replaying():
            TouchStep.noted = True
            file = Path(os.environ[FOLDER], f".{os.getpid()}")
            file.write_text(str(time.monotonic()))
            file.rename(file.with_name(str(os.getpid())))
        return super().step(action)


def _replaying() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "replay":
            return True
    return False


class Raising(gym.Wrapper[Any, Any, Any, Any]):
    """Raises with a small probability at every step; not where a policy is evaluated."""

    def __init__(self, env: gym.Env[Any, Any], probability: float = 5e-4) -> None:
        super().__init__(env)
        self._probability = probability
        self._sound = os.getpid() == int(os.environ[TRAINER])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._luck = random.Random(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if not self._sound and self._luck.random() < self._probability:
            raise RuntimeError("the rope broke")
        return super().step(action)


class Run:
    """A trainer with its forkserver and its workers, as seen from outside."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.log = folder / "log"
        (folder / "steps").mkdir()
        (folder / "tmp").mkdir()
        python_path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(part for part in python_path if part),
            "TMPDIR": str(folder / "tmp"),
            FOLDER: str(folder / "steps"),
            MARK: self.mark,
        }
        command = [sys.executable, "-m", "paceline", "train", "--output-dir", str(folder / "run")]
        with self.log.open("w") as output:
            self.process = psutil.Popen(
                [*command, "--track", "none", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | environment,
            )

    def forkserver(self) -> psutil.Process | None:
        for child in self.process.children():
            if "forkserver" in " ".join(child.cmdline()):
                return child
        return None

    def workers(self) -> list[psutil.Process]:
        server = self.forkserver()
        return [] if server is None else sorted(server.children(), key=lambda child: child.pid)

    def ranks(self) -> dict[int, psutil.Process]:
        """Processes that learn, by their rank, as far as there are any."""
        found = {}
        try:
            for child in self.process.children(recursive=True):
                if "paceline.ranks.rank" in " ".join(child.cmdline()):
                    found[int(child.environ()["RANK"])] = child
        except (psutil.Error, OSError, KeyError):  # some are going, or just coming
            return {}
        return found

    def sampling(self, pid: int) -> float | None:
        """When this worker first sampled a step, if it has."""
        file = self.folder / "steps" / str(pid)
        return float(file.read_text()) if file.exists() else None

    def ready(self, workers: int) -> bool:
        """All are there and at work."""
        found = self.workers()
        return len(found) == workers and all(self.sampling(w.pid) is not None for w in found)

    def successor(self, pid: int) -> int | None:
        """The process that took a worker's place, as the trainer says."""
        for _, old, new in HEALED.findall(self.log.read_text()):
            if int(old) == pid:
                return int(new)
        return None

    def healed(self, pid: int) -> float | None:
        """When the columns of this worker were sampled again, if they were."""
        new = self.successor(pid)
        return None if new is None else self.sampling(new)

    def metrics(self) -> list[dict[str, Any]]:
        lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def reported(self) -> int:
        """How many lines of metrics there are."""
        file = self.folder / "run" / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def weights(self) -> bytes:
        """Of the newest checkpoint."""
        saved = (self.folder / "run" / "checkpoints").glob("[0-9]*")
        return (max(saved) / "weights.safetensors").read_bytes()

    def marked(self) -> list[psutil.Process]:
        """Living processes of this run, wherever they hang."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def finish(self) -> int:
        """Stop politely, as a cluster would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(60))

    def evaluation(self, episodes: int = 100) -> float:
        os.environ[FOLDER] = str(self.folder / "steps")
        from paceline.run.evaluation import Evaluation
        from paceline.session import evaluate_saved

        return evaluate_saved(self.folder / "run", Evaluation(episodes=episodes)).mean


@contextmanager
def running(*flags: str) -> Iterator[Run]:
    """A run in a directory of its own; whatever is left of it at the end is killed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), *flags)
        try:
            yield run
        except BaseException:
            print(run.log.read_text()[-2000:], file=sys.stderr)
            raise
        finally:
            for process in run.marked():
                process.kill()
            run.process.wait()


def wait_for(condition: Callable[[], Any], timeout: float) -> Any:
    """What `condition()` returns once that is something, or None after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if (found := condition()) not in (None, False):
            return found
        time.sleep(0.002)
    return None


def stream_flags(options: argparse.Namespace) -> list[str]:
    """An IMPALA run that goes on until it is stopped."""
    return [
        *("--algo", "impala", "--env-id", "CartPole-v1", "--env.wrappers", "chaos:TouchStep"),
        *("--preset", options.preset, "--num-workers", str(options.workers)),
        *("--total-steps", "1_000_000_000", "--compile", "off", "--seed", str(options.seed)),
    ]


def disturb(
    options: argparse.Namespace, kind: signal.Signals, *flags: str, patience: float
) -> dict[str, Any]:
    """Send a signal to a random worker, wait until its columns are sampled again, and again."""
    source, latencies, lost = random.Random(options.seed), [], 0
    with running(*stream_flags(options), *flags) as run:
        if not wait_for(lambda: run.ready(options.workers), 120):
            raise RuntimeError("the workers did not begin")
        for number in range(options.times):
            time.sleep(source.uniform(0.0, 1.0))
            victim = source.choice(run.workers()).pid
            at = time.monotonic()
            os.kill(victim, kind)
            again = wait_for(lambda victim=victim: run.healed(victim), patience)
            if again is None:
                lost += 1
                print(f"{number + 1}: pid {victim} was not replaced within {patience:.0f} s")
            else:
                latencies.append(again - at)
        code = run.finish()
        last = run.metrics()[-1]
        left = len(run.marked())
        mean = run.evaluation()
        said = HEALED.findall(run.log.read_text())
    p50, p95, most = np.percentile(latencies, [50, 95, 100]).tolist()
    result = {
        "times": options.times,
        "healed": len(latencies),
        "not_healed": lost,
        "restarts": last["restarts"],
        "exit_code": code,
        "processes_left": left,
        "seconds_p50": p50,
        "seconds_p95": p95,
        "seconds_max": most,
        "steps": last["steps"],
        "lag_max": max(last["lag_max"], 0),
        "evaluation": mean,
        "latencies": latencies,
        "example": said[0][0],
    }
    print(
        f"{kind.name} × {options.times}: {len(latencies)} healed, {last['restarts']} restarts "
        f"counted; from the signal to the next sampled step p50 {p50:.3f} s, p95 {p95:.3f} s, "
        f"max {most:.3f} s\nexit code {code}, {left} processes left, {last['steps']:,} steps, "
        f"evaluation {mean:.1f} over 100 episodes\ne.g. {said[0][0]}"
    )
    return result


def kills(options: argparse.Namespace) -> dict[str, Any]:
    return disturb(options, signal.SIGKILL, patience=30.0)


def stops(options: argparse.Namespace) -> dict[str, Any]:
    return disturb(options, signal.SIGSTOP, "--worker-timeout", "2s", patience=30.0)


def parents(options: argparse.Namespace) -> dict[str, Any]:
    """Kill trainers, every other while it starts, and look at what is left 2 s later."""
    source, rows = random.Random(options.seed), []
    for number in range(options.times):
        names = {path.name for path in SHARED_MEMORY.iterdir()}
        with running(*stream_flags(options)) as run:
            began, starting = time.monotonic(), number % 2 == 1
            if not starting and not wait_for(lambda run=run: run.ready(options.workers), 120):
                raise RuntimeError("the workers did not begin")
            time.sleep(source.uniform(0.0, 6.0 if starting else 2.0))
            before = len(run.marked())
            run.process.kill()
            killed = time.monotonic()
            delay = killed - began
            run.process.wait()
            gone = wait_for(lambda run=run: not run.marked(), 2.0)
            seconds = time.monotonic() - killed
            time.sleep(max(0.0, 2.0 - seconds))
            left = [f"{p.pid} {' '.join(p.cmdline())[-80:]}" for p in run.marked()]
            shared = {path.name for path in SHARED_MEMORY.iterdir()} - names
            files = [path.name for path in (run.folder / "tmp").iterdir()]
        rows.append(
            {
                "killed_after": delay,
                "processes_before": before,
                "seconds_until_gone": seconds if gone else None,
                "processes_left": left,
                "shared_memory_left": sorted(shared),
                "temporary_files_left": files,
            }
        )
        print(
            f"{number + 1}: {before} processes, killed after {delay:.1f} s, "
            f"{f'gone within {seconds:.2f} s' if gone else f'left: {left}'}; "
            f"{len(shared)} in /dev/shm, {len(files)} temporary files",
            flush=True,
        )
    processes = sum(len(row["processes_left"]) for row in rows)
    shared_left = sum(len(row["shared_memory_left"]) for row in rows)
    files_left = sum(len(row["temporary_files_left"]) for row in rows)
    slowest = max(row["seconds_until_gone"] or np.inf for row in rows)
    print(
        f"kill -9 of {len(rows)} trainers: after 2 s {processes} processes, {shared_left} names in "
        f"/dev/shm, {files_left} temporary files left; slowest {slowest:.2f} s"
    )
    return {
        "times": len(rows),
        "processes_left": processes,
        "shared_memory_left": shared_left,
        "temporary_files_left": files_left,
        "runs": rows,
    }


def raising(options: argparse.Namespace) -> dict[str, Any]:
    """Learning where environments break all the time, against learning where they do not."""
    import paceline
    from paceline.errors import PacelineError
    from paceline.run.evaluation import Evaluation
    from paceline.session import evaluate_saved

    logging.getLogger("paceline").setLevel(logging.ERROR)
    os.environ[TRAINER] = str(os.getpid())
    rows: list[dict[str, Any]] = []
    for algo, steps in (("ppo", 100_000), ("impala", 500_000)):
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                config = paceline.Config(
                    algo=algo,
                    env_id="CartPole-v1",
                    env={"wrappers": ["chaos:Raising"]},
                    seed=seed,
                    num_workers=options.workers,
                    total_steps=steps,
                    track="none",
                    output_dir=f"{folder}/run",
                )
                row: dict[str, Any] = {"algo": algo, "seed": seed, "error": None}
                try:
                    for report in paceline.train(config):
                        last = report
                    hundred = Evaluation(episodes=100)
                    row["mean"] = evaluate_saved(Path(folder) / "run", hundred).mean
                except PacelineError as error:
                    row |= {"error": str(error).replace(folder, "…"), "mean": None}
            row |= {"steps": last.steps, "env_restarts": last.env_restarts, "seconds": last.time}
            row["restarts"] = last.restarts
            rows.append(row)
            print(
                f"{algo} seed {seed}: {row['error'] or row['mean']} after {last.steps:,} steps in "
                f"{last.time:.1f} s, {last.env_restarts} environments rebuilt, "
                f"{last.restarts} workers replaced",
                flush=True,
            )
    for algo in ("ppo", "impala"):
        means = [row["mean"] for row in rows if row["algo"] == algo and row["mean"] is not None]
        rebuilt = sum(row["env_restarts"] for row in rows if row["algo"] == algo)
        if means:
            print(
                f"{algo}: mean {sum(means) / len(means):.1f}, worst {min(means):.1f} over "
                f"{len(means)} of {options.seeds} seeds; {rebuilt} environments rebuilt"
            )
    return {"probability": 5e-4, "runs": rows}


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """A long run with a kill every few seconds: nothing may grow."""
    source, samples = random.Random(options.seed), []
    skipped = min(300.0, options.minutes * 60 / 3)
    flags = [*stream_flags(options), "--log-every", "100"]
    with running(*flags) as run:
        if not wait_for(lambda: run.ready(options.workers), 120):
            raise RuntimeError("the workers did not begin")
        began = time.monotonic()
        while (passed := time.monotonic() - began) < options.minutes * 60:
            if run.process.poll() is not None:
                raise RuntimeError(f"the run ended with code {run.process.returncode}")
            server = run.forkserver()
            assert server is not None
            victim = source.choice(run.workers()).pid
            os.kill(victim, signal.SIGKILL)
            time.sleep(options.every)
            line = run.metrics()[-1]
            samples.append(
                {
                    "time": passed,
                    "memory_mb": line["memory_mb"],
                    "trainer_mb": run.process.memory_info().rss / 2**20,
                    "forkserver_mb": server.memory_info().rss / 2**20,
                    "steps": line["steps"],
                    "restarts": line["restarts"],
                    "fds": run.process.num_fds(),
                    "forkserver_fds": server.num_fds(),
                    "threads": run.process.num_threads(),
                    "processes": len(run.marked()),
                }
            )
            if len(samples) % 15 == 1:
                print(json.dumps(samples[-1]), flush=True)
        lines = [(line["time"], line["memory_mb"]) for line in run.metrics()]
        kept = np.array([pair for pair in lines if pair[0] >= skipped])
        slope = float(np.polyfit(kept[:, 0] / 3600, kept[:, 1], 1)[0])
        code = run.finish()
        left = len(run.marked())
        mean = run.evaluation()
    first, last = samples[len(samples) // 6], samples[-1]
    print(
        f"{options.minutes:.0f} min, {len(samples)} kills, {last['restarts']} restarts, "
        f"{last['steps']:,} steps: memory {kept[0, 1]:.0f} MB after {skipped / 60:.0f} min, "
        f"{kept[-1, 1]:.0f} MB at the end, {slope:+.2f} MB/hour\n"
        f"files {first['fds']} → {last['fds']} (forkserver {first['forkserver_fds']} → "
        f"{last['forkserver_fds']}), threads {first['threads']} → {last['threads']}, "
        f"exit code {code}, {left} processes left, evaluation {mean:.1f}"
    )
    return {
        "minutes": options.minutes,
        "kills": len(samples),
        "restarts": last["restarts"],
        "steps": last["steps"],
        "slope_mb_per_hour": slope,
        "skipped_seconds": skipped,
        "exit_code": code,
        "processes_left": left,
        "evaluation": mean,
        "samples": samples,
    }


KILLS = 5
"""Of one run of ranks, at most."""
BETWEEN = 60
"""Iterations in which one of them falls."""


def ranks(options: argparse.Namespace) -> dict[str, Any]:
    """Kill ranks, one after the other; every run ends by itself, as if none had been killed."""
    source, each = random.Random(options.seed), min(KILLS, options.times)
    flags = [
        *("--env-id", "CartPole-v1", "--preset", options.preset, "--ranks", str(options.ranks)),
        *("--total-iters", str(each * BETWEEN), "--save-every", "10_000", "--compile", "off"),
        *("--seed", str(options.seed)),
    ]
    with running(*flags) as run:
        if run.process.wait(600):
            raise RuntimeError("the run that nobody disturbs failed")
        expected = run.weights()
    rows, latencies, killed = [], [], 0
    while killed < options.times:
        due = [BETWEEN * n + source.randrange(BETWEEN) for n in range(each)]
        due = due[: options.times - killed]
        killed += len(due)
        with running(*flags) as run:
            seconds = [_kill_rank(run, moment, options.ranks, source) for moment in due]
            row: dict[str, Any] = {"kills": due, "seconds": seconds}
            row["exit_code"] = wait_for(lambda run=run: _code(run), 300)
            said = run.log.read_text()
            iterations = [line["iter"] for line in run.metrics()]
            row["every_iteration_once"] = iterations == list(range(1, each * BETWEEN + 1))
            row["weights_as_undisturbed"] = run.weights() == expected
            evaluated = run.folder / "run" / "eval.json"
            row["evaluation"] = (
                json.loads(evaluated.read_text())["mean"] if evaluated.exists() else None
            )
            row["restarts_said"] = said.count("all ranks start again")
            row["processes_left"] = len(run.marked())
            row["temporary_files_left"] = [path.name for path in (run.folder / "tmp").iterdir()]
        row["whole"] = (
            row["exit_code"] == "0"
            and row["every_iteration_once"]
            and row["weights_as_undisturbed"]
            and row["evaluation"] is not None
            and not row["processes_left"]
        )
        rows.append(row)
        latencies += [second for second in seconds if second is not None]
        shown = ", ".join("–" if second is None else f"{second:.1f} s" for second in seconds)
        print(
            f"{killed}: killed at iterations {due}, next report after {shown}; exit code "
            f"{row['exit_code']}, {'as undisturbed' if row['whole'] else 'NOT as undisturbed'}, "
            f"evaluation {row['evaluation']}",
            flush=True,
        )
    recovered = sum(second is not None for row in rows if row["whole"] for second in row["seconds"])
    p50, p95, most = np.percentile(latencies or [np.nan], [50, 95, 100]).tolist()
    print(
        f"kill -9 of a rank × {killed}: {recovered} of {killed} recovered, {len(rows)} runs; from "
        f"the kill to the next report p50 {p50:.2f} s, p95 {p95:.2f} s, max {most:.2f} s"
    )
    return {
        "times": killed,
        "recovered": recovered,
        "seconds_p50": p50,
        "seconds_p95": p95,
        "seconds_max": most,
        "runs": rows,
    }


def _code(run: Run) -> str | None:
    """The exit code, once there is one."""
    code = run.process.poll()
    return None if code is None else str(code)


def _kill_rank(run: Run, moment: int, number: int, source: random.Random) -> float | None:
    """Kill a rank some time after this many reports; seconds until there is one more, or None.

    Reports since the last checkpoint are taken back first, and are not counted.
    """
    if not wait_for(lambda: run.reported() >= moment and len(run.ranks()) == number, 120):
        return None
    time.sleep(source.uniform(0.0, 0.2))
    before = run.ranks()
    if run.process.poll() is not None or len(before) < number:
        return None
    at = time.monotonic()
    before[source.randrange(number)].kill()
    old = {process.pid for process in before.values()}

    def started_again() -> bool:
        new = run.ranks()
        return len(new) == number and not old & {process.pid for process in new.values()}

    if not wait_for(started_again, 60):
        return None
    seen = run.reported()

    def reported_again() -> bool:
        nonlocal seen
        count = run.reported()
        if count > seen:
            return True
        seen = count
        return False

    return time.monotonic() - at if wait_for(reported_again, 60) else None


CHAOS = {
    "kills": kills,
    "stops": stops,
    "parents": parents,
    "raising": raising,
    "soak": soak,
    "ranks": ranks,
}
TIMES = {"kills": 100, "stops": 20, "parents": 20, "ranks": 20}


def main() -> None:
    from paceline.processes.hardware import description

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="+", choices=CHAOS)
    parser.add_argument("--times", type=int, help="signals, or trainers, of each kind")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of `ranks`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="of `raising`")
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--minutes", type=float, default=30.0, help="of `soak`")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between its kills")
    options = parser.parse_args()
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    for name in options.what:
        chosen = argparse.Namespace(**vars(options))
        chosen.times = options.times or TIMES.get(name)
        print(f"— {name}", flush=True)
        result = CHAOS[name](chosen)
        where = {k: v for k, v in description().items() if k in ("versions", "cpu", "cpus")}
        kept = {"options": vars(chosen) | {"what": name}, "machine": where, **result}
        (folder / f"chaos-{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
