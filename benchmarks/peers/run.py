"""Training steps per second of Paceline against its peers, interleaved.

    python benchmarks/peers/run.py                  # every case
    python benchmarks/peers/run.py --cases a,b --rounds 10
    python benchmarks/peers/run.py --quick          # does every side work? No figures

Each side is a process that stays alive and waits. A round lets every side train for the same number
of iterations, one after the other, and its ratio is between neighbors, so that a machine whose
speed drifts does not decide it. Compilation, first iterations and one whole round come before the
clock. One thread a side. The peers run in an environment of their own (`make bench-peers`).
Writes benchmarks/results/peers.json; cases that were not run keep their entries.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cases import CASES, PEERS, Case, Setting

from paceline.processes.hardware import THREAD_VARIABLES, available_cpus, cpu_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPTS = {
    "ours": "ours.py",
    "sb3": "sb3.py",
    "subproc": "subproc.py",
    "recurrent": "recurrent.py",
    "textbook": "loop.py",
}
PATIENCE = 10.0
"""Seconds that a side has to end by itself."""


class SideFailed(Exception):
    """A side ended without an answer; what it said is on standard error."""


class Skipped(Exception):
    """A side has no such option."""


class Side:
    """A worker process, which ends with the `with` block however that is left."""

    def __init__(self, name: str, python: str, setting: Setting, folder: str) -> None:
        self._name = name
        # A session of its own: Ctrl-C reaches this process alone, which then ends its sides.
        self._process = subprocess.Popen(
            [python, str(HERE / SCRIPTS[name]), json.dumps(asdict(setting))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(setting.threads)),
            start_new_session=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        process = self._process
        try:
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                process.stdin.close()  # type: ignore[union-attr]
                process.wait(PATIENCE if error is None else 0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the compiler it may have started
                process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    def answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SideFailed(f"the side {self._name!r} ended without an answer; see above")
        facts: dict[str, Any] = json.loads(line)
        if "refused" in facts:
            raise Skipped(facts["refused"])
        return facts

    def rate(self, iterations: int) -> float:
        """Train; returns environment steps per second."""
        try:
            print(f"go {iterations}", file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise SideFailed(f"the side {self._name!r} has ended; see above") from None
        facts = self.answer()
        return facts["steps"] / facts["seconds"]


def measure(case: Case, pythons: dict[str, str], rounds: int, iterations: int) -> dict[str, Any]:
    """Run one case; what it found, as the results file has it."""
    names = ("ours", *case.peers)
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())  # MuJoCo writes a log
        sides, facts = {}, {}
        for name in names:
            sides[name] = stack.enter_context(Side(name, pythons[name], case.setting, folder))
            facts[name] = sides[name].answer()
        warn_of_differences({name: facts[name]["versions"] for name in names})
        for number in range(rounds + 1):
            for name, side in sides.items():
                rate = side.rate(iterations)
                if number > 0:  # the first round warms up
                    rates[name].append(rate)
            if number > 0:
                print("  ".join(f"{name} {rates[name][-1]:,.0f}/s" for name in names), flush=True)
    return {
        "title": case.setting.title,
        "peers": {name: PEERS[name] for name in case.peers},
        "setting": asdict(case.setting),
        "iterations": iterations,
        "rounds": rounds,
        "rates": rates,
        "ratios": {name: ratio(rates["ours"], rates[name]) for name in case.peers},
        "threads": {name: facts[name]["threads"] for name in names},
        "versions": {name: facts[name]["versions"] for name in names},
        "cpu": cpu_name(),
        "cpus": available_cpus(),
    }


def ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Round by round, then in the middle and at both ends."""
    rounds = [one / other for one, other in zip(ours, theirs, strict=True)]
    return {
        "median": statistics.median(rounds),
        "min": min(rounds),
        "max": max(rounds),
        "rounds": rounds,
    }


def warn_of_differences(versions: dict[str, dict[str, str]]) -> None:
    """Sides that do not share a version of something may differ for that reason."""
    for name, theirs in versions.items():
        for package, version in versions["ours"].items():
            if theirs.get(package, version) != version:
                print(f"note: {package} is {version} here and {theirs[package]} for {name}")


def show(result: dict[str, Any]) -> None:
    middle = {name: statistics.median(rates) for name, rates in result["rates"].items()}
    for peer, found in result["ratios"].items():
        print(
            f"{found['median']:.2f}× {result['peers'][peer]} "
            f"({found['min']:.2f} to {found['max']:.2f}); "
            f"{middle['ours']:,.0f} against {middle[peer]:,.0f} steps/s",
            flush=True,
        )


def save(file: Path, name: str, result: dict[str, Any]) -> None:
    """Put the case into the file beside the others."""
    known = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.exists() else {}
    known[name] = result
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"cases": dict(sorted(known.items()))}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Paceline's speed against its peers'.")
    parser.add_argument("--cases", default=",".join(CASES), help="which, such as a,b")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--peers-python", type=Path, default=ROOT / ".venv-peers/bin/python")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/peers.json")
    given = parser.parse_args()
    given.cases = [name for name in given.cases.split(",") if name]
    unknown = [name for name in given.cases if name not in CASES]
    if unknown or not given.cases:
        parser.error(
            f"--cases names {', '.join(map(repr, unknown)) or 'nothing'}, and the cases are "
            f"{', '.join(CASES)}; write for instance --cases a,b"
        )
    if given.rounds < 1:
        parser.error(f"--rounds is {given.rounds}; at least 1 is needed")
    if not given.peers_python.exists():
        parser.error(
            f"there is no {given.peers_python}; `make bench-peers` makes that environment, or give "
            "another with --peers-python"
        )
    return given


def main() -> int:
    given = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sides are ended, too
    peers_python = str(given.peers_python.absolute())  # not resolved: the link is the environment
    pythons = dict.fromkeys(SCRIPTS, sys.executable)
    pythons |= dict.fromkeys(("sb3", "subproc", "recurrent"), peers_python)
    rounds = 1 if given.quick else given.rounds
    try:
        for name in given.cases:
            case = CASES[name]
            print(f"case {name}: {case.setting.title}", flush=True)
            try:
                result = measure(case, pythons, rounds, 1 if given.quick else case.iterations)
            except Skipped as reason:
                print(f"case {name} is left out: {reason}", flush=True)
                continue
            show(result)
            if not given.quick:
                save(given.out, name, result)
    except SideFailed as error:
        print(f"case {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished cases are kept", file=sys.stderr)
        return 130
    if given.quick:
        print("a quick run: its figures mean nothing, and none was written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
