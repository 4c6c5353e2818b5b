"""Global numeric settings of numpy and torch, which an environment may have changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

FILTERS, PRECISION = list(warnings.filters), torch.get_float32_matmul_precision()
"""The user's own: this module is imported before any environment is made."""


@contextmanager
def standard_settings() -> Iterator[None]:
    """Settings that policy and learner rely on; those of the environment return afterwards.

    For example an environment may have set float64 as default, or disabled gradients.
    """
    with ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))
        if any(entry[0] == "error" and entry not in FILTERS for entry in warnings.filters):
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        if (dtype := torch.get_default_dtype()) != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        if (precision := torch.get_float32_matmul_precision()) != PRECISION:
            stack.callback(torch.set_float32_matmul_precision, precision)
            torch.set_float32_matmul_precision(PRECISION)
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.empty(0).device.type != "cpu":  # cheaper than torch.get_default_device()
            stack.enter_context(torch.device("cpu"))
        yield
