"""Observations of a rollout as tensors.

Images stay on the device once each; a row holds the indices of its frames, and `gather_images`
copies those of a minibatch. T = steps, B = columns, R = rows, S = frames in a stack.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..envs.frame_stack import flat_frames, merge_frames, stack_index, stacked
from ..envs.spaces import ObservationSpec
from ..policy.network import Inputs
from ..rollout import Rollout


@dataclass(frozen=True)
class RolloutObservations:
    parts: dict[str, torch.Tensor]
    """[(T+1)·B, ...] by name; of images the frame indices [(T+1)·B, S]"""
    frames: dict[str, torch.Tensor]
    """[frames, ...] of each image by name; empty without images"""
    spec: ObservationSpec
    """of the stored observations, before frames are stacked"""

    @staticmethod
    def of(rollout: Rollout, spec: ObservationSpec, device: torch.device) -> RolloutObservations:
        parts, images = {}, {}
        for name, part in spec.split(rollout.obs).items():
            if name.startswith("image"):
                images[name] = torch.from_numpy(flat_frames(spec, rollout, name)).to(device)
                part = stack_index(rollout.first, spec.stack)
            elif name == "vector":
                part = stacked(spec, rollout, "vector")
            parts[name] = torch.from_numpy(part).to(device).flatten(0, 1).contiguous()
        return RolloutObservations(parts, images, spec)

    def gather_images(self, inputs: Inputs) -> Inputs:
        """`inputs` with images [R, ...] in place of frame indices [R, S]."""
        if not self.frames:
            return inputs
        return tuple(
            _gather(self.frames[name], part, self.spec) if name in self.frames else part
            for name, part in zip(self.spec.parts, inputs, strict=True)
        )


def _gather(frames: torch.Tensor, index: torch.Tensor, spec: ObservationSpec) -> torch.Tensor:
    """The images [R, ...] of frames `index[R, S]`; stacks of grayscale lie channels-last."""
    if spec.stack == 1:
        return frames.index_select(0, index.flatten())
    if frames.ndim == 3:
        each = [frames.index_select(0, column) for column in index.unbind(1)]
        return torch.stack(each, -1).movedim(-1, 1)
    return merge_frames(frames.index_select(0, index.flatten()), spec)
