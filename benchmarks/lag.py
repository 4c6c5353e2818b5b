"""What old weights cost: IMPALA whose actors are a fixed number of updates behind the learner.

    python benchmarks/lag.py --env-id CartPole-v1 --seeds 3 --total-steps 300000

Every cell is the preset with one lag, and V-trace's correction on or off; seeds are 0, 1, 2, …, and
none is left out. Reported are the final policy's mean over greedy episodes, and the mean return of
training episodes over the whole run, which is the height of the learning curve. Without a lag both
kinds of cell differ by rounding alone, which is enough to part two runs: they show the noise.
Writes benchmarks/results/lag-<env>.json, with `-lr<lr>` in its name where --lr is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.processes.hardware import limit_threads

limit_threads(1)

from curves import binned  # noqa: E402

from paceline.rollout import Array  # noqa: E402

if TYPE_CHECKING:
    from paceline import Config
    from paceline.samplers import Sampler


class Delayed:
    """A sampler that acts with the weights of `lag` updates ago, and says so in `version`."""

    def __init__(self, sampler: Sampler, lag: int) -> None:
        self._sampler = sampler
        self._latest: deque[tuple[Array, int]] = deque(maxlen=lag + 1)

    def publish(self, weights: Array, version: int) -> None:
        self._latest.append((weights.copy(), version))
        self._sampler.publish(*self._latest[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def trained(config: Config, lag: int, episodes: int) -> dict[str, float]:
    """One run: what its policy scores in the end, and how high its learning curve was."""
    from paceline.policy.agent import Agent
    from paceline.ring import ring
    from paceline.run.budget import Budget, Progress
    from paceline.run.build import build
    from paceline.run.evaluation import Evaluation, evaluate_policy

    reports, ratios = [], []
    with build(config) as parts:
        sampler, learner = Delayed(parts.sampler, lag), parts.learner
        sampler.publish(learner.weights, learner.version)
        budget, progress = Budget.of(config), Progress()
        for report in ring(replace(parts, sampler=sampler), budget, progress, config.log_every):
            ratios.append(report.rho_mean)
            if report.episode_return is not None:
                reports.append((report.steps, report.episodes, report.episode_return))
        weights = learner.module.named_weights().items()
        agent = Agent(parts.network, {name: w.numpy(force=True) for name, w in weights})
        given = agent, config.env_id, parts.env_info.options
        result = evaluate_policy(*given, Evaluation(episodes=episodes))
    return {
        "mean": result.mean,
        "training": float(binned(reports, progress.steps)[1].mean()),
        "rho_mean": statistics.fmean(ratios),
        "steps": progress.steps,
        "seconds": progress.time,
    }


def spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    import paceline

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 4, 16])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--total-steps", type=int, help="instead of the preset's")
    parser.add_argument("--lr", type=float, help="instead of the preset's")
    options = parser.parse_args()
    given: dict[str, Any] = {"algo": "impala", "env_id": options.env_id}
    if options.total_steps:
        given["total_steps"] = options.total_steps
    if options.lr:
        given["lr"] = options.lr
    rows: list[dict[str, Any]] = []
    for lag in options.lags:
        for correction in (True, False):
            cell = []
            for seed in range(options.seeds):
                config = paceline.Config(seed=seed, impala={"correction": correction}, **given)
                cell.append(trained(config, lag, options.episodes))
                rows.append({"lag": lag, "correction": correction, "seed": seed, **cell[-1]})
            print(
                f"lag {lag:2}, correction {'on' if correction else 'off':3}: "
                f"final {spread([run['mean'] for run in cell])}, "
                f"training {spread([run['training'] for run in cell])}, "
                f"rho_mean {statistics.fmean(run['rho_mean'] for run in cell):.3f}",
                flush=True,
            )
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    setting = f"-lr{options.lr:g}" if options.lr else ""
    file = folder / f"lag-{options.env_id}{setting}.json"
    file.write_text(json.dumps({"options": vars(options), "runs": rows}, indent=1))


if __name__ == "__main__":
    main()
