"""Policies in checkpoints: finding them, checking them, making an `Agent` of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from ..config.registry import name_of
from ..errors import BadInput
from ..storage import checkpoint
from ..storage.arrays import check_like
from ..storage.files import shown
from .agent import Agent
from .network import Encoder, NetworkSpec

log = logging.getLogger("paceline")

USER_MODULES = ("encoder", "memory")
"""Parts of a network that may be a class or module of the user."""


def locate(source: str | Path) -> tuple[Path, checkpoint.Checkpoint]:
    """Path and content of the checkpoint `source`, or of the newest one of the run `source`."""
    path = Path(source)
    if path.is_symlink() and path.name != "best":
        path = path.resolve()  # the user's own link
    if (path / checkpoint.MANIFEST).exists():
        try:
            return path, checkpoint.load(path)
        except checkpoint.Damaged as damage:
            raise BadInput(str(damage)) from None
    if not (path / "checkpoints").is_dir():
        raise BadInput(
            f"{shown(path)} is neither a run nor a checkpoint: it has no checkpoints in it"
        )
    where, found, problems = checkpoint.load_newest(path / "checkpoints")
    for problem in problems:
        log.warning(f"damaged, passed over: {problem}")
    return where, found


def from_checkpoint(
    path: Path, found: checkpoint.Checkpoint, user_modules: Mapping[str, Encoder | None]
) -> Agent:
    """The policy in a checkpoint. Encoder and memory of the user come from the caller: what a
    checkpoint names is never imported."""
    network = saved_network(path, found)
    parts: dict[str, Any] = {}
    for name in USER_MODULES:
        saved = network.own_memory if name == "memory" else network.own_encoder
        given = user_modules.get(name)
        if saved is not None and given is None:
            raise BadInput(
                f"this policy has {'an' if name == 'encoder' else 'a'} {name} of its own "
                f"({str(saved)[:80]}); say which, with paceline.load(path, {name}=...)"
            )
        parts[name] = getattr(network, name) if saved is None else given
    network = dataclasses.replace(network, **parts)
    try:
        zero = np.zeros((), np.float32)  # broadcast, it takes no memory
        template = {n: np.broadcast_to(zero, shape) for n, shape in _shapes(network).items()}
        check_like(found.weights, template)
    except (ValueError, MemoryError) as error:
        raise BadInput(
            f"{shown(path / 'weights.safetensors')} does not fit the policy in state.json: {error}"
        ) from None
    # safetensors has its own order; actors need the module's.
    return Agent(network, {name: found.weights[name] for name in template})


def saved_network(path: Path, found: checkpoint.Checkpoint) -> NetworkSpec:
    """The network that a checkpoint describes."""
    try:
        return TypeAdapter(NetworkSpec).validate_python(found.facts["network"])
    except (KeyError, ValueError) as error:
        cause = " ".join(str(error).split())[:300]
        text = f"{shown(path / 'state.json')} does not describe a policy ({cause})"
        raise BadInput(text) from None


def _shapes(network: NetworkSpec) -> dict[str, tuple[int, ...]]:
    """Of all weights by name, in the module's order."""
    if not network.needs_torch:
        return network.dense_shapes()
    import torch

    from .actor_critic import ActorCritic

    # A user's module has to be constructed for real; ours need not take any memory.
    with torch.device("cpu" if any(getattr(network, name) for name in USER_MODULES) else "meta"):
        try:
            named = ActorCritic(network).named_weights()
        except (RuntimeError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"no such network can be made ({str(error)[:200]})") from None
    return {name: tuple(weight.shape) for name, weight in named.items()}


def network_facts(network: NetworkSpec) -> dict[str, Any]:
    """A network as plain data for JSON, which has no infinity: bounds become text."""
    facts = dataclasses.asdict(dataclasses.replace(network, encoder=None, memory=None))
    for bound in ("low", "high"):
        facts["act"][bound] = [str(number) for number in facts["act"][bound]]
    modules = {name: getattr(network, name) for name in USER_MODULES}
    return facts | {name: name_of(module) for name, module in modules.items() if module is not None}
