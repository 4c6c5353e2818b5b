"""Trunks: from an observation to features. R = rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..envs.spaces import Leaf, ObservationSpec
from ..errors import BadInput
from .network import ImageEncoder, NetworkSpec
from .user_modules import OwnEncoder


class Tanh(nn.Module):
    """tanh(x) = 2·σ(2x) − 1, which torch computes in half the time of its own tanh on a CPU.

    Written without Python numbers, each of which would cost a conversion per call.
    """

    one: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        half = (x + x).sigmoid()
        return half + half - self.one


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": Tanh,
    "relu": partial(nn.ReLU, inplace=True),  # the layer before has no use for what was there
    "elu": nn.ELU,
}
SMALLEST_FOR_NATURE = 36


class Conv(NamedTuple):
    channels: int
    kernel: int
    stride: int
    padding: int


PLAIN: dict[str, tuple[Conv, ...]] = {
    "nature": (Conv(32, 8, 4, 0), Conv(64, 4, 2, 0), Conv(64, 3, 1, 0)),
    "small": (Conv(16, 3, 1, 1), Conv(32, 3, 2, 1), Conv(32, 3, 2, 1)),
    "mlp": (),
}
"""Mnih et al. 2015, for frames of 36 pixels and more; for smaller ones, which its strides would use
up; and none, for dense layers alone."""
IMPALA = (16, 32, 32)
"""Channels of the residual stages of Espeholt et al. 2018 (the larger of its networks)."""


class OneHotLinear(nn.Linear):
    """A dense layer on a one-hot input that is given as its index."""

    def forward(self, index: Tensor) -> Tensor:
        return functional.embedding(index, self.weight.t()) + self.bias


class Pixels(nn.Module):
    """Stored images → floats [R, channels, height, width]; bytes are divided by 255 if `scaled`."""

    def __init__(self, spec: Leaf, scaled: bool = True) -> None:
        super().__init__()
        self._grey = len(spec.shape) == 2
        self._channels_first = spec.channels_first or self._grey
        shape = (1, *spec.shape) if self._grey else spec.shape
        self.size = shape if self._channels_first else (shape[2], shape[0], shape[1])
        self.scale = 1 / 255 if spec.dtype == "uint8" else 1.0
        self._scaled = scaled and self.scale != 1.0

    def forward(self, image: Tensor) -> Tensor:
        if self._grey:
            image = image.unsqueeze(-3)
        if not self._channels_first:
            image = image.permute(0, 3, 1, 2)
        image = image.contiguous(memory_format=torch.channels_last).to(torch.float32)
        return image * self.scale if self._scaled else image


class FirstConv(nn.Conv2d):
    """Scales its few weights instead of all the pixels."""

    def __init__(self, scale: float, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._scale = scale

    def forward(self, image: Tensor) -> Tensor:
        weight = self.weight * self._scale if self._scale != 1 else self.weight
        return functional.conv2d(image, weight, self.bias, self.stride, self.padding)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu_(self.first(functional.relu(x)))
        return self.second(inner).add_(x)  # in place where no gradient needs what was there


def _stage(scale: float, before: int, channels: int) -> nn.Sequential:
    """A convolution, half the resolution, two residual blocks."""
    first = FirstConv(scale, before, channels, 3, 1, 1)
    return nn.Sequential(first, nn.MaxPool2d(3, 2, 1), Residual(channels), Residual(channels))


class Mixed(nn.Module):
    """Several images and a vector → their features side by side."""

    def __init__(
        self,
        obs: ObservationSpec,
        pictures: ImageEncoder | None,
        activation: Callable[[], nn.Module],
    ) -> None:
        super().__init__()
        built = [_convolutions(leaf, pictures, activation) for leaf in obs.images]
        self.convolutions = nn.ModuleList(nn.Sequential(*layers) for layers, _ in built)
        self._has_vector = "vector" in obs.parts
        self.features = obs.size + sum(features for _, features in built)

    def forward(self, parts: tuple[Tensor, ...]) -> Tensor:
        images = parts[1:] if self._has_vector else parts
        seen = [layers(image) for layers, image in zip(self.convolutions, images, strict=True)]
        return torch.cat([parts[0], *seen] if self._has_vector else seen, -1)


class Trunk(nn.Sequential):
    """Layers that may compute in bfloat16; what comes out is float32."""

    def __init__(self, layers: list[nn.Module], bf16: bool) -> None:
        super().__init__(*layers)
        self._bf16 = bf16 and bool(layers)

    def forward(self, parts: Any) -> Tensor:
        if not self._bf16:
            return super().forward(parts)  # type: ignore[no-untyped-call]
        device = next(self.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            return super().forward(parts).float()  # type: ignore[no-untyped-call]


def make_trunk(spec: NetworkSpec) -> tuple[Trunk, int]:
    """The layers before a head, and the number of features they end in."""
    activation = ACTIVATIONS[spec.activation]
    layers: list[nn.Module] = []
    features = spec.obs.size
    if spec.encoder is not None:
        own = OwnEncoder(spec.encoder, spec.obs)
        layers, features = [own], own.features
    elif spec.obs.kind == "image":
        layers, features = _convolutions(spec.obs.images[0], spec.pictures, activation)
    elif spec.obs.kind == "mixed":
        mixed = Mixed(spec.obs, spec.pictures, activation)
        layers, features = [mixed], mixed.features
    for size in spec.hidden:
        look_up = not layers and spec.obs.kind == "discrete"
        layers += [(OneHotLinear if look_up else nn.Linear)(features, size), activation()]
        features = size
    return Trunk(layers, spec.precision == "bf16"), features


def _convolutions(
    image: Leaf, pictures: ImageEncoder | None, activation: Callable[[], nn.Module]
) -> tuple[list[nn.Module], int]:
    pixels = Pixels(image, scaled=pictures == "mlp")
    channels, *sides = pixels.size
    layers: list[nn.Module] = [pixels]
    scale = pixels.scale
    if pictures is None:
        pictures = "nature" if min(sides) >= SMALLEST_FOR_NATURE else "small"
    if pictures == "impala":
        for wider in IMPALA:
            layers.append(_stage(scale, channels, wider))
            scale, channels, sides = 1.0, wider, [(side + 1) // 2 for side in sides]
        return [*layers, nn.ReLU(inplace=True), nn.Flatten()], channels * math.prod(sides)
    if pictures == "nature" and min(sides) < SMALLEST_FOR_NATURE:
        raise BadInput(
            f"encoder nature needs pictures of {SMALLEST_FOR_NATURE} × {SMALLEST_FOR_NATURE} or "
            f"more, and these are {sides[0]} × {sides[1]}; write --encoder small, or impala"
        )
    for conv in PLAIN[pictures]:
        layers += [FirstConv(scale, channels, *conv), activation()]
        scale, channels = 1.0, conv.channels
        sides = [(side + 2 * conv.padding - conv.kernel) // conv.stride + 1 for side in sides]
    return [*layers, nn.Flatten()], channels * math.prod(sides)


def initialize(layers: nn.Module, gain: float, generator: torch.Generator) -> None:
    """Orthogonal weights and zero biases (Andrychowicz 2021); a user's own encoder has its own."""
    if isinstance(layers, OwnEncoder):
        layers.initialize(generator)
        return
    if isinstance(layers, (nn.Linear, nn.Conv2d)):
        nn.init.orthogonal_(layers.weight, gain, generator=generator)
        assert layers.bias is not None
        nn.init.zeros_(layers.bias)
    for layer in layers.children():
        initialize(layer, gain, generator)
