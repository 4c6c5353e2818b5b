"""hire: the memory and the worker processes of a run, from what the run is about."""

from __future__ import annotations

import os
from contextlib import ExitStack

from ..envs.gym import registered
from ..envs.maker import World
from ..errors import BadInput
from ..machine import nameless_file
from ..policy.network import NetworkSpec
from ..rollout import Pulse
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
    num_envs: int,
    steps: int,
    seed: int,
    first_column: int = 0,
    own_slots: int,
    cpus: list[list[int]],
    timeout: float,
    max_restarts: int,
    pulse: Pulse | None = None,
    values: bool = False,
) -> tuple[Crew, Memory]:
    """Start `workers` processes for `num_envs` columns.

    Each has `own_slots` of its own; with none, all write their columns of one slot. Columns are
    numbered from `first_column`; `pulse` is where the trainer shows that it is watching them.
    """
    width = num_envs // workers
    plan = Plan(
        weights=weights,
        workers=workers,
        slots=own_slots * workers or 1,
        steps=steps,
        columns=width if own_slots else num_envs,
        obs=world.obs_spec,
        act=world.act_spec,
        values=values,
    )
    shared = Common(world, registered(world.env_id), network, plan, seed)
    common = by_value(shared, "leave num_workers at 0")
    setups = [
        Setup(
            common=common,
            number=number,
            num_envs=width,
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
                f"rollouts of {num_envs} envs × {steps} steps do not fit into memory "
                f"({error.strerror}); write a lower --num-envs or --rollout-steps"
            ) from None
        for slot in memory.slots:
            slot.wiped()
        source = starter(PRELOAD + (PRELOAD_TORCH if network.needs_torch else []))
        stack.callback(source.close)
        ledgers = [Ledger(world, width) for _ in setups]
        crew = Crew(source, memory, file, setups, ledgers, timeout, max_restarts, pulse)
        stack.pop_all()
    return crew, memory
