"""Memory: a recurrent cell between a policy's layers and its heads.

L = steps of a segment, N = segments side by side, F = features, S = floats that are carried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..registry import name_of
from .network import NetworkSpec
from .own import SEED, check_weights, imported_module


class Memory(nn.Module):
    """What a cell has to be; a user's own need not inherit from it.

    It is made as `Cell(features, size)`.
    """

    carry_size: int
    """S"""

    def forward(self, x: Tensor, first: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """`x[L, N, F]` → features [L, N, size] and the carry [N, S] after the last step.

        The carry counts as zero before every step whose `first[L, N]` is true.
        """
        raise NotImplementedError


def make_memory(spec: NetworkSpec, features: int) -> Any:
    """The cell that a network asks for, tried out; None if it has no memory."""
    if spec.memory is None:
        return None
    kind = imported_module(spec.memory, "memory") if isinstance(spec.memory, str) else spec.memory
    name = name_of(spec.memory)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        try:
            cell = kind(features, spec.memory_size)
            _try_out(cell, features, spec.memory_size)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"memory {name} can't be used on {features} features: "
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
