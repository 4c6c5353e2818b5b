"""Edges: actions at their bounds, spaces no policy can use, and what comes after an end."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import FrameType
from typing import Any

import numpy as np

from ...envs.env_columns import is_gymnasium_env
from ...envs.spaces import ActionSpec
from .acting import RandomActions, mask_of
from .compare import flat_numbers
from .environment import Answer, Instance
from .finding import Broken, Finding, Notebook
from .player import Player, true
from .subject import Subject

LARGE_BOUND = 1e6
AT_BOUND = 5
"""Steps with an action at its bound."""
AFTER = 3
"""Steps after the end."""
SEARCHED = 2_000
"""Steps within which an end has to come."""


def about_bounds(spec: ActionSpec) -> Iterator[Finding]:
    """What the bounds of a Box do to a policy, whose −1 … 1 is stretched over them."""
    if spec.kind != "box":
        return
    low, high = np.array(spec.low), np.array(spec.high)
    finite = np.isfinite(low) & np.isfinite(high)
    if not finite.all():
        yield Finding(
            "note",
            "actions",
            f"{int((~finite).sum())} of {spec.size} action numbers have no finite bounds",
            "a policy begins with numbers around 0 with a deviation of 1, and only gets to others "
            "slowly",
            "give low and high that an action may reach; −1 … 1 of the policy is stretched to them",
        )
    width = float((high - low)[finite].max()) if finite.any() else 0.0
    if width > LARGE_BOUND:
        yield Finding(
            "risky",
            "actions",
            f"an action number may be anything within a range of {width:.3g}",
            "−1 … 1 of the policy is stretched over the whole range, so that nearly every action "
            "is far out",
            "give the bounds that are of use, or −np.inf and np.inf where there are none",
        )
    if bool((low >= high).any()):
        yield Finding(
            "risky",
            "actions",
            f"action number {int(np.argmax(low >= high))} has low {low[low >= high][0]:g}, which "
            "is not below its high",
            "there is nothing to choose",
            "give low < high for every number, or leave it out of the action space",
        )


def try_bounds(subject: Subject, spec: ActionSpec, seconds: float, notebook: Notebook) -> None:
    """A few steps with each extreme action, in an instance that survives its failures."""
    until = time.monotonic() + seconds
    instance = Instance(subject)
    actions = RandomActions(spec, 0, is_gymnasium_env(instance.env.unwrapped))
    for number, (name, action) in enumerate(actions.corners()):
        if time.monotonic() > until and number > 1:
            break
        try:
            answer = instance.reset(subject.request.seed + number)
            for _ in range(AT_BOUND):
                mask = mask_of(answer.obs, answer.info, spec)
                if mask is not None and not mask.all():
                    break  # it may be forbidden, and is tried by the walk where it is not
                answer = instance.step(action)
                if not np.isfinite(flat_numbers((answer.obs, answer.reward))).all():
                    notebook.add(_not_finite(name, instance.age))
                    break
                if true(answer.terminated) or true(answer.truncated):
                    break
        except Broken as broken:
            found = broken.finding
            if notebook.quiet("step", "reset"):
                notebook.add(_at_bound(name, found))
            instance = Instance(subject)
    instance.leave()


def _at_bound(name: str, found: Finding) -> Finding:
    why = "a policy reaches the bounds from its first rollout on"
    return Finding("wrong", "actions", f"with {name} {found.text}", why, found.fix)


def _not_finite(name: str, step: int) -> Finding:
    return Finding(
        "wrong",
        "actions",
        f"with {name} an observation or reward was NaN or infinite at step {step}",
        "a policy reaches the bounds from its first rollout on, and the run ends there",
        "keep the simulation stable for every action that the space allows",
    )


@dataclass
class End:
    """What an environment does when an episode ends, and after that."""

    after: str = ""
    """what a step after the end does, in words; empty if no end came in time"""
    resets_itself: bool = False
    """the last step of an episode calls reset"""


def at_an_end(subject: Subject, spec: ActionSpec, seconds: float) -> End:
    """Play until the environment ends an episode by itself, and go on."""
    until, end = time.monotonic() + seconds, End()
    instance = Instance(subject)
    player = Player(instance, spec, subject.request.seed, actions=2)
    for _ in range(SEARCHED):
        with _calls_of(instance.env.unwrapped) as calls:
            begins, answer, _ = player.next()
        if true(answer.terminated) or true(answer.truncated):
            end.resets_itself = bool(calls) and not begins
            end.after = _stepped_on(instance, spec, answer)
            break
        if time.monotonic() > until:
            break
    instance.leave()
    return end


@contextmanager
def _calls_of(env: Any) -> Iterator[list[str]]:
    """Gets an entry for each call of the environment's own `reset`, without touching it."""
    code = getattr(getattr(env, "reset", None), "__code__", None)
    calls: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code:
            name = frame.f_code.co_varnames[0]
            if frame.f_locals.get(name) is env:
                calls.append(name)

    if sys.getprofile() is not None:  # somebody else is looking
        yield calls
        return
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def _stepped_on(instance: Instance, spec: ActionSpec, answer: Answer) -> str:
    actions = RandomActions(spec, 3, is_gymnasium_env(instance.env.unwrapped))
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):  # it may well complain
            warnings.simplefilter("ignore")
            for _ in range(AFTER):
                answer = instance.step(actions.next(answer.obs, answer.info))
    except Broken:
        return "a step after the end raises"
    ended = true(answer.terminated) or true(answer.truncated)
    return "a step after the end ends again" if ended else "a step after the end goes on"
