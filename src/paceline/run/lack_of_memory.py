"""A run that gets no memory ends in a sentence on what to lower."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ..config.schema import Config
from ..errors import OutOfMemory

ALLOCATORS = ("can't allocate memory", "bad_alloc", "out of memory")
"""What torch says, in a RuntimeError."""


@contextmanager
def memory_told(config: Config) -> Iterator[None]:
    """Meanwhile, memory that is refused is an `OutOfMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        refused = isinstance(error, MemoryError) or any(word in str(error) for word in ALLOCATORS)
        if isinstance(error, OSError):
            refused = error.errno == errno.ENOMEM
        if not refused:
            raise
        rows = config.columns * config.rollout_steps
        raise OutOfMemory(
            f"memory ran out with rollouts of {config.columns:,} envs × {config.rollout_steps:,} "
            f"steps in {config.minibatch_count:,} minibatches ({rows // config.minibatch_count:,} "
            "rows each): write a smaller --num-envs, --rollout-steps or --hidden, or more "
            "--minibatches"
        ) from error
