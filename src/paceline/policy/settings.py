"""Settings of the process that decide how numbers come out, and that an environment may change."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

FILTERS, PRECISION = list(warnings.filters), torch.get_float32_matmul_precision()
"""As the user has them: this is imported before any environment is made."""


@contextmanager
def standard_settings() -> Iterator[None]:
    """Compute with the settings a learner relies on; afterwards they are what they were before.

    An environment that works in float64, or without gradients, still finds what it has set.
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
        if torch.empty(0).device.type != "cpu":  # which costs less than asking for the default
            stack.enter_context(torch.device("cpu"))
        yield
