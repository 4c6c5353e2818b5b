"""Errors that a user can cause, with their exit codes."""


class PacelineError(Exception):
    """Its message is for the user: what was wrong, the value seen, what to write instead."""

    exit_code = 1


class BadInput(PacelineError):
    """An invalid configuration, file or argument."""

    exit_code = 2


class EnvironmentFailed(PacelineError):
    """An environment raises repeatedly, or returns values outside its spaces."""

    exit_code = 3


class OutOfMemory(PacelineError):
    """The run needs more memory than there is."""

    exit_code = 3


class Diverged(PacelineError):
    """The loss or a gradient became NaN or infinite."""

    exit_code = 4


class StoppedEarly(PacelineError):
    """Ended by a signal or a failing machine; `paceline resume` continues the run."""

    exit_code = 75


class LostRank(StoppedEarly):
    """A rank died or hangs; the ranks are restarted from the last checkpoint."""

    hangs: int | None = None
    """process id of the rank, if it hangs"""
