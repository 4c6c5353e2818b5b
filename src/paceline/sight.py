"""Sight: how a learner sees a rollout's observations.

Pictures stay where they are, each of them once, until a minibatch is looked at. Before, a row only
says where to find its pictures. T = steps, B = columns, R = rows, S = observations in a stack.
"""

from __future__ import annotations

import torch

from .policy.actor_critic import Inputs
from .rollout import Array, Rollout
from .spaces import ObservationSpec
from .stack import frames, places, stacked, together


class Sight:
    def __init__(self, spec: ObservationSpec, device: torch.device) -> None:
        """`spec` is how rollouts hold observations, of which a policy may see several as one."""
        self._spec, self._device = spec, device
        self.pictures: dict[str, torch.Tensor] = {}
        """of the rollout that is being learnt from, by part"""

    def parts(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """[T+1, B, ...] of a rollout's observations as rows [R, ...], by part."""
        parts, spec = {}, self._spec
        for name, found in spec.split(rollout.obs).items():
            if name.startswith("image"):
                kept = torch.from_numpy(frames(spec, rollout, name))
                self.pictures[name] = kept.to(self._device)
                found = places(rollout.first, spec.stack)
            elif name == "vector":
                found = self.vector(rollout)
            rows = torch.from_numpy(found).to(self._device)
            parts[name] = rows.flatten(0, 1).contiguous()
        return parts

    def vector(self, rollout: Rollout) -> Array:
        """[T+1, B, ...] of the part that is no picture."""
        return stacked(self._spec, rollout, "vector")

    def look(self, inputs: Inputs) -> Inputs:
        """With pictures in place of where to find them."""
        if not self.pictures:
            return inputs
        seen = []
        for name, given in zip(self._spec.parts, inputs, strict=True):
            if name in self.pictures:
                given = _gathered(self.pictures[name], given, self._spec)
            seen.append(given)
        return tuple(seen)


def _gathered(kept: torch.Tensor, at: torch.Tensor, spec: ObservationSpec) -> torch.Tensor:
    """The pictures [R, ...] whose observations lie `at[R, S]`.

    Grey ones side by side in memory, pixel by pixel, as convolutions read them.
    """
    if spec.stack == 1:
        return kept.index_select(0, at.flatten())
    if kept.ndim == 3:
        one_by_one = [kept.index_select(0, column) for column in at.unbind(1)]
        return torch.stack(one_by_one, -1).movedim(-1, 1)
    return together(kept.index_select(0, at.flatten()), spec)
