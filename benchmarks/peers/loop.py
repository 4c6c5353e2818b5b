"""The textbook loop's side: `benchmarks/textbook.py`, at the setting's learning rate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cases import Setting
from worker import Train, serve

sys.path.append(str(Path(__file__).resolve().parents[1]))


@contextmanager
def textbook(setting: Setting) -> Iterator[Train]:
    from textbook import Textbook

    loop = Textbook(
        setting.env_id, setting.num_envs, setting.steps, setting.epochs, setting.minibatches
    )
    for group in loop.optimizer.param_groups:
        group["lr"] = setting.lr
    try:
        yield lambda iterations: sum(loop.iteration() for _ in range(iterations))
    finally:
        loop.close()


if __name__ == "__main__":
    serve(textbook)
