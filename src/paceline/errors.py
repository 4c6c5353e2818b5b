"""What can go wrong for a user, and the exit code of each."""


class PacelineError(Exception):
    """Its text is for the user: what was wrong, the value seen, what to write instead."""

    exit_code = 1


class BadInput(PacelineError):
    """A configuration, a file or an argument that can't be used."""

    exit_code = 2


class EnvironmentFailed(PacelineError):
    """An environment that raises again and again, or returns what its spaces forbid."""

    exit_code = 3


class OutOfMemory(PacelineError):
    """There is less memory than a run takes."""

    exit_code = 3


class Diverged(PacelineError):
    """The loss or a gradient became NaN or infinite."""

    exit_code = 4


class StoppedEarly(PacelineError):
    """A signal, or a machine that lost what it needs; `paceline resume` goes on from there."""

    exit_code = 75


class LostRank(StoppedEarly):
    """A rank has gone, or hangs; the run goes on from its last checkpoint with new ones."""

    hangs: int | None = None
    """id of the process, if it is still there"""
