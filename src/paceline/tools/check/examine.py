"""The conformance suite: every check in turn, each within its time, on instances of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import psutil

from ...config.text import listed, printable
from ...envs.spaces import ActionSpec, action_spec, observation_spec
from ...errors import BadInput
from .action_bounds import End, about_bounds, at_an_end, try_bounds
from .ends import about_ends
from .environment import Instance
from .episodes import Walk, Walked, about_returned
from .finding import Broken, Finding, Notebook
from .player import Player, digest
from .seeding import Reference, Seeding
from .subject import Subject

Tell = Callable[[str], Any]
"""Takes what is being looked at."""
LARGE = 1e3
"""Of an observation's numbers and of rewards."""

FAILING = {"make", "reset", "step", "observation", "reward", "mask"}
"""Topics of faults with which steps fail, and nothing can be measured."""


class Conformance:
    """Looks at one environment; what it finds goes to the notebook."""

    def __init__(self, subject: Subject, notebook: Notebook, tell: Tell = lambda _: None) -> None:
        self._subject, self._notebook, self._tell = subject, notebook, tell
        self._seconds = subject.request.seconds
        self.facts: dict[str, Any] = {}
        self.reference: Reference | None = None

    def examine(self) -> bool:
        """Whether it is whole enough to be measured."""
        self._tell("making it")
        try:
            spec = self._first_look()
        except Broken as broken:
            self._notebook.add(broken.finding)
            return False
        self._tell("walking at random")
        seen = Walk(self._subject, spec, self._notebook).go(self._seconds)
        self.facts |= {"steps": seen.steps, "episodes": len(seen.ended)}
        self._notebook.add(*about_returned(seen), *about_scale(seen))
        if not self._notebook.findings:
            text = f"all {seen.answers:,} observations and rewards are as they should be"
            self._notebook.add(Finding("ok", "observation", text))
        self._notebook.add(*about_bounds(spec))
        checks: dict[str, Callable[[], None]] = {
            "comparing seeds": lambda: self._compare_seeds(spec),
            "trying actions at their bounds": lambda: self._try_bounds(spec),
            "looking at ends": lambda: self._ends(seen, spec),
        }
        for name, check in checks.items():
            self._tell(name)
            try:
                check()
            except Broken as broken:  # whoever fails once fails often
                self._notebook.add(broken.finding)
        self._left_behind()
        wrong = {finding.topic for finding in self._notebook.findings if finding.level == "wrong"}
        return not wrong & FAILING

    def _first_look(self) -> ActionSpec:
        """The spaces, one reset and one step; more is not to be hoped for where these fail."""
        instance = Instance(self._subject)
        env = instance.env
        spaces = [getattr(env, name, None) for name in ("observation_space", "action_space")]
        self.facts |= {
            "observation": shown(spaces[0]),
            "action": shown(spaces[1]),
            "time_limit": time_limit(instance),
        }
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            if space is None:
                raise Broken(_without_space(name))
        try:
            spec = action_spec(env.action_space)
            answer = instance.reset(self._subject.request.seed)
            observation_spec(env.observation_space, spec, answer.info)
        except BadInput as error:
            why, fix = "no policy here can use such a space", "encode it, or leave it out"
            raise Broken(Finding("wrong", "spaces", str(error), why, fix)) from error
        player = Player(instance, spec, self._subject.request.seed)
        for _ in range(2):
            player.next()
        self._close(instance)
        return spec

    def _close(self, instance: Instance) -> None:
        try:
            instance.close()
        except Broken as broken:
            self._notebook.add(broken.finding)

    def _compare_seeds(self, spec: ActionSpec) -> None:
        seeding = Seeding(self._subject, spec, self._seconds / 4)
        reference = seeding.reference()
        for finding in seeding.findings(reference):
            self._notebook.add(finding)
        if seeding.exact and self._notebook.quiet("seeding", "copies"):
            self.reference = reference

    def _try_bounds(self, spec: ActionSpec) -> None:
        try_bounds(self._subject, spec, self._seconds / 4, self._notebook)

    def _ends(self, seen: Walked, spec: ActionSpec) -> None:
        end = End()
        if not seen.ended and not self._notebook.quiet("step", "reset"):
            return  # it never got that far
        if any(episode.terminated or episode.truncated for episode in seen.ended):
            end = at_an_end(self._subject, spec, self._seconds / 4)
        for finding in about_ends(seen, self.facts["time_limit"], end.resets_itself):
            if finding.level == "ok" and end.after:
                finding = Finding("ok", "ends", f"{finding.text}; {end.after}")
            self._notebook.add(finding)

    def _left_behind(self) -> None:
        """Everything has been closed by now."""
        left = psutil.Process().children(recursive=True)
        if left and self._notebook.quiet("step", "reset", "close"):
            names = sorted({process.name() for process in left})
            said = f"{len(left)} of its processes outlived close(): {listed(names)}"
            why = "runs make and close environments, and each time more of them stay"
            fix = "end in close() what __init__ or reset() has started"
            self._notebook.add(Finding("risky", "close", said, why, fix))


def about_scale(seen: Walked) -> list[Finding]:
    """Numbers that a network would rather have smaller."""
    found = []
    if seen.largest > LARGE:
        text = f"numbers of the observation reach {seen.largest:.3g}"
        why = (
            "a network begins with weights for numbers around 1, and learns slowly from large ones"
        )
        fix = "train with --normalize-obs, or divide by their usual size"
        found.append(Finding("note", "observation", text, why, fix))
    if seen.largest_reward > LARGE:
        text = f"rewards reach {seen.largest_reward:.3g}"
        why = "the value's loss is their square, and drowns that of the policy"
        fix = "train with --normalize-return, or divide the reward"
        found.append(Finding("note", "reward", text, why, fix))
    return found


def _without_space(name: str) -> Finding:
    why = "policies are built from the spaces"
    fix = f"set self.{name} in __init__ to one of gymnasium.spaces"
    return Finding("wrong", "spaces", f"the environment has no {name}", why, fix)


def shown(space: Any) -> str:
    """A space in a few words."""
    if isinstance(space, gym.spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, gym.spaces.Dict):
        return f"Dict({', '.join(f'{key}: {shown(part)}' for key, part in space.items())})"
    if isinstance(space, gym.spaces.Tuple):
        return f"Tuple({', '.join(map(shown, space))})"
    return printable(str(space))


def time_limit(instance: Instance) -> int | None:
    """From outside, or within a wrapper that Gymnasium has put around it."""
    if instance.limit is not None:
        return instance.limit
    declared = getattr(getattr(instance.env, "spec", None), "max_episode_steps", None)
    return declared if declared and declared > 0 else None


def replayed(subject: Subject) -> str:
    """The reference once more, which another process has made: its fingerprint here."""
    instance = Instance(subject)
    player = Player(instance, action_spec(instance.env.action_space), subject.request.seed)
    found = digest(player.moments(subject.request.replay))
    instance.leave()
    return found
