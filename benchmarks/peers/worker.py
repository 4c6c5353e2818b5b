"""A side of a comparison: a process that trains on request and says how long it took.

Its one argument is the setting as JSON. It warms up, answers with what it is, and then answers each
line `go <iterations>` with seconds and environment steps, until its input ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

from cases import Setting

Train = Callable[[int], int]
"""Trains for so many iterations; returns the environment steps it made."""

WARM_UP = 3
PACKAGES = (
    "paceline",
    "stable-baselines3",
    "sb3-contrib",
    "torch",
    "gymnasium",
    "numpy",
    "Box2D",
    "mujoco",
    "ale-py",
)


class NotOffered(Exception):
    """This side has no such option; the case is left out."""


def serve(side: Callable[[Setting], AbstractContextManager[Train]]) -> None:
    """Be that side until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no answer

    def answer(**facts: Any) -> None:
        print(json.dumps(facts), file=answers)

    import torch

    setting = Setting(**json.loads(sys.argv[1]))
    torch.set_num_threads(setting.threads)
    try:
        with side(setting) as train:
            train(WARM_UP)
            answer(threads=torch.get_num_threads(), versions=versions())
            for line in sys.stdin:
                iterations = int(line.removeprefix("go "))
                began = time.perf_counter()
                steps = train(iterations)
                answer(seconds=time.perf_counter() - began, steps=steps)
    except NotOffered as reason:
        answer(refused=str(reason))


def versions() -> dict[str, str]:
    """Of Python and of those packages that are installed here."""
    found = {"python": python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
