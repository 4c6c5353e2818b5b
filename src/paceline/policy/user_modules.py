"""Torch modules of the user's own: encoders, and recurrent cells between layers and heads.

R = rows; L = steps of a segment, N = segments, F = features, S = floats that are carried.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config.registry import imported, name_of
from ..envs.adapters import space_of, unflatten
from ..envs.spaces import ObservationSpec
from ..errors import BadInput
from .network import Encoder, NetworkSpec

SEED = 0
"""Constructors draw from this, so that constants drawn in one are the same in every copy."""


class OwnEncoder(nn.Module):
    """The user's module, given what the environment shows in the same structure: numbers as
    float32, images as they are stored, choices one-hot."""

    def __init__(self, encoder: Encoder, obs: ObservationSpec) -> None:
        super().__init__()
        self._obs = obs
        self._fresh = not isinstance(encoder, nn.Module)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(SEED)
            self.module = _made(encoder, obs).eval()
            check_weights(self.module)
            trial = _trial(obs)
            before = [part.clone() for part in trial]
            try:
                found = self.forward(trial)
                if found.dtype != torch.float32:
                    raise TypeError(f"its features are {found.dtype}, not float32")
                if len(found) != 2 or found.shape[1] == 0:
                    raise ValueError(f"its features are {tuple(found.shape)}, for 2 observations")
                if not all(map(torch.equal, before, trial)):
                    raise ValueError("it changes its input in place, which others still need")
            except Exception as error:
                raise BadInput(
                    f"encoder {name_of(encoder)} can't read an observation of {space_of(obs)}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        self.features = found.shape[1]

    def forward(self, parts: Any) -> Tensor:
        """[R, features]"""
        several = parts if isinstance(parts, tuple) else (parts,)
        found = self.module(structured(self._obs, several))
        if not isinstance(found, Tensor):
            raise TypeError(f"it returned {type(found).__name__}, not a tensor")
        return found.flatten(1)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights anew, if the module came as a class."""
        if self._fresh:
            initialize_own(self.module, generator)


def initialize_own(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of a user's module as it would by itself, from `generator`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        for layer in module.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()


def structured(obs: ObservationSpec, parts: tuple[Tensor, ...]) -> Any:
    """Stored parts as the structure of tensors that the environment's observation has."""
    named = dict(zip(obs.parts, parts, strict=False))
    if "index" in named:
        one_hot = nn.functional.one_hot(named["index"], obs.size).to(torch.float32)
        return unflatten([(obs.leaves[0].path, one_hot)])

    leaves = []
    for leaf, part, place in obs.places:
        value = named[part] if leaf.kind == "image" else named[part].flatten(1)[:, place]
        if leaf.kind == "numbers" and len(leaf.shape) > 1:
            value = value.reshape(-1, *leaf.shape)
        leaves.append((leaf.path, value))
    return unflatten(leaves)


def _trial(obs: ObservationSpec) -> tuple[Tensor, ...]:
    """Two observations to try an encoder on."""
    return tuple(
        torch.from_numpy(np.full((2, *shape), 0 if name == "index" else -1).astype(dtype))
        for name, (shape, dtype) in obs.parts.items()
        if name != "mask"
    )


def _made(encoder: Encoder, obs: ObservationSpec) -> nn.Module:
    if isinstance(encoder, nn.Module):
        return copy.deepcopy(encoder)
    kind = imported_module(encoder) if isinstance(encoder, str) else encoder
    try:
        module = kind(space_of(obs))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"encoder {name_of(encoder)} can't be made from the observation space: "
            f"{type(error).__name__}: {error}; it is called with the space alone"
        ) from error
    if not isinstance(module, nn.Module):
        raise BadInput(f"encoder {name_of(encoder)} makes {module!r}, which is no torch.nn.Module")
    return module


def imported_module(path: str, option: str = "encoder") -> Any:
    """The class that `module:Class` names; nothing else is ever called."""
    found = imported({}, path, option)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise BadInput(f"{option}: {path!r} is {found!r}, not a class of torch.nn.Module")
    return found


def check_weights(module: nn.Module, option: str = "encoder") -> None:
    """Refuse what can't live in one flat tensor of weights that actors read."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise BadInput(
                f"{option}: {name or 'it'} is {type(layer).__name__}, whose running statistics "
                "would differ between acting and learning; use LayerNorm or GroupNorm"
            )
    seen: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.dtype != torch.float32:
            raise BadInput(f"{option}: {name} is {parameter.dtype}; weights have to be float32")
        if id(parameter) in seen:
            raise BadInput(f"{option}: {name} is tied to {seen[id(parameter)]}; untie them")
        seen[id(parameter)] = name


def make_memory(spec: NetworkSpec, features: int) -> Any:
    """The recurrent cell that a network asks for, tried out; None if it has no memory.

    A cell is made as `Cell(features, size)`, has a `carry_size` S, and is called with `x[L, N, F]`,
    `first[L, N]` and `carry[N, S]`. It gives features [L, N, size] and the carry after the last
    step; the carry counts as zero before every step whose `first` is true.
    """
    if spec.memory is None:
        return None
    kind = imported_module(spec.memory, "memory") if isinstance(spec.memory, str) else spec.memory
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        try:
            cell = kind(features, spec.memory_size)
            _try_out(cell, features, spec.memory_size)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"memory {name_of(spec.memory)} can't be used on {features} features: "
                f"{type(error).__name__}: {error}"
            ) from error
    check_weights(cell, "memory")
    return cell


def _try_out(cell: Any, features: int, size: int) -> None:
    """Two segments of three steps."""
    if not isinstance(cell, nn.Module):
        raise TypeError(f"it makes {cell!r}, which is no torch.nn.Module")
    carry = torch.zeros(2, int(getattr(cell, "carry_size", 0)))
    first = torch.tensor([[True, False], [False, True], [False, False]])
    out, after = cell(torch.zeros(3, 2, features), first, carry)
    if out.shape != (3, 2, size) or after.shape != carry.shape or not carry.shape[1]:
        raise ValueError(
            f"it gives {tuple(out.shape)} and carries {tuple(after.shape)}, and should give "
            f"{(3, 2, size)} and carry {tuple(carry.shape)}, S at least 1"
        )
