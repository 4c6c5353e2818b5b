"""What a run directory tells of a run: its options, how far it came, its curves."""

from __future__ import annotations

import fcntl
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from ....config.schema import Config
from ....config.text import printable
from ....errors import BadInput
from ....run.budget import RECENT, Budget, Progress
from ....run.directory import CONFIG, EVALUATION, METRICS, RUN
from ....run.saved import plain_config, refuse_irregular
from ....storage import checkpoint
from ....storage.files import open_plain, read_lines, read_plain
from ....storage.lock import LOCK
from ..metrics import PHASES
from .statistics import Array

COUNTED = ("time", "iter", "steps", "episodes", "episode_return", "memory_mb", "cpu_percent")
FIELDS = COUNTED + tuple(f"t_{phase}" for phase in PHASES)
"""Of metrics.jsonl, what a comparison reads."""
MOST_BYTES = 2**30
"""Size of the largest metrics.jsonl that is read."""


@dataclass(frozen=True)
class History:
    """A run as its files tell it. Arrays have one number for each report."""

    path: Path
    config: Config
    facts: dict[str, Any]
    """run.json"""
    state: str
    """`done`, `cut short` or `still going`"""
    columns: dict[str, Array]
    evaluation: float | None = None
    """mean return of the evaluation at the end"""
    lost: int = 0
    """lines that could not be read"""
    metrics: dict[str, float] = field(default_factory=dict)
    """what else the last report says: of losses, memories, bonuses, teams"""
    values: dict[str, Any] = field(default_factory=dict)
    """the configuration, flat: {"ppo.clip": 0.2, …}"""

    @property
    def name(self) -> str:
        return printable(str(self.path))

    def last(self, name: str) -> float:
        return _last(self.columns[name])

    def over(self, name: str, reduce: Callable[[Array], Any]) -> float | None:
        """A column reduced to one number, of those that are known."""
        known = self.columns[name][np.isfinite(self.columns[name])]
        return float(reduce(known)) if len(known) else None

    @property
    def _ended(self) -> Array:
        """Episodes of each report whose return is known."""
        known = np.isfinite(self.columns["episode_return"])
        return np.where(known, np.nan_to_num(self.columns["episodes"]), 0.0)

    @cached_property
    def returns(self) -> Array:
        """At every report, mean return of the last 100 episodes, or of as many as there are."""
        counts = self._ended
        ended = np.cumsum(counts)
        total = np.cumsum(counts * np.nan_to_num(self.columns["episode_return"]))
        if not len(ended) or not ended[-1]:
            return np.full(len(ended), math.nan)
        before = np.interp(ended - RECENT, [0.0, *ended], [0.0, *total])
        with np.errstate(invalid="ignore"):
            return _rounded((total - before) / np.minimum(ended, RECENT))

    def on(self, axis: str, grid: Array) -> Array:
        """The returns over `time` or `steps`; NaN before the first episode, and after the end."""
        at, returns = self.columns[axis], self.returns
        known = np.isfinite(returns)
        if not known.any():
            return np.full(len(grid), math.nan)
        return np.interp(grid, at[known], returns[known], left=math.nan, right=math.nan)

    def score(self, axis: str, at: float) -> float | None:
        """The return when `time` or `steps` had come to `at`, or at the end before that."""
        here = np.flatnonzero((self.columns[axis] <= at) & np.isfinite(self.returns))
        return float(self.returns[here[-1]]) if len(here) else None

    def reached(self, target: float) -> int | None:
        """Number of the first report at which 100 episodes had a mean return of `target`."""
        enough = np.cumsum(self._ended) >= RECENT
        found = np.flatnonzero(enough & (self.returns >= target))
        return int(found[0]) if len(found) else None

    @cached_property
    def fps(self) -> float | None:
        return self.last("steps") / self.last("time") if self.last("time") else None

    @cached_property
    def shares(self) -> dict[str, float] | None:
        """Of the time, what each phase took."""
        covered = np.diff(self.columns["iter"], prepend=0.0)
        spent = {phase: float(np.nansum(self.columns[f"t_{phase}"] * covered)) for phase in PHASES}
        spent["rollout"] = max(0.0, spent["rollout"] - spent["wait"])
        whole = sum(spent.values())
        return {phase: seconds / whole for phase, seconds in spent.items()} if whole else None

    @property
    def startup(self) -> float | None:
        """Seconds before the first step."""
        seconds = _number(self.part("startup").get("seconds"))
        return float(seconds) if math.isfinite(seconds) else None

    def part(self, name: str) -> dict[str, Any]:
        """A table of run.json, which may hold anything."""
        found = self.facts.get(name)
        return found if isinstance(found, dict) else {}


def _last(column: Array) -> float:
    return float(np.nan_to_num(column[-1])) if len(column) else 0.0


def _rounded(values: Array) -> Array:
    """To nine digits: sums over a long run are not exact, and equal returns are to be equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** np.floor(np.log10(np.abs(values)))
        return np.where(values == 0, 0.0, np.round(values / scale, 9) * scale)


def find_runs(path: Path) -> list[Path]:
    """The run directory itself, or all that are somewhere in it."""
    if (path / CONFIG).is_file():
        return [path]
    found = sorted(file.parent for file in path.rglob(CONFIG) if (file.parent / RUN).is_file())
    if not found:
        what = "holds no run" if path.is_dir() else "is no directory"
        raise BadInput(f"{path} {what}; name a run directory, or one that has some in it")
    return found


def read_run(path: Path) -> History:
    """All that the files say; what can't be used is refused by name."""
    refuse_irregular(path)
    try:
        config = plain_config(path)
        facts = json.loads(read_plain(path / RUN, 2**20))
        if not isinstance(facts, dict):
            raise ValueError("it should hold names and values")
        columns, lost, metrics = read_metrics(path / METRICS)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} can't be read as a run: {str(error)[:200]}") from None
    return History(
        path,
        config,
        facts,
        _state(path, config, columns),
        columns,
        _evaluation(path, columns, config.env_name),
        lost,
        metrics,
        values_of(config),
    )


def values_of(config: Config) -> dict[str, Any]:
    """Every option by its dotted name, `auto` resolved."""
    chosen = {"sampler": config.resolved_sampler, "sync": config.resolved_sync}
    return flat(config.as_dict()) | chosen


def is_done(path: Path) -> bool:
    """Whether a run was trained to the end of its budget, saved and, if it is to be, evaluated."""
    try:
        run = read_run(path)
        if run.config.eval_episodes:
            return run.state == "done" and run.evaluation is not None
        newest = checkpoint.paths(path / "checkpoints")[-1]
    except (BadInput, IndexError):
        return False
    return run.state == "done" and newest.name == f"{run.last('iter'):08.0f}"


def last_report(path: Path) -> Any:
    """The newest whole line of a metrics.jsonl; None if there is none yet."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, 2) - 2**14))
            return json.loads(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError):
        return None


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"ppo": {"clip": 1}} → {"ppo.clip": 1}"""
    out: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and name != "kwargs"
        out |= flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return out


def read_metrics(path: Path) -> tuple[dict[str, Array], int, dict[str, float]]:
    """Columns of metrics.jsonl, how many of its lines could not be read, and what else its last
    report says."""
    if not path.exists():
        return {name: np.empty(0) for name in FIELDS}, 0, {}
    lines = list(read_lines(path, MOST_BYTES))
    try:
        reports = from_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        reports = [_parsed(line) for line in lines]
    good = [r for r in reports if isinstance(r, dict) and _number(r.get("iter")) is not math.nan]
    columns = {name: np.array([_number(r.get(name)) for r in good], float) for name in FIELDS}
    last = {name: _number(value) for name, value in (good[-1] if good else {}).items()}
    others = {n: v for n, v in last.items() if n not in FIELDS and math.isfinite(v)}
    return columns, len(lines) - len(good), others


def _parsed(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and abs(value) < 1e100 else math.nan


def _state(path: Path, config: Config, columns: dict[str, Array]) -> str:
    iters, steps, seconds = (_last(columns[name]) for name in ("iter", "steps", "time"))
    recent = deque(_recent(path), maxlen=RECENT)
    progress = Progress(int(iters), int(steps), seconds, recent)
    if Budget.of(config).fraction(progress) >= 1.0:
        return "done"
    return "still going" if _locked(path / LOCK) else "cut short"


def _locked(path: Path) -> bool:
    """Whether a process is writing this run."""
    try:
        with open_plain(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _recent(path: Path) -> list[float]:
    """Returns of the latest episodes, from the newest checkpoint."""
    try:
        newest = checkpoint.paths(path / "checkpoints")[-1]
        found = json.loads(read_plain(newest / "state.json", 2**20))["recent"]
        return [float(_number(value)) for value in found]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return []


def _evaluation(path: Path, columns: dict[str, Array], env_id: str) -> float | None:
    """Of the policy at the end of the run, as the run itself makes it; not of any other."""
    try:
        found = json.loads(read_plain(path / EVALUATION, 2**24))
        at_end = Path(found["checkpoint"] or "").name == f"{int(columns['iter'][-1]):08d}"
        whole = not found.get("sampled") and not found.get("cut_short")
        ours = found["env_id"] == env_id and whole
        mean = _number(found["mean"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return float(mean) if ours and at_end and math.isfinite(mean) else None
