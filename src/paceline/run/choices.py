"""What is decided from the machine: threads, compiling, device, and who runs on which CPU."""

from __future__ import annotations

import logging
import os

import torch

from ..config.schema import Config
from ..config.values import seconds
from ..errors import BadInput
from ..learning.compiler import compiler_missing
from ..policy.network import NetworkSpec
from ..processes.hardware import Choices, affinity, available_cpus, bf16_abilities
from .topology import Topology

log = logging.getLogger("paceline")

WORTH_COMPILING = 20_000
"""Optimiser steps from which compiling, some seconds, is paid back at half a millisecond each."""
WORTH_COMPILING_SECONDS = 120.0


def choose(config: Config, network: NetworkSpec, topology: Topology) -> Choices:
    """Threads, compiling and device for this machine."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("device is 'cuda', and torch sees no GPU here; write --device cpu or auto")
    gpu = config.device != "cpu" and torch.cuda.is_available()
    if config.precision == "bf16":
        missing = bf16_missing(gpu)
        if missing is None and not network.large:  # whose actor computes in float32
            missing = (
                "this policy has neither convolutions nor an encoder of your own to gain by it"
            )
        if missing:
            raise BadInput(f"precision is 'bf16', and {missing}; write --precision fp32")
    worth = _pays(config) and not network.needs_torch and not gpu
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
        return None if torch.cuda.is_bf16_supported() else "this GPU has no instructions for it"
    if bf16_abilities() != []:
        return None
    return "this CPU has no instructions for it (none of avx512_bf16, amx_bf16, bf16)"


def warn_of_crowding(config: Config, threads: int, topology: Topology) -> None:
    """More processes at work than CPUs take turns, and each waits for the others'."""
    cpus, workers, ranks = available_cpus(), config.workers, topology.local_learners
    if threads > cpus:
        warning = (
            f"{threads} threads of the learner on {cpus} CPUs wait for each other, which can cost "
            f"several times what one thread takes; write --threads {cpus} or less"
        )
    elif ranks > 1 and ranks * max(1, workers, threads) > cpus:
        each = f" with {workers} workers each" if workers else ""
        crowd = f"{ranks} learners{each} on {cpus} CPUs"
        warning = f"{crowd} take turns, and no more is learnt than by {cpus}"
    elif workers > cpus or (config.entry("sampler").runs_ahead and 1 < threads > cpus - workers):
        warning = (
            f"{workers} workers and {threads} threads of the learner on {cpus} CPUs take turns: no "
            f"more is sampled than by {cpus}, and every turn costs time and memory; --num-workers "
            "auto fits"
        )
    else:
        return
    log.warning("%s", warning)


def _pays(config: Config) -> bool:
    """Whether the budget is long enough for compiling to be worth its time."""
    per_iteration = config.epochs * config.minibatch_count
    rows = config.learners * config.columns * config.rollout_steps
    if config.duration and seconds(config.duration) < WORTH_COMPILING_SECONDS:
        return False
    iterations = (config.total_iters, config.total_steps and config.total_steps / rows)
    return all(number * per_iteration >= WORTH_COMPILING for number in iterations if number)


def cpus_of(config: Config, threads: int, topology: Topology) -> tuple[list[int], list[list[int]]]:
    """The CPUs of the learner and of each worker; empty where they are not to be bound."""
    if not config.pin:
        return [], [[]] * config.workers
    if not hasattr(os, "sched_getaffinity"):
        raise BadInput("pin is on, and this system has no way to bind a process to a CPU")
    if not topology.learns:
        return [], []
    here, count = topology.local_rank - topology.watcher, topology.local_learners
    cpus = sorted(affinity())
    # Workers in step with the learner rest while it learns, and share its CPUs.
    cpus = [cpu for n, cpu in enumerate(cpus) if n % count == here % count] or cpus
    learner = cpus[-threads:]
    free = (config.entry("sampler").runs_ahead and cpus[: -len(learner)]) or cpus
    return learner, [[free[n % len(free)]] for n in range(config.workers)]
