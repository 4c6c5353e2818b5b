"""What `paceline tune` chooses, against the best of a small grid that is tried exhaustively.

    python benchmarks/tuning.py --env-id LunarLander-v3 --seconds 4 --rounds 3
    python benchmarks/tuning.py --env-id CartPole-v1 --seconds 4 --rounds 3

The grid is workers {0, 1, 2} or ranks {1, 2}, with 8, 16, 32 and 64 environments over all, at the
preset's rows of an update and of a minibatch, all trained as the real run would be, compiled or
not. `tune` searches first, and may use rollouts as short as the grid's.

The best of many noisy measurements is partly the luckiest. So the grid's best is found on rounds of
its own: a burst of half the seconds of every cell, of which the fastest four stay. Then come fresh
rounds, in which the choice and those four take turns. For each of these the best of the four is
taken by the other rounds, and the ratio is the choice's to its rate in that round, which had no
part in choosing either. Writes benchmarks/results/tuning-<env>.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from parallel import _spread as spread

from paceline.processes.hardware import available_cpus, cpu_name
from paceline.run.cost_model import Shape
from paceline.tools.bench.runs import interrupt_on_signals
from paceline.tools.bench.tune_plan import TunePlan, parse_tune
from paceline.tools.bench.tune_search import Search

ENVS = (8, 16, 32, 64)
PROCESSES = ((0, 1), (1, 1), (2, 1), (0, 2))
"""(workers, ranks)"""
KEPT = 4


def grid(base: Shape) -> list[Shape]:
    """Every cell that has the rows of `base` in an update."""
    return [
        replace(base, envs=envs // ranks, steps=base.rows // envs, workers=workers, learners=ranks)
        for workers, ranks in PROCESSES
        for envs in ENVS
        if base.rows % envs == 0
    ]


def chosen(plan: TunePlan, scratch: Path) -> tuple[Shape, float]:
    """What tune chooses, and how long the search took."""
    began = time.monotonic()
    search = Search(plan, scratch)
    search.run(search.constants())
    return search.choice(), time.monotonic() - began


def best_cells(runs: Search, cells: list[Shape], seconds: float) -> list[Shape]:
    """The fastest few, by one burst of each."""
    rates = {cell: burst.fps for cell in cells if (burst := runs.measure(cell, seconds))}
    return sorted(rates, key=lambda cell: -rates[cell])[:KEPT]


def ratios(rates: dict[Shape, list[float]], choice: Shape, cells: list[Shape]) -> list[float]:
    """Of the choice, round by round, to the cell that is the best in all the other rounds."""
    found = []
    for number in range(len(rates[choice])):
        others = {c: [r for k, r in enumerate(rates[c]) if k != number] for c in cells}
        best = max(cells, key=lambda cell: statistics.fmean(others[cell] or rates[cell]))
        found.append(rates[choice][number] / rates[best][number])
    return found


def compare(options: argparse.Namespace, scratch: Path) -> dict[str, object]:
    least = ["--min-rollout-steps", str(options.min_rollout_steps)]
    plan = parse_tune(["--env-id", options.env_id, *least, "--time", options.time, "--overwrite"])
    choice, took = chosen(plan, scratch)
    print(f"tune chose {choice} in {took:.0f} s; the grid:")
    runs = Search(replace(plan, budget=math.inf), scratch)
    cells = best_cells(runs, grid(plan.shape), options.seconds / 2)
    rates: dict[Shape, list[float]] = {shape: [] for shape in dict.fromkeys([choice, *cells])}
    for number in range(options.rounds):
        for shape in list(rates)[:: -1 if number % 2 else 1]:
            burst = runs.measure(shape, options.seconds)
            if burst is None:
                raise SystemExit(f"{shape} failed: {runs.failed[shape]}")
            rates[shape].append(burst.fps)
    found = ratios(rates, choice, cells)
    print(f"{options.env_id}: tune's choice to the best of the grid: {spread(found)}")
    return {
        "choice": str(choice),
        "search_seconds": took,
        "compiled": runs.compiled,
        "grid_best": [str(cell) for cell in cells],
        "rates": {str(shape): values for shape, values in rates.items()},
        "ratios": found,
        "ratio_median": statistics.median(found),
        "ratio_range": [min(found), max(found)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="LunarLander-v3")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one burst")
    parser.add_argument("--rounds", type=int, default=3, help="in which choice and grid take turns")
    parser.add_argument("--time", default="2m", help="budget of tune")
    parser.add_argument("--min-rollout-steps", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuning-") as scratch, interrupt_on_signals():
        found = compare(options, Path(scratch))
    machine = {"cpu": cpu_name(), "cpus": available_cpus(), "load": os.getloadavg()[0]}
    text = json.dumps({"options": vars(options), "machine": machine, **found}, indent=1)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"tuning-{options.env_id}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
