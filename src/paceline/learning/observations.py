"""RolloutObservations: a rollout's observations as a learner reads them.

Pictures stay where they are, each of them once, until a minibatch is looked at. Before, a row only
says where to find its pictures. T = steps, B = columns, R = rows, S = observations in a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..envs.frame_stack import flat_frames, merge_frames, stack_index, stacked
from ..envs.spaces import ObservationSpec
from ..policy.prediction import Inputs
from ..rollout import Rollout


@dataclass(frozen=True)
class RolloutObservations:
    parts: dict[str, torch.Tensor]
    """[(T+1)·B, ...] by name; of pictures, where each row's are"""
    pictures: dict[str, torch.Tensor]
    spec: ObservationSpec
    """how rollouts hold observations, of which a policy may see several as one"""

    @staticmethod
    def of(rollout: Rollout, spec: ObservationSpec, device: torch.device) -> RolloutObservations:
        parts, pictures = {}, {}
        for name, found in spec.split(rollout.obs).items():
            if name.startswith("image"):
                pictures[name] = torch.from_numpy(flat_frames(spec, rollout, name)).to(device)
                found = stack_index(rollout.first, spec.stack)
            elif name == "vector":
                found = stacked(spec, rollout, "vector")
            parts[name] = torch.from_numpy(found).to(device).flatten(0, 1).contiguous()
        return RolloutObservations(parts, pictures, spec)

    def gather_images(self, inputs: Inputs) -> Inputs:
        """With pictures in place of where to find them."""
        if not self.pictures:
            return inputs
        return tuple(
            _gathered(self.pictures[name], given, self.spec) if name in self.pictures else given
            for name, given in zip(self.spec.parts, inputs, strict=True)
        )


def _gathered(kept: torch.Tensor, at: torch.Tensor, spec: ObservationSpec) -> torch.Tensor:
    """The pictures [R, ...] whose observations lie `at[R, S]`.

    Grey ones side by side in memory, pixel by pixel, as convolutions read them.
    """
    if spec.stack == 1:
        return kept.index_select(0, at.flatten())
    if kept.ndim == 3:
        one_by_one = [kept.index_select(0, column) for column in at.unbind(1)]
        return torch.stack(one_by_one, -1).movedim(-1, 1)
    return merge_frames(kept.index_select(0, at.flatten()), spec)
