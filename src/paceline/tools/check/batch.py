"""Suites that step many environments as one: a few columns, looked at as a run sees their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym

from ...envs.adapters import ObservationAdapter
from ...envs.spaces import ACTION_MASK
from ...rollout import Array
from . import episodes
from .ends import about_ends, unseen
from .environment import Answer
from .episodes import LEAST_STEPS, Lookout, Walked, about_returned
from .examine import about_scale, shown
from .finding import Finding, Notebook
from .request import CALLS
from .seeding import REPEAT
from .speed import Stepping
from .subject import Subject
from .values import Faults

COLUMNS = 4
ROWS = 200
"""That are played again."""
STORED = ("dtype",)
"""Faults that can't be seen in what has been stored already."""


def examine_batch(
    subject: Subject, notebook: Notebook, tell: Callable[[str], Any]
) -> dict[str, Any]:
    """Facts; what it finds goes to the notebook."""
    subject.heartbeat.call = CALLS.index("step")
    tell("walking at random")
    with closing(Stepping(subject, COLUMNS)) as stepping:
        columns, kept = stepping.columns, Faults(*STORED)
        facts = {"observation": columns.observation_space, "action": columns.action_space}
        eye = _Eye(stepping, kept)
        seen = eye.walked(subject.request.seconds)
    notebook.add(*kept.findings(seen.answers), *about_returned(seen), *about_scale(seen))
    if not notebook.findings:
        text = f"all {seen.answers:,} observations and rewards are as they should be"
        notebook.add(Finding("ok", "observation", text))
    notebook.add(*_about_ends(seen, eye.shows_next))
    tell("comparing seeds")
    notebook.add(_about_seeds(subject))
    told = {name: shown(space) for name, space in facts.items()}
    return told | {"steps": seen.steps, "episodes": len(seen.ended)}


class _Eye:
    """One lookout for each column."""

    def __init__(self, stepping: Stepping, kept: Faults) -> None:
        self._stepping = stepping
        columns = stepping.columns
        self._space = _without_mask(columns.observation_space)
        self._read = ObservationAdapter(columns.obs_spec).read
        self._lookouts = [Lookout(columns.act_spec, kept) for _ in range(columns.num_envs)]
        self.shows_next = False
        """the row that ends an episode shows the next one's first observation"""

    def walked(self, seconds: float) -> Walked:
        """Until there are steps enough, or the time is over."""
        stepping, until, rows = self._stepping, time.monotonic() + seconds, 0
        out, most = stepping.out, episodes.STEPS // len(self._lookouts)
        for lookout, obs in zip(self._lookouts, self._seen(), strict=True):
            lookout.see(Answer(obs, {}), self._space, begins=True, over=False)
        while rows < most and (time.monotonic() < until or rows < LEAST_STEPS):
            stepping.row()
            rows += 1
            for i, (lookout, obs) in enumerate(zip(self._lookouts, self._seen(), strict=True)):
                flags = bool(out.terminated[0, i]), bool(out.truncated[0, i])
                over, begins = any(flags), bool(out.first[-1, i])
                self.shows_next = self.shows_next or (over and begins)
                if out.valid[0, i]:
                    answer = Answer(obs, {}, float(out.reward[0, i]), *flags)
                    lookout.see(answer, self._space, begins=False, over=over)
                if begins:
                    lookout.see(Answer(obs, {}), self._space, begins=True, over=False)
        return _joined([lookout.seen for lookout in self._lookouts])

    def _seen(self) -> Iterator[Any]:
        """The latest observation of each column, as its space has it."""
        everybody = self._read(self._stepping.out.obs[-1])
        return (_of(everybody, i) for i in range(len(self._lookouts)))


def _of(structure: Any, i: int) -> Any:
    if isinstance(structure, dict):
        return {key: _of(part, i) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_of(part, i) for part in structure)
    return structure[i]


def _without_mask(space: gym.Space[Any]) -> gym.Space[Any]:
    """A mask of actions is stored apart."""
    if not isinstance(space, gym.spaces.Dict):
        return space
    return gym.spaces.Dict({key: part for key, part in space.items() if key != ACTION_MASK})


def _joined(seen: list[Walked]) -> Walked:
    return Walked(
        steps=sum(one.steps for one in seen),
        answers=sum(one.answers for one in seen),
        episodes=[episode for one in seen for episode in one.episodes],
        tracks=[track for one in seen for track in one.tracks],
        rewarded=any(one.rewarded for one in seen),
        largest=max(one.largest for one in seen),
        largest_reward=max(one.largest_reward for one in seen),
        moved=any(one.moved for one in seen),
    )


def _about_ends(seen: Walked, shows_next: bool) -> Iterator[Finding]:
    if not seen.ended:
        yield unseen(seen)
    elif shows_next:
        yield Finding(
            "note",
            "ends",
            "the step that ends an episode shows the next one's first observation, and every end "
            "counts as terminated",
            "where it was a time limit that ended it, states near the limit are undervalued",
            "keep it in mind where episodes get that long; the suite tells no more of their ends",
        )
    else:
        yield from about_ends(seen, None, resets_itself=False)


def _about_seeds(subject: Subject) -> Finding:
    seed = subject.request.seed
    first = _played(subject, seed, ROWS)
    again, other = (_played(subject, seed + more, len(first) - 1, hurry=False) for more in (0, 1))
    if first != again:
        row = next(n for n, (one, two) in enumerate(zip(first, again, strict=True)) if one != two)
        return Finding(
            "risky",
            "seeding",
            f"the same seed and actions, in two batches, gave something else from row {row} on",
            REPEAT,
            "take it from another suite, where a run has to be repeated",
        )
    if first == other and len(first) > ROWS:
        return Finding(
            "note",
            "seeding",
            f"two seeds gave the same {ROWS} rows",
            "that is right if nothing in it is random; else a policy learns one episode by heart",
            "if it should be random, see which of --env.kwargs make it so",
        )
    others = ", and another seed gives others" if first != other else ""
    said = f"the same seed gives the same {len(first) - 1} rows in two batches{others}"
    return Finding("ok", "seeding", said)


def _played(subject: Subject, seed: int, rows: int, hurry: bool = True) -> list[bytes]:
    """All that it gave, row by row, for the same actions whatever the seed."""
    with closing(Stepping(subject, COLUMNS, seed)) as stepping:
        until = time.monotonic() + subject.request.seconds / 4
        out, split = stepping.out, stepping.columns.obs_spec.split

        def bits(*arrays: Array) -> bytes:
            parts = (*split(out.obs[-1]).values(), *arrays)
            return b"".join(part.tobytes() for part in parts)

        found = [bits()]
        while len(found) <= (rows if not hurry or time.monotonic() < until else LEAST_STEPS):
            stepping.row()
            found.append(bits(out.reward, out.terminated, out.truncated, out.valid))
        return found
