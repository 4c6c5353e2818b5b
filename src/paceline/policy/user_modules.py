"""The user's torch modules: encoders of observations, and recurrent cells (memories).

R = rows; L = steps of a segment, N = segments, F = features, S = floats of memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config.registry import imported, name_of
from ..envs.adapters import space_of
from ..envs.spaces import ObservationSpec, unflatten
from ..errors import BadInput
from .network import ENCODERS, Encoder, NetworkSpec

CONSTRUCTOR_SEED = 0
"""For constants that constructors draw: every copy of a module gets the same ones."""


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(CONSTRUCTOR_SEED)
        yield


@contextmanager
def _refused_if_it_raises(what: str, remedy: str = "") -> Iterator[None]:
    """Errors of the user's code become BadInput: `what`, the error, and perhaps a remedy."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{what}: {type(error).__name__}: {error}{remedy}") from error


class UserEncoder(nn.Module):
    """The user's encoder. Its input has the structure of the environment's observation, with
    numbers as float32, images as they are stored and choices one-hot."""

    def __init__(self, encoder: Encoder, obs: ObservationSpec) -> None:
        super().__init__()
        self._obs = obs
        self._fresh = not isinstance(encoder, nn.Module)
        with _seeded():
            self.module = _construct(encoder, obs).eval()
            check_weights(self.module)
            what = f"encoder {name_of(encoder)} can't read an observation of {space_of(obs)}"
            with _refused_if_it_raises(what):
                self.features = self._try_out()

    def _try_out(self) -> int:
        """Read two observations; returns the number of features."""
        trial = tuple(
            torch.from_numpy(np.full((2, *shape), 0 if name == "index" else -1).astype(dtype))
            for name, (shape, dtype) in self._obs.parts.items()
            if name != "mask"
        )
        before = [part.clone() for part in trial]
        features = self.forward(trial)
        if features.dtype != torch.float32:
            raise TypeError(f"its features are {features.dtype}, not float32")
        if len(features) != 2 or features.shape[1] == 0:
            raise ValueError(f"its features are {tuple(features.shape)}, for 2 observations")
        if not all(map(torch.equal, before, trial)):
            raise ValueError("it changes its input in place, which others still need")
        return features.shape[1]

    def forward(self, parts: Any) -> Tensor:
        """[R, F]"""
        inputs = parts if isinstance(parts, tuple) else (parts,)
        features = self.module(env_structure(self._obs, inputs))
        if not isinstance(features, Tensor):
            raise TypeError(f"it returned {type(features).__name__}, not a tensor")
        return features.flatten(1)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw new weights, unless the user passed a module that has its own."""
        if self._fresh:
            reset_parameters(self.module, generator)


def reset_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Call `reset_parameters` of all layers, seeded from `generator`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        for layer in module.modules():
            reset = getattr(layer, "reset_parameters", None)
            if callable(reset):
                reset()


def env_structure(obs: ObservationSpec, parts: tuple[Tensor, ...]) -> Any:
    """Stored parts as tensors in the structure of the environment's observation."""
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


def _construct(encoder: Encoder, obs: ObservationSpec) -> nn.Module:
    if isinstance(encoder, nn.Module):
        return copy.deepcopy(encoder)
    cls: Any = encoder
    if isinstance(encoder, str):
        cls = import_module_class(ENCODERS.get(encoder, encoder))
    what = f"encoder {name_of(encoder)} can't be made from the observation space"
    with _refused_if_it_raises(what, "; it is called with the space alone"):
        module = cls(space_of(obs))
    if not isinstance(module, nn.Module):
        raise BadInput(f"encoder {name_of(encoder)} makes {module!r}, which is no torch.nn.Module")
    return module


def import_module_class(path: str, option: str = "encoder") -> Any:
    """The subclass of torch.nn.Module that `module:Class` names."""
    found = imported({}, path, option)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise BadInput(f"{option}: {path!r} is {found!r}, not a class of torch.nn.Module")
    return found


def check_weights(module: nn.Module, option: str = "encoder") -> None:
    """Refuse what can't live in the one flat tensor of weights that actors read."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise BadInput(
                f"{option}: {name or 'it'} is {type(layer).__name__}, whose running statistics "
                "would differ between acting and learning; use LayerNorm or GroupNorm"
            )
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.dtype != torch.float32:
            raise BadInput(f"{option}: {name} is {parameter.dtype}; weights have to be float32")
        if id(parameter) in names:
            raise BadInput(f"{option}: {name} is tied to {names[id(parameter)]}; untie them")
        names[id(parameter)] = name


def make_cell(spec: NetworkSpec, features: int) -> Any:
    """The user's recurrent cell, tried out.

    A cell is constructed as `Cell(features, size)`, has a `carry_size` S, and is called with
    `x[L, N, F]`, `first[L, N]` and `carry[N, S]`. It returns features [L, N, size] and the carry
    after the last step; it has to zero the carry before every step where `first`.
    """
    assert spec.memory is not None
    cls: Any = spec.memory
    if isinstance(cls, str):
        cls = import_module_class(cls, "memory")
    what = f"memory {name_of(spec.memory)} can't be used on {features} features"
    with _seeded(), _refused_if_it_raises(what):
        cell = cls(features, spec.memory_size)
        _try_out_cell(cell, features, spec.memory_size)
    check_weights(cell, "memory")
    return cell


def _try_out_cell(cell: Any, features: int, size: int) -> None:
    """On two segments of three steps, the first of which starts an episode."""
    if not isinstance(cell, nn.Module):
        raise TypeError(f"it makes {cell!r}, which is no torch.nn.Module")
    carry = torch.ones(2, int(getattr(cell, "carry_size", 0)))
    first = torch.tensor([[True, False], [False, True], [False, False]])
    given = torch.ones(3, 2, features), first, carry
    before = [part.clone() for part in given]
    out, after = cell(*given)
    if out.shape != (3, 2, size) or after.shape != carry.shape or not carry.shape[1]:
        raise ValueError(
            f"it returns features {tuple(out.shape)} and carry {tuple(after.shape)}, but should "
            f"return {(3, 2, size)} and {tuple(carry.shape)}, with S at least 1"
        )
    if not all(map(torch.equal, before, given)):
        raise ValueError("it changes what it is given in place, which others still need")
    other, _ = cell(given[0], first, 2.0 * carry)
    if not torch.equal(out[:, 0], other[:, 0]) or not torch.equal(out[1:, 1], other[1:, 1]):
        raise ValueError("what it carries reaches beyond an episode's start: zero it where `first`")
