"""Run directories as training writes them, with returns that a test knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from paceline import Config

FACTS = {
    "versions": {"paceline": "0.1.0"},
    "cpu": "a CPU",
    "cpus": 2,
    "platform": "a system",
    "startup": {"seconds": 2.0, "compile_seconds": 0.5},
    "choices": {"threads": 1, "compiled": False, "device": "cpu"},
}
PHASES = {"t_rollout": 0.4, "t_wait": 0.1, "t_learn": 0.5, "t_sync": 0.0, "t_other": 0.1}


def write_run(
    folder,
    returns,
    *,
    seconds_each=1.0,
    steps_each=1000,
    episodes_each=100,
    facts=None,
    evaluation=None,
    **options,
):
    """A run whose k-th report says that `episodes_each` episodes had the mean return[k]."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    lines = len(returns)
    if "duration" not in options:
        options.setdefault("total_steps", lines * steps_each)
    config = Config(**options)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
    (folder / "run.json").write_text(json.dumps(FACTS | (facts or {})))
    with (folder / "metrics.jsonl").open("w") as file:
        for k, value in enumerate(np.asarray(returns, float), 1):
            line = {
                "time": k * seconds_each,
                "iter": k,
                "steps": k * steps_each,
                "steps_global": steps_each,
                "fps": steps_each / seconds_each,
                "t_iter": seconds_each,
                **{name: share * seconds_each for name, share in PHASES.items()},
                "episodes": episodes_each,
                "episode_return": value if episodes_each else None,
                "memory_mb": 300.0,
                "cpu_percent": 150.0,
            }
            file.write(json.dumps(line) + "\n")
    if evaluation is not None:
        text = {
            "mean": evaluation,
            "env_id": config.env_name,
            "checkpoint": f"checkpoints/{lines:08d}",
            "sampled": False,
        }
        (folder / "eval.json").write_text(json.dumps(text))
    return folder


def curve(final, noise=5.0, lines=50, seed=0):
    """Returns that rise to `final`."""
    random = np.random.default_rng(seed)
    rise = 1 - np.exp(-np.arange(1, lines + 1) / (lines / 5))
    return final * rise + random.normal(0, noise, lines)


def amend(path, **values):
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
