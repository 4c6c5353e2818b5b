"""Trunks: from observations to features. R = rows."""

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
from .user_modules import UserEncoder


class Tanh(nn.Module):
    """tanh(x) = 2·σ(2x) − 1, twice as fast as torch's own tanh on a CPU.

    Without Python numbers, each of which would be converted to a tensor at every call. The result
    is doubled by a multiplication: σ + σ has two equal gradients, and Inductor would compute the
    matrix product that they come from once for each.
    """

    one: Tensor
    two: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.ones(1), persistent=False)
        self.register_buffer("two", torch.full((1,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x + x).sigmoid() * self.two - self.one


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": Tanh,
    "relu": partial(nn.ReLU, inplace=True),  # the layer before does not need its output
    "elu": nn.ELU,
}
NARROW = range(2, 25)
"""Outputs of a head that is computed transposed."""
NATURE_MIN_SIDE = 36
"""Pixels; the strides of `nature` leave nothing of smaller images."""


class Conv(NamedTuple):
    channels: int
    kernel: int
    stride: int
    padding: int


CONVOLUTIONS: dict[str, tuple[Conv, ...]] = {
    "nature": (Conv(32, 8, 4, 0), Conv(64, 4, 2, 0), Conv(64, 3, 1, 0)),
    "small": (Conv(16, 3, 1, 1), Conv(32, 3, 2, 1), Conv(32, 3, 2, 1)),
    "mlp": (),
}
"""`nature` is Mnih et al. 2015; `small` is for smaller images; `mlp` has dense layers only."""
IMPALA_CHANNELS = (16, 32, 32)
"""Of the residual stages of the deep network of Espeholt et al. 2018."""


class OneHotLinear(nn.Linear):
    """A dense layer on a one-hot input, given as its index."""

    def forward(self, index: Tensor) -> Tensor:
        return functional.embedding(index, self.weight.t()) + self.bias


class OneHot(nn.Module):
    """An index as a vector, for a memory that reads it without layers before."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def forward(self, index: Tensor) -> Tensor:
        return functional.one_hot(index, self._size).to(torch.float32)


class NarrowLinear(nn.Linear):
    """A dense layer with few outputs, computed transposed.

    A CPU's matrix product with a narrow right-hand side takes two to ten times as long as with a
    narrow left-hand one (256 × 64 · 64 × 2: 10 and 4 µs; its weights' gradient: 13 and 3 µs).
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.weight, x.t()).t()


def make_head(spec: NetworkSpec, features: int, outputs: int) -> nn.Linear:
    """The last layer of the policy or of the value function."""
    bare = not spec.hidden and spec.encoder is None and spec.memory is None
    if spec.obs.kind == "discrete" and bare:
        return OneHotLinear(features, outputs)  # it reads the index itself
    return (NarrowLinear if outputs in NARROW else nn.Linear)(features, outputs)


class Pixels(nn.Module):
    """Stored images → floats [R, channels, height, width]; bytes are divided by 255 if `scaled`."""

    def __init__(self, spec: Leaf, scaled: bool = True) -> None:
        super().__init__()
        self._grayscale = len(spec.shape) == 2
        self._channels_first = spec.channels_first or self._grayscale
        shape = (1, *spec.shape) if self._grayscale else spec.shape
        self.size = shape if self._channels_first else (shape[2], shape[0], shape[1])
        self.scale = 1 / 255 if spec.dtype == "uint8" else 1.0
        self._scaled = scaled and self.scale != 1.0

    def forward(self, image: Tensor) -> Tensor:
        if self._grayscale:
            image = image.unsqueeze(-3)
        if not self._channels_first:
            image = image.permute(0, 3, 1, 2)
        image = image.contiguous(memory_format=torch.channels_last)
        if image.dtype == torch.uint8 and not self._scaled and _in_bf16(image):
            return image.to(torch.bfloat16)  # exact: bfloat16 has all whole numbers up to 256
        image = image.to(torch.float32)
        return image * self.scale if self._scaled else image


def _in_bf16(x: Tensor) -> bool:
    """Whether layers around here compute in bfloat16."""
    return torch.is_autocast_enabled(x.device.type)


class FirstConv(nn.Conv2d):
    """Scales its weights instead of the pixels, which are more."""

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
        return self.second(inner).add_(x)  # in place: no gradient needs the convolution's output


def _residual_stage(scale: float, before: int, channels: int) -> nn.Sequential:
    """Convolution, pooling to half the resolution, two residual blocks."""
    first = FirstConv(scale, before, channels, 3, 1, 1)
    return nn.Sequential(first, nn.MaxPool2d(3, 2, 1), Residual(channels), Residual(channels))


class MixedEncoder(nn.Module):
    """Several images and a vector → their features, concatenated."""

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
        features = [net(image) for net, image in zip(self.convolutions, images, strict=True)]
        return torch.cat([parts[0], *features] if self._has_vector else features, -1)


class Trunk(nn.Sequential):
    """Layers, computed in bfloat16 if asked; the output is float32."""

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
    """The layers before a head, and the number of their output features."""
    activation = ACTIVATIONS[spec.activation]
    layers: list[nn.Module] = []
    features = spec.obs.size
    if spec.encoder is not None:
        encoder = UserEncoder(spec.encoder, spec.obs)
        layers, features = [encoder], encoder.features
    elif spec.obs.kind == "image":
        layers, features = _convolutions(spec.obs.images[0], spec.pictures, activation)
    elif spec.obs.kind == "mixed":
        mixed = MixedEncoder(spec.obs, spec.pictures, activation)
        layers, features = [mixed], mixed.features
    for size in spec.hidden:
        reads_index = not layers and spec.obs.kind == "discrete"
        layers += [(OneHotLinear if reads_index else nn.Linear)(features, size), activation()]
        features = size
    if not layers and spec.obs.kind == "discrete" and spec.memory is not None:
        layers.append(OneHot(features))
    return Trunk(layers, spec.precision == "bf16"), features


def _convolutions(
    image: Leaf, kind: ImageEncoder | None, activation: Callable[[], nn.Module]
) -> tuple[list[nn.Module], int]:
    """The layers of an image encoder, and the number of their output features."""
    pixels = Pixels(image, scaled=kind == "mlp")
    channels, *sides = pixels.size
    layers: list[nn.Module] = [pixels]
    scale = pixels.scale
    if kind is None:
        kind = "nature" if min(sides) >= NATURE_MIN_SIDE else "small"
    if kind == "impala":
        for stage_channels in IMPALA_CHANNELS:
            layers.append(_residual_stage(scale, channels, stage_channels))
            scale, channels, sides = 1.0, stage_channels, [(side + 1) // 2 for side in sides]
        return [*layers, nn.ReLU(inplace=True), nn.Flatten()], channels * math.prod(sides)
    if kind == "nature" and min(sides) < NATURE_MIN_SIDE:
        raise BadInput(
            f"encoder nature needs images of {NATURE_MIN_SIDE} × {NATURE_MIN_SIDE} or "
            f"more, and these are {sides[0]} × {sides[1]}; write --encoder small, or impala"
        )
    for conv in CONVOLUTIONS[kind]:
        layers += [FirstConv(scale, channels, *conv), activation()]
        scale, channels = 1.0, conv.channels
        sides = [(side + 2 * conv.padding - conv.kernel) // conv.stride + 1 for side in sides]
    return [*layers, nn.Flatten()], channels * math.prod(sides)


def initialize(layers: nn.Module, gain: float, generator: torch.Generator) -> None:
    """Orthogonal weights and zero biases (Andrychowicz 2021); a user's encoder by its own rule."""
    if isinstance(layers, UserEncoder):
        layers.initialize(generator)
        return
    if isinstance(layers, (nn.Linear, nn.Conv2d)):
        nn.init.orthogonal_(layers.weight, gain, generator=generator)
        assert layers.bias is not None
        nn.init.zeros_(layers.bias)
    for layer in layers.children():
        initialize(layer, gain, generator)
