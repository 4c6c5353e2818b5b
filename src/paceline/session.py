"""train and resume: the ring, plus what a run leaves behind in its directory."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from . import checkpoint, machine
from .build import Parts, build
from .config import Config
from .configure import load_file, resolve
from .errors import BadInput, Diverged, EnvironmentFailed
from .metrics import Report
from .recorder import CONFIG, Recorder, claim, read_run, unclaim
from .ring import Budget, Progress, ring

log = logging.getLogger("paceline")

CHANGEABLE = {
    "total_steps",
    "total_iters",
    "duration",
    "eval_every",
    "eval_episodes",
    "save_every",
    "keep",
    "log_every",
    "log_jsonl",
    "track",
}
"""What a resumed run may do differently: none of it alters learning."""
LONG_REPLAY = 1_000_000


def train(config: Config) -> Iterator[Report]:
    """Train, writing the run directory, and yield a report after every iteration or few.

    Leaving the loop early ends the run cleanly, with a checkpoint to resume from.
    """
    folder = Path(config.output_dir or _default_folder(config))
    with build(config) as parts:
        claim(folder, config, asdict(parts.choices))
        _introduce(config, folder, parts)
        yield from _record(config, folder, parts, Progress())


def resume(run: str | Path, **changes: Any) -> Iterator[Report]:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped.

    The budget may be extended, and logging and evaluation changed; nothing that alters learning.
    """
    folder = Path(run)
    config, made_with = _resumed_config(folder, changes)
    checkpoints = folder / "checkpoints"
    checkpoint.sweep(checkpoints)
    with build(config, made_with["choices"]) as parts:
        progress = Progress()
        if checkpoint.saved(checkpoints):
            progress = _restore(checkpoints, parts)
        else:
            log.warning("%s has no checkpoint yet; it starts from the beginning", folder)
        unclaim(folder, config, progress.iter)
        _introduce(config, folder, parts)
        yield from _record(config, folder, parts, progress)


def _introduce(config: Config, folder: Path, parts: Parts) -> None:
    """What is about to run, and on what."""
    choices = parts.choices
    preset = "none" if config.preset == "none" else f"{config.algo} {config.preset}"
    log.info(
        "%s on %s · %d envs × %d steps · seed %d · preset: %s",
        config.algo,
        config.env_name,
        config.num_envs,
        config.rollout_steps,
        config.seed,
        preset,
    )
    log.info(
        "%s, %d of %d threads, %s, %s step → %s",
        machine.cpu_name(),
        choices.threads,
        machine.available_cpus(),
        choices.device,
        "compiled" if choices.compiled else "eager",
        folder,
    )


def _record(config: Config, folder: Path, parts: Parts, progress: Progress) -> Iterator[Report]:
    """The ring, with each report evaluated, written and, when due, followed by a checkpoint."""
    budget = Budget.of(config)
    reports = ring(parts.sampler, parts.learner, parts.sync, budget, progress, config.log_every)
    with Recorder(config, folder, parts, progress) as recorder:
        try:
            for report in reports:
                yield recorder.record(report)
            recorder.finish()
        except GeneratorExit:
            recorder.stop()
            raise
        except (EnvironmentFailed, Diverged) as error:
            recorder.fail(error)
            raise


def _default_folder(config: Config) -> Path:
    name = config.env_name.replace(":", "-").replace("/", "-")
    stem = f"{name}-{config.algo}-{datetime.now():%Y%m%d-%H%M%S}"
    number, folder = 1, Path("runs") / stem
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{stem}-{number}"
    return folder


def _resumed_config(folder: Path, changes: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    if not (folder / CONFIG).is_file():
        raise BadInput(f"{folder} holds no run: there is no {CONFIG} in it")
    stored = load_file(folder / CONFIG)
    callable_given = callable(changes.get("env_id"))
    for name in changes:
        if name not in CHANGEABLE and not (name == "env_id" and callable_given):
            allowed = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(CHANGEABLE))
            raise BadInput(
                f"{name} can't change when a run is resumed, since it alters what is learnt; "
                f"what can: {allowed}"
            )
    config = resolve(stored, changes)
    made_with = read_run(folder)
    if made_with.get("env_is_callable") and not callable_given:
        raise BadInput(
            f"this run's environment was a Python callable ({config.env_id}); resume it from "
            "Python with paceline.resume(run, env_id=that_callable)"
        )
    return config, made_with


def _restore(checkpoints: Path, parts: Parts) -> Progress:
    path, found, problems = checkpoint.newest(checkpoints)
    for problem in problems:
        log.warning("damaged, passed over: %s", problem)
    facts = found.facts
    parts.learner.restore(_part(found.arrays, "learner."))
    if facts["replay"] > LONG_REPLAY:
        log.warning("replaying %s environment steps of open episodes …", f"{facts['replay']:,}")
    began = time.perf_counter()
    different = parts.sampler.restore(_part(found.arrays, "sampler."))
    if different:
        log.warning(
            "the environments of columns %s did not replay to the same observation; "
            "the run goes on, but not exactly as it would have",
            ", ".join(map(str, different)),
        )
    parts.sampler.publish(parts.learner.weights, parts.learner.version)
    log.info("resuming from %s (%.1f s)", path, time.perf_counter() - began)
    progress = Progress(facts["iter"], facts["steps"], facts["time"])
    progress.recent.extend(facts["recent"])
    return progress


def _part(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
