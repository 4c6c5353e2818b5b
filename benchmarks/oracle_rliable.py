"""What rliable says of a few score matrices, for tests/unit/test_statistics.py to agree with.

rliable does not import beside what the project needs, so it has an environment of its own:

    python3 -m venv /tmp/oracle
    /tmp/oracle/bin/pip install rliable "arch<8" "pandas<3" scipy numpy
    /tmp/oracle/bin/python benchmarks/oracle_rliable.py

Writes tests/unit/rliable_oracle.json: scores [N runs, M tasks], rliable's estimates and 95 %
intervals, and within which bounds the ends of an interval made of fewer samples should lie.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rliable import library, metrics

REPS = 5_000
FEWER = 2_000
"""Samples of the intervals that are to be judged."""
ERRORS = 4
"""Standard errors by which the share of samples below an interval's end may be off."""
TAIL = 0.025


def matrices():
    """Pairs of score matrices: one task and several, few runs and many, ties, outliers."""
    random = np.random.default_rng(20260)
    yield "five runs", random.normal(100, 10, (5, 1)), random.normal(105, 15, (5, 1))
    yield "unequal runs", random.normal(0, 1, (4, 1)), random.normal(0.5, 1, (9, 1))
    yield "ties", random.integers(0, 4, (10, 1)), random.integers(1, 5, (10, 1))
    yield "three tasks", random.gamma(2, 1, (6, 3)), random.gamma(2, 1.3, (6, 3))
    yield "outliers", random.standard_cauchy((12, 2)), random.standard_cauchy((12, 2))
    yield "thirty runs", random.normal(-200, 40, (30, 1)), random.normal(-190, 40, (30, 1))


def interquartile(scores):
    return np.array([metrics.aggregate_iqm(scores)])


def improvement(better, than):
    return np.array([metrics.probability_of_improvement(better, than)])


def asked(statistic, scores):
    """The estimate, its interval, and the bounds of the ends of one of fewer samples."""
    given = {"it": scores}
    np.random.seed(0)  # rliable draws from numpy's global stream
    estimates, intervals = library.get_interval_estimates(given, statistic, reps=REPS)
    kind = (
        library.StratifiedIndependentBootstrap
        if isinstance(scores, tuple)
        else library.StratifiedBootstrap
    )
    arrays = scores if isinstance(scores, tuple) else (scores,)
    np.random.seed(1)
    drawn = np.sort(kind(*arrays).apply(statistic, REPS).ravel())
    off = ERRORS * np.sqrt(TAIL * (1 - TAIL) * (1 / FEWER + 1 / REPS))
    ends = [np.quantile(drawn, [max(0.0, at - off), min(1.0, at + off)]) for at in (TAIL, 1 - TAIL)]
    return {
        "value": float(estimates["it"][0]),
        "interval": [float(end) for end in intervals["it"].ravel()],
        "low_between": ends[0].tolist(),
        "high_between": ends[1].tolist(),
    }


def main():
    cases = []
    for name, first, second in matrices():
        first, second = first.astype(float), second.astype(float)
        cases.append(
            {
                "name": name,
                "first": first.tolist(),
                "second": second.tolist(),
                "iqm": asked(interquartile, first),
                "improvement": asked(improvement, (second, first)),
            }
        )
    used = {name: version(name) for name in ("rliable", "arch", "pandas", "scipy", "numpy")}
    text = {"versions": used, "reps": REPS, "fewer": FEWER, "cases": cases}
    path = Path(__file__).parent.parent / "tests" / "unit" / "rliable_oracle.json"
    path.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
