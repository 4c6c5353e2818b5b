"""`--parallel`: which processes make the best use of the CPUs, and why. Only `calibrated` measures.

A layout is a configuration with its numbers of workers and ranks, and its shape for the model.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config.resolve import fit_to_spaces, given_options, resolve
from ..config.schema import Config
from ..config.text import several
from ..errors import BadInput
from ..processes.channel import PROGRESS
from ..processes.hardware import available_cpus
from ..processes.stopping import interruptible
from .cost_model import Constants, Shape, fps, predict, shape_of

if TYPE_CHECKING:
    from ..envs.source import EnvInfo
    from .calibration import Calibration

log = logging.getLogger("paceline")

GAIN = 1.05
"""Times the steps/s of one process that several have to make."""
NEAR = 0.97
"""Share of the best rate from which the layout with fewer processes is preferred."""
CROWDED = 1.4
"""Slowdown of processes side by side from which that is the reason for one."""


@dataclass(frozen=True)
class Layout:
    config: Config
    shape: Shape


def calibrated(config: Config) -> Config:
    """With the processes that `parallel` amounts to here, in place of it; says which, and why."""
    log.log(PROGRESS, "calibrating")
    with interruptible(starting=True):
        chosen, sentence = _choose(config)
    log.info(f"parallel {config.parallel}: {sentence}")
    log.info(
        "the choice is for this machine: elsewhere the same seed may give another run; config.yaml "
        "has the choice, and repeats this one"
    )
    # An environment may have changed the working directory.
    return dataclasses.replace(chosen, working_directory=config.working_directory)


def predicted_gains(one: Config, others: Sequence[Config]) -> list[float]:
    """Times the steps/s of `one` that the model expects of `others`, each on a machine with a CPU
    like these for every process; calibrates here."""
    from .build import env_info_of

    calibration = _calibration(one, env_info_of(one), available_cpus())
    known = calibration.constants(one, others)
    rate = fps(shape_of(one), known, available_cpus())
    shapes = [shape_of(config) for config in others]
    return [fps(shape, known, max(available_cpus(), shape.processes)) / rate for shape in shapes]


def _calibration(config: Config, env_info: EnvInfo, cpus: int) -> Calibration:
    """Of trainings of this kind; `config` fits the spaces."""
    from .build import network_for
    from .calibration import Calibration
    from .choices import choose
    from .topology import topology_of

    network = network_for(config, env_info.obs_spec.seen, env_info.act_spec)
    choices = choose(config, network, topology_of(config))
    return Calibration(env_info, choices, cpus, network.large)


def _choose(config: Config) -> tuple[Config, str]:
    from .build import env_info_of

    cpus = available_cpus()
    if isinstance(config.parallel, int):
        cpus = min(cpus, config.parallel)
    env_info = env_info_of(config)
    config = fit_to_spaces(config, env_info.obs_spec, env_info.act_spec)
    calibration = _calibration(config, env_info, cpus)
    found = layouts(config, cpus, calibration.large, calibration.gpu)
    one = found[0]
    if len(found) == 1:
        return one.config, alone_sentence(one.shape, cpus)
    try:
        known = calibration.constants(one.config, [layout.config for layout in found])
    except BadInput as error:  # of an environment that other processes can't have
        return one.config, f"one process: {error}"
    chosen = best([layout.shape for layout in found], known, cpus)
    text = sentence([layout.shape for layout in found], chosen, known, cpus)
    took = f" (calibrated in {calibration.seconds:.1f} s)"
    return next(layout.config for layout in found if layout.shape == chosen), text + took


def layouts(config: Config, cpus: int, large: bool, gpu: bool = False) -> list[Layout]:
    """All that fit the CPUs and that the configuration permits; first the simplest.

    The threads of a `large` network use the CPUs that no other process does. One GPU has one rank.
    """
    given, kind = given_options(config), shape_of(config).schedule
    found = []
    for ranks in range(1, cpus + 1 if kind != "hogwild" and not gpu else 2):
        fewest = 1 if kind != "alternate" else 2
        for workers in ([] if kind == "hogwild" else [0]) + [*range(fewest, cpus // ranks + 1)]:
            changes: dict[str, Any] = {"num_workers": workers, "ranks": ranks}
            busy = workers if kind == "stream" else 0
            free = max(1, cpus // ranks - busy) if large and kind != "hogwild" else 1
            for threads in {config.threads: None} if config.threads else {free: None, 1: None}:
                # By itself the learner uses all CPUs that are free.
                if large and (threads < free or config.parallel != "auto"):
                    changes["threads"] = threads
                if layout := _layout(given, changes, threads):
                    found.append(layout)
    return found


def _layout(given: Mapping[str, Any], changes: Mapping[str, Any], threads: int) -> Layout | None:
    """None if the environments can't be divided so, or a combination is refused."""
    try:
        config = resolve(given, changes)
    except BadInput:
        if changes["num_workers"] <= 1 and changes["ranks"] == 1:
            raise  # whatever it is, it has nothing to do with the processes
        return None
    return Layout(config, dataclasses.replace(shape_of(config), threads=threads))


def best(shapes: Sequence[Shape], known: Constants, cpus: int) -> Shape:
    """The fastest by the model, or the simplest that is nearly as fast; the first, unless others
    gain more than the model can tell."""
    rates = {shape: fps(shape, known, cpus) for shape in shapes}
    fastest, one = max(rates.values()), rates[shapes[0]]
    if fastest < GAIN * one:
        return shapes[0]
    near = [shape for shape in shapes if rates[shape] >= max(NEAR * fastest, GAIN * one)]
    return min(near, key=lambda shape: (shape.processes, shape.threads, -rates[shape]))


def alone_sentence(one: Shape, cpus: int) -> str:
    cause = "there is one CPU" if cpus == 1 else f"{several(one.envs, 'env')} can't be shared"
    return f"{describe(one)}: {cause}"


def sentence(shapes: Sequence[Shape], chosen: Shape, known: Constants, cpus: int) -> str:
    """What is chosen, why, and what it is expected to gain."""
    one = shapes[0]
    rate = fps(one, known, cpus)
    if chosen == one:
        others = ", ".join(
            f"{describe(shape)} {fps(shape, known, cpus) / rate:.2f} ×"
            for shape in _best_of_kinds(shapes[1:], known, cpus)
        )
        cause = "nothing else would gain enough"
        if known.together > CROWDED:
            cause = f"side by side, processes are {known.together:.1f} × slower, as on busy CPUs"
        return f"{describe(one)}: {cause} ({others} its steps/s)"
    what = "one learner" if one.schedule == "hogwild" else "sequential"
    gain = f"about {fps(chosen, known, cpus) / rate:.1f} × {what}"
    return f"{describe(chosen)}: {_reason(one, chosen, known, cpus)}; {gain}"


def _best_of_kinds(shapes: Sequence[Shape], known: Constants, cpus: int) -> list[Shape]:
    ranked = sorted(shapes, key=lambda shape: fps(shape, known, cpus))
    return list({shape.kind: shape for shape in ranked}.values())


def _reason(one: Shape, chosen: Shape, known: Constants, cpus: int) -> str:
    """Which part of an iteration of one process is divided."""
    shares = predict(one, known, cpus).shares
    learning, sampling = shares["update"], shares["env"] + shares["inference"]
    if chosen.schedule == "hogwild":
        return "learners share nothing but the weights"
    if chosen.schedule == "stream" and chosen.workers:
        return f"sampling takes {sampling:.0%} of an iteration, and no longer stops for learning"
    if chosen.processes == one.processes:
        return f"one thread, since {one.threads} threads of the learner hinder each other"
    if chosen.learners == 1:
        return f"sampling takes {sampling:.0%} of an iteration, which workers share"
    if chosen.workers or learning < 0.5:
        return f"sampling takes {sampling:.0%} of an iteration and learning {learning:.0%}"
    return f"learning takes {learning:.0%} of an iteration, which workers could not share"


def describe(shape: Shape) -> str:
    """2 ranks × 8 envs."""
    if shape.schedule == "hogwild":
        return f"{several(shape.learners, 'learner')} × {several(shape.envs, 'env')}"
    parts = [several(shape.learners, "rank")] if shape.learners > 1 else []
    parts += [several(shape.workers, "worker")] if shape.workers else []
    envs = several(shape.envs // max(1, shape.workers), "env")
    threads = f" with {several(shape.threads, 'thread')}" if shape.threads > 1 else ""
    return (" × ".join([*parts, envs]) if parts else "one process") + threads
