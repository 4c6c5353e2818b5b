"""What can be plugged into each seam: a name, where it is ("module:name"), and one line about it.

Plain text, so that listing them imports none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

Registry = dict[str, tuple[str, str]]

ALGORITHMS: Registry = {
    "ppo": ("paceline.algorithms.ppo:PPO", "proximal policy optimisation (Schulman 2017)"),
    "a2c": ("paceline.algorithms.a2c:A2C", "advantage actor-critic (Mnih 2016, synchronous)"),
    "impala": ("paceline.algorithms.impala:IMPALA", "actor-critic with V-trace (Espeholt 2018)"),
}
SUITES: Registry = {
    "gym": ("paceline.envs.gym:environment", "any registered Gymnasium id, also module:Id-v0"),
    "atari": ("paceline.envs.atari:environment", "Atari games by ALE: atari:Pong"),
    "procgen": ("paceline.envs.procgen:environment", "sixteen games: procgen:coinrun"),
    "envpool": ("paceline.envs.envpool:environment", "any task of EnvPool: envpool:Pong-v5"),
    "minigrid": ("paceline.envs.minigrid:environment", "grid worlds: minigrid:DoorKey-5x5"),
    "toy": ("paceline.envs.toy:environment", "identity, constant, memory, chain: known answers"),
}
SAMPLERS: Registry = {
    "serial": ("paceline.samplers.serial:Serial", "in the learner's own process"),
    "workers": ("paceline.samplers.workers:Workers", "processes, in step with the learner"),
    "stream": ("paceline.samplers.stream:Stream", "processes that never wait: for impala"),
}
SYNCS: Registry = {
    "local": ("paceline.sync.local:Local", "one learner, nothing to agree on"),
    "allreduce": ("paceline.sync.allreduce:Allreduce", "ranks that add up their gradients"),
    "hogwild": ("paceline.sync.hogwild:Hogwild", "shared weights without locks: for a3c"),
}


def name_of(thing: Any) -> str:
    """`module:Name` of a class, of an object's class, or of what is already such a name."""
    if isinstance(thing, str):
        return thing
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"


def imported(registry: Registry, name: str) -> Any:
    """The thing itself."""
    module, _, attribute = registry[name][0].partition(":")
    return getattr(import_module(module), attribute)
