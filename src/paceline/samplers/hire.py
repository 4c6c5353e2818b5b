"""hire: the memory and the worker processes of a run, from what the run is about."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

from ..envs.gym import registered
from ..envs.maker import World
from ..errors import BadInput
from ..heartbeat import Heartbeat
from ..machine import nameless_file
from ..policy.network import NetworkSpec
from ..rollout import RolloutSpec
from ..sending import by_value
from .block import Ledger
from .crew import Crew
from .forkserver import starter
from .memory import Memory, Plan
from .worker import Common, Setup

PRELOAD = ["paceline.samplers.worker"]
PRELOAD_TORCH = ["paceline.policy.torch_actor"]


def hire(
    world: World,
    network: NetworkSpec,
    weights: int,
    *,
    workers: int,
    spec: RolloutSpec,
    seed: int,
    first_column: int = 0,
    own_slots: int,
    cpus: list[list[int]],
    timeout: float,
    max_restarts: int,
    heartbeat: Heartbeat | None = None,
) -> tuple[Crew, Memory]:
    """Start `workers` processes for the columns of `spec`.

    Each has `own_slots` of its own; with none, all write their columns of one slot. Columns are
    numbered from `first_column`; `heartbeat` is where the trainer shows that it is watching them.
    """
    width = spec.columns // workers
    each = replace(spec, columns=width)
    plan = Plan(weights, workers, own_slots * workers or 1, each if own_slots else spec)
    shared = Common(world, registered(world.env_id), network, plan, seed)
    common = by_value(shared, "leave num_workers at 0")
    setups = [
        Setup(
            common=common,
            number=number,
            columns=width,
            first_column=first_column + number * width,
            place=0 if own_slots else number * width,
            cpus=cpus[number],
        )
        for number in range(workers)
    ]
    with ExitStack() as stack:
        try:
            file = nameless_file()
            stack.callback(os.close, file)
            memory = Memory(plan, file)
        except OSError as error:
            raise BadInput(
                f"rollouts of {spec.num_envs} envs × {spec.steps} steps do not fit into memory "
                f"({error.strerror}); write a lower --num-envs or --rollout-steps"
            ) from None
        for slot in memory.slots:
            slot.wiped()
        source = starter(PRELOAD + (PRELOAD_TORCH if network.needs_torch else []))
        stack.callback(source.close)
        ledgers = [Ledger(world, each) for _ in setups]
        crew = Crew(source, memory, file, setups, ledgers, timeout, max_restarts, heartbeat)
        stack.pop_all()
    return crew, memory
