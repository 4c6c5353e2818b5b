"""Learning curves over seeds, as a picture: episode return against environment steps.

    python benchmarks/curves.py --algo ppo --seeds 3 --out docs/algorithms/ppo-CartPole-v1.svg
    python benchmarks/curves.py --algo a2c --seeds 3 --out docs/algorithms/a2c-CartPole-v1.svg
    python benchmarks/curves.py --env-id procgen:coinrun --num-envs 16 --rollout-steps 128 \
        --minibatches 4 --lr 2.5e-4 --gamma 0.99 --total-steps 300k --seeds 1 --out docs/coinrun.svg

    python benchmarks/curves.py --results lstm=learning-A.json none=learning-B.json --out docs/a.svg

Trains seeds 0, 1, 2, …, with the preset unless it is told otherwise; none is left out. With
--results it draws what benchmarks/learning.py has trained, a colour for each file. What is drawn
are the returns of training episodes, of actions sampled from the policy. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.processes.hardware import limit_threads

limit_threads(1)

import numpy as np  # noqa: E402

Curve = tuple[np.ndarray, np.ndarray]
"""Steps, and the mean return of the episodes that ended around them."""
CHANGED = ("total_steps", "num_envs", "rollout_steps", "minibatches", "lr", "gamma", "threads")
POINTS = 60
SEED, MEAN, GRID = "#7a9cc6", "#12355b", "#d9d9d9"
COLORS = "#12355b", "#c2571a", "#3c8d4f", "#8a8a8a", "#7d3c98"
RESULTS = Path(__file__).parent / "results"


def trained(config: dict[str, Any]) -> tuple[list[tuple[int, int, float]], Any]:
    """(steps, episodes ended, their mean return) of every report in which one ended."""
    import paceline

    reports, last = [], None
    with tempfile.TemporaryDirectory() as folder:
        for report in paceline.train(paceline.Config(**config, output_dir=f"{folder}/run")):
            if report.episode_return is not None:
                reports.append((report.steps, report.episodes, report.episode_return))
            last = report
    return reports, last


def binned(reports: list[tuple[int, int, float]], steps: int) -> Curve:
    """Means over equal stretches of the run, each episode counting once; empty ones are left out.

    A point stands at the end of its stretch.
    """
    at, episodes, mean = (np.array(column, float) for column in zip(*reports, strict=True))
    place = np.minimum(np.ceil(at / steps * POINTS), POINTS).astype(int)
    weight = np.bincount(place, episodes, POINTS + 1)
    total = np.bincount(place, episodes * mean, POINTS + 1)
    seen = weight > 0
    return np.flatnonzero(seen) * steps / POINTS, total[seen] / weight[seen]


def mean_curve(curves: list[Curve]) -> Curve:
    """The mean of all seeds, where all of them have something to say."""
    first = max(steps[0] for steps, _ in curves)
    last = min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(grid >= first) & (grid <= last)]
    return grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0)


def draw(curves: list[Curve], title: str, out: Path) -> None:
    """Every seed, and their mean."""
    with axes_for(title, out) as axes:
        for number, curve in enumerate(curves):
            axes.plot(*curve, color=SEED, linewidth=1.0, label="" if number else "one seed")
        if len(curves) > 1:
            label = f"mean of {len(curves)} seeds"
            axes.plot(*mean_curve(curves), color=MEAN, linewidth=2.4, label=label)


def draw_results(named: dict[str, Path], title: str, out: Path) -> None:
    """Every seed of each result, thin, and their mean, in a colour of its own."""
    with axes_for(title, out) as axes:
        for (label, file), color in zip(named.items(), COLORS, strict=False):
            runs = json.loads(file.read_text())["runs"]
            curves = [tuple(map(np.array, run["curve"])) for run in runs]
            if len(curves) > 1:
                label = f"{label}, {len(curves)} seeds"
                for curve in curves:
                    axes.plot(*curve, color=color, linewidth=0.6, alpha=0.35)
            axes.plot(*mean_curve(curves), color=color, linewidth=2.0, label=label)


@contextmanager
def axes_for(title: str, out: Path) -> Iterator[Any]:
    """What is drawn on them is saved as `out`."""
    import matplotlib

    matplotlib.use("agg")  # no display needed
    matplotlib.rcParams |= {
        "font.family": "sans-serif",
        "font.size": 10,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "paceline",  # the same curves give the same file
    }
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    yield axes
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return of training episodes")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_xlim(left=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    out.parent.mkdir(parents=True, exist_ok=True)
    undated = {"Date": None} if out.suffix == ".svg" else None
    figure.savefig(out, dpi=150, facecolor="white", metadata=undated)


def _short(steps: float, _: int) -> str:
    if steps >= 1e6:
        return f"{steps / 1e6:g} M"
    return f"{steps / 1e3:g} k" if steps >= 1e3 else f"{steps:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=3)
    for name in CHANGED:
        parser.add_argument(f"--{name.replace('_', '-')}", help="instead of the preset's")
    parser.add_argument("--out", type=Path, help="a .svg, .png or .pdf file")
    parser.add_argument("--title", help="of --results")
    parser.add_argument("--results", nargs="+", metavar="NAME=FILE", help="in benchmarks/results")
    options = parser.parse_args()
    env = options.env_id.replace("/", "-").replace(":", "-")
    out = options.out or Path(f"{options.algo}-{env}.svg")
    if find_spec("matplotlib") is None:  # better now than after minutes of training
        parser.error("this needs matplotlib: pip install matplotlib")
    if out.suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"--out {out}: write a .svg, .png or .pdf file")
    if options.results:
        pairs = [pair.partition("=") for pair in options.results]
        draw_results({name: RESULTS / file for name, _, file in pairs}, options.title or "", out)
        print(out)
        return
    given = {"algo": options.algo, "env_id": options.env_id, "eval_episodes": 1, "track": "none"}
    given |= {name: value for name in CHANGED if (value := getattr(options, name)) is not None}
    runs = []
    for seed in range(options.seeds):
        reports, last = trained(given | {"seed": seed})
        if not reports:
            parser.error(f"no episode of {options.env_id} ended; give it more --total-steps")
        runs.append((reports, last.steps))
        print(
            f"seed {seed}: {last.steps:,} steps in {last.time:.1f} s, "
            f"last 100 episodes {last.recent_return:.1f}",
            flush=True,
        )
    longest = max(steps for _, steps in runs)
    curves = [binned(reports, longest) for reports, _ in runs]
    draw(curves, f"{options.algo.upper()} on {options.env_id}", out)
    print(out)


if __name__ == "__main__":
    main()
