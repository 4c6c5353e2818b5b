"""What is decided from the machine: threads, compiling, device, and which CPUs to use.

torch is imported only to decide: whoever reads a run needs `Choices` alone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config.schema import Config
from ..config.values import seconds
from ..errors import BadInput
from ..processes.hardware import affinity, available_cpus, bf16_abilities
from .topology import Topology

if TYPE_CHECKING:
    from ..policy.network import NetworkSpec

log = logging.getLogger("paceline")

WORTH_COMPILING = 20_000
"""Optimizer steps from which compiling, some seconds, is paid back at half a millisecond each."""
WORTH_COMPILING_SECONDS = 120.0


@dataclass(frozen=True)
class Choices:
    """Decided once per run, written to run.json, and kept when the run is resumed."""

    threads: int
    """of the learner"""
    compiled: bool
    """whether the minibatch step is"""
    device: str


def choose(config: Config, network: NetworkSpec, topology: Topology) -> Choices:
    """The choices for this machine, where the configuration leaves them open."""
    import torch

    from ..learning.compiler import compiler_missing

    if config.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("device is 'cuda', and torch sees no GPU here; write --device cpu or auto")
    gpu = config.device != "cpu" and torch.cuda.is_available()
    if config.precision == "bf16":
        missing = bf16_missing(gpu)
        if missing is None and not network.large:  # a small actor computes in float32
            missing = (
                "this policy has neither convolutions nor an encoder of your own to gain by it"
            )
        if missing:
            raise BadInput(f"precision is 'bf16', and {missing}; write --precision fp32")
    able = network.compiles and not network.needs_torch and not gpu
    worth = able and _worth_compiling(config)
    compiled = config.compile == "on" or (config.compile == "auto" and worth)
    if compiled and (missing := compiler_missing()):
        if config.compile == "on":
            raise BadInput(f"compile is 'on', but {missing}; write --compile off or auto")
        log.info("the minibatch step is not compiled: %s", missing)
        compiled = False
    threads = config.threads or 1
    if network.large and not config.threads:  # all CPUs that no stream of workers keeps busy
        busy = config.workers if config.entry("sampler").runs_ahead else 0
        threads = max(1, available_cpus() // topology.local_size - busy)
    return Choices(threads, compiled, "cuda" if gpu else "cpu")


def bf16_missing(gpu: bool) -> str | None:
    """Why bfloat16 would be slow here, or None."""
    if gpu:
        import torch

        return None if torch.cuda.is_bf16_supported() else "this GPU has no instructions for it"
    if bf16_abilities() != []:
        return None
    return "this CPU has no instructions for it (none of avx512_bf16, amx_bf16, bf16)"


def _worth_compiling(config: Config) -> bool:
    """Whether the budget is long enough for compiling to pay off.

    The steps of all ranks count, so that the form of the step does not depend on their number.
    """
    per_iteration = config.ranks * config.epochs * config.minibatch_count
    rows = config.ranks * config.num_envs * config.rollout_steps
    if config.duration and seconds(config.duration) < WORTH_COMPILING_SECONDS:
        return False
    iterations = (config.total_iters, config.total_steps and config.total_steps / rows)
    return all(number * per_iteration >= WORTH_COMPILING for number in iterations if number)


def warn_if_oversubscribed(config: Config, threads: int, topology: Topology) -> None:
    """Warn of more busy threads and processes than CPUs."""
    cpus, workers, ranks = available_cpus(), config.workers, topology.local_learners
    if threads > cpus:
        log.warning(
            f"{threads} threads of the learner on {cpus} CPUs wait for each other, which can be "
            f"several times slower than one thread; write --threads {cpus} or less"
        )
    elif ranks > 1 and ranks * max(1, workers, threads) > cpus:
        each = f" with {workers} workers each" if workers else ""
        log.warning(
            f"{ranks} learners{each} on {cpus} CPUs take turns, and no more is learned than by "
            f"{cpus}"
        )
    elif workers > cpus or (config.entry("sampler").runs_ahead and 1 < threads > cpus - workers):
        log.warning(
            f"{workers} workers and {threads} threads of the learner on {cpus} CPUs take turns: no "
            f"more is sampled than by {cpus}, and every turn costs time and memory; --num-workers "
            "auto fits"
        )


def cpus_of(config: Config, threads: int, topology: Topology) -> tuple[list[int], list[list[int]]]:
    """The CPUs to which the learner and each worker are pinned; empty without --pin."""
    if not config.pin:
        return [], [[]] * config.workers
    if not hasattr(os, "sched_getaffinity"):
        raise BadInput("pin is on, and this system has no way to bind a process to a CPU")
    if not topology.learns:
        return [], []
    index, count = topology.local_rank - topology.watcher, topology.local_learners
    cpus = sorted(affinity())
    # Workers in step with the learner rest while it learns, and share its CPUs.
    cpus = [cpu for n, cpu in enumerate(cpus) if n % count == index % count] or cpus
    learner = cpus[-threads:]
    free = (config.entry("sampler").runs_ahead and cpus[: -len(learner)]) or cpus
    return learner, [[free[n % len(free)]] for n in range(config.workers)]
