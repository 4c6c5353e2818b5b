"""Whether an open episode that was replayed from its actions is where it was."""

from __future__ import annotations

from ..rollout import Array
from .spaces import ObservationSpec

Difference = tuple[int, str]
"""A column whose open episode was not brought back, and what differed."""
SAME_RETURN = 1e-9
"""By how much of its size a return may differ that was summed in another order: a rollout adds up
its rewards in float64 from its first row on, those of earlier episodes included."""


def alike(spec: ObservationSpec, one: Array, other: Array) -> bool:
    """Whether stored observations are the same to the bit."""
    pairs = zip(spec.split(one).values(), spec.split(other).values(), strict=True)
    return all(now.tobytes() == then.tobytes() for now, then in pairs)


def difference(same: bool, gap: float, size: float, ended: bool) -> str:
    """In what a replayed episode is not as it was: the `same` observation, a `gap` between the
    returns, whose rewards have this `size` together, or whether it has `ended`."""
    if ended:
        return "ended"
    kinds = [] if same else ["observation"]
    if not abs(gap) <= SAME_RETURN * (1.0 + size):
        kinds.append("reward")
    return " and ".join(kinds)
