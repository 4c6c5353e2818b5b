"""Seeds: the same one gives the same episodes, whatever happened before and beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ...config.text import listed
from ...envs.spaces import ActionSpec
from .environment import Instance
from .finding import Finding
from .generators import states, touched
from .player import Moment, Player, difference, digest, slightly
from .subject import Subject

MOMENTS, LEAST_MOMENTS = 200, 6
"""Answers of a history."""
USED = 4
"""Answers that make an instance a used one."""
ROUNDING, SETTLING = 1e-5, 0.01
"""By how much a computation in another order comes out otherwise, and a solver that begins with
what it knew before."""
REPEAT = "a run can be neither repeated nor resumed: what it learnt from can't be had again"
OWN_GENERATOR = (
    "draw everything random from self.np_random, which super().reset(seed=seed) seeds; no clock, "
    "no np.random, no random"
)


@dataclass(frozen=True)
class Reference:
    """A history to compare others with, and the shared generators that making it has touched."""

    moments: list[Moment]
    in_reset: list[str]
    in_step: list[str]

    @property
    def digest(self) -> str:
        return digest(self.moments)

    @property
    def shared(self) -> str:
        return listed(sorted({*self.in_reset, *self.in_step}))


class Seeding:
    """Plays the same and other seeds, in fresh and used instances, alone and together."""

    def __init__(self, subject: Subject, spec: ActionSpec, seconds: float) -> None:
        self._subject, self._spec, self._seconds = subject, spec, seconds
        self._seed = subject.request.seed
        self._used: Instance | None = None
        self.exact = False
        """whether a second instance did the same, to the bit"""

    def _player(self, instance: Instance, seed: int, actions: int = 0) -> Player:
        return Player(instance, self._spec, seed, actions)

    def reference(self) -> Reference:
        """Made in a fresh instance, within the time that there is."""
        self._used = Instance(self._subject)
        player, until = self._player(self._used, self._seed), time.monotonic() + self._seconds
        before = states()
        moments = [player.moment()]
        begun = states()
        while len(moments) < MOMENTS and (time.monotonic() < until or len(moments) < LEAST_MOMENTS):
            moments.append(player.moment())
        return Reference(moments, touched(before, begun), touched(begun, states()))

    def findings(self, known: Reference) -> Iterator[Finding]:
        assert self._used is not None
        fresh = Instance(self._subject)
        again = self._player(fresh, self._seed).moments(len(known.moments))
        where = difference(known.moments, again)
        self.exact = where is None
        if where and slightly(known.moments, again, ROUNDING):
            yield _inexact(self._seed, where)
        elif where:
            yield _not_deterministic(self._seed, where, known, _seeded(fresh, self._seed))
        else:
            yield from self._compared(known, fresh, self._used)
        fresh.leave()
        self._used.leave()

    def _compared(self, known: Reference, one: Instance, other: Instance) -> Iterator[Finding]:
        """With two instances that have both played the reference."""
        if known.in_reset or known.in_step:
            yield _shares_generator(known)
        number = len(known.moments)
        self._player(one, self._seed + 1).moments(USED)
        later = self._player(one, self._seed).moments(number)
        leaks = difference(known.moments, later)
        if leaks:
            slight = slightly(known.moments, later, SETTLING)
            yield (_drifting if slight else _leaking)(self._seed, leaks)
        others = [self._player(other, self._seed + 2).moments(number)]
        if not leaks:
            beside, another = self._beside(number)
            others.append(another)
            if where := difference(known.moments, beside):
                yield _influenced(where)
        yield from self._about_seeds(known, others, clean=not leaks)
        yield from self._about_actions(known, one)

    def _beside(self, number: int) -> tuple[list[Moment], list[Moment]]:
        """The reference's seed once more, while another instance plays another seed between."""
        instances = Instance(self._subject), Instance(self._subject)
        players = [self._player(instances[i], self._seed + i) for i in (0, 1)]
        pairs = [(players[0].moment(), players[1].moment()) for _ in range(number)]
        for instance in instances:
            instance.leave()
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _about_seeds(
        self, known: Reference, others: list[list[Moment]], clean: bool
    ) -> Iterator[Finding]:
        if any(difference(known.moments, other) for other in others):
            if clean:
                said = "the same seed gives the same episodes, and other seeds give others"
                yield Finding("ok", "seeding", said)
            return
        yield Finding(
            "note",
            "seeding",
            f"{len(others) + 1} seeds gave the same {len(known.moments)} answers",
            "that is right if nothing in it is random; else a policy learns one episode by heart",
            "if it should be random, draw from self.np_random, which super().reset(seed=seed) "
            "seeds, and from no generator with a seed of its own",
        )

    def _about_actions(self, known: Reference, instance: Instance) -> Iterator[Finding]:
        other = self._player(instance, self._seed, 1).moments(len(known.moments))
        if difference(known.moments, other) is None:
            yield Finding(
                "note",
                "actions",
                f"other actions gave the same {len(known.moments)} answers",
                "where no action changes anything there is nothing to learn",
                "see that step() uses its action",
            )


def _seeded(instance: Instance, seed: int) -> bool:
    """Whether reset hands its seed to `gymnasium.Env.reset`; where nobody knows, it does."""
    instance.reset(seed)
    return getattr(instance.env.unwrapped, "_np_random_seed", seed) == seed


def _not_deterministic(seed: int, where: str, known: Reference, seeded: bool) -> Finding:
    cause = "it draws from a generator without a seed, a clock, or something all instances share"
    if known.in_reset or known.in_step:
        cause = f"it draws from {known.shared}, which no seed of an episode reaches"
    elif not seeded:
        cause = "reset() does not call super().reset(seed=seed), which seeds self.np_random"
    return Finding(
        "wrong",
        "seeding",
        f"reset(seed={seed}) and the same actions, in two instances, gave different episodes: "
        f"{where}; {cause}",
        REPEAT,
        OWN_GENERATOR,
    )


def _inexact(seed: int, where: str) -> Finding:
    return Finding(
        "note",
        "seeding",
        f"reset(seed={seed}) and the same actions, in two instances, gave episodes that drift "
        f"apart: {where}",
        "nothing is learnt wrongly, but a run can't be repeated or resumed to the bit",
        "where the simulator computes with threads or on a GPU, let it do so in one order",
    )


def _shares_generator(known: Reference) -> Finding:
    call = "reset()" if known.in_reset else "step()"
    return Finding(
        "risky",
        "seeding",
        f"{call} uses or seeds {known.shared}, which everything in the process shares",
        "environments side by side, and whatever else draws from it, change each other's episodes",
        OWN_GENERATOR,
    )


def _leaking(seed: int, where: str) -> Finding:
    return Finding(
        "wrong",
        "seeding",
        f"reset(seed={seed}) in an instance that had been used gave another episode than in a "
        f"fresh one: {where}",
        "something is carried over from one episode to the next: a resumed run goes on otherwise, "
        "and evaluations depend on what came before",
        "set everything back in reset(), and seed every generator there",
    )


def _drifting(seed: int, where: str) -> Finding:
    return Finding(
        "note",
        "seeding",
        f"reset(seed={seed}) in an instance that had been used gave an episode that drifts away "
        f"from that of a fresh one: {where}",
        "nothing is learnt wrongly, but an open episode can't be replayed when a run is resumed, "
        "and begins anew",
        "make the simulator's world anew in reset(), not only what is in it",
    )


def _influenced(where: str) -> Finding:
    return Finding(
        "wrong",
        "copies",
        f"an episode came out otherwise while another instance was stepped beside it: {where}",
        "a run steps many in one process, and each would learn from a world that others disturb",
        "keep all state in self: no class attributes, module variables or global generators",
    )
