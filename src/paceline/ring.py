"""The ring, which is the training loop: collect, update, publish; a generator of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from .errors import Diverged, EnvironmentFailed
from .processes.stopping import StopNow
from .run.budget import Budget, Progress
from .run.build import Parts
from .run.meter import Meter
from .run.report import Report

PAUSE = 0.05
"""Seconds between two looks at asynchronous learners (Hogwild)."""


def ring(
    parts: Parts,
    budget: Budget,
    progress: Progress,
    log_every: int = 1,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Train until the budget is spent, updating `progress` in place.

    A report covers `log_every` iterations, or fewer when `stopping()` is true on any rank.
    """
    sampler, learner, meter = parts.sampler, parts.learner, Meter(parts, progress)
    assert sampler is not None
    while (spent := budget.fraction(progress)) < 1.0:
        try:
            meter.start_rollout()
            rollout = sampler.collect()
            meter.start_update(rollout)
            metrics = learner.update(rollout, budget.progress_remaining(progress))
        except (StopNow, EnvironmentFailed, Diverged) as error:
            stopped = isinstance(error, StopNow)
            if meter.iters and (stopped or parts.sync.size == 1):  # what was done before
                yield meter.report(spent, stopped)
            raise
        stop = meter.end_update(rollout, metrics, stopping())
        learner.set_version(progress.iter)
        sampler.publish(learner.weights, learner.version)
        spent = budget.fraction(progress)
        if progress.iter % log_every == 0 or spent >= 1.0 or stop:
            yield meter.report(spent, stop)


def watch(
    parts: Parts,
    budget: Budget,
    progress: Progress,
    log_every: int,
    stopping: Callable[[], bool],
) -> Iterator[Report]:
    """The loop of a process that does not learn: reports of asynchronous learners (Hogwild)."""
    learner, meter = parts.learner, Meter(parts, progress)
    at_work, stopped = True, False
    while at_work:
        left = math.inf if budget.seconds is None else budget.seconds - progress.time
        # Shorter towards the end, to see it in time.
        at_work = parts.sync.pause(PAUSE if left > 10 * PAUSE else PAUSE / 20)
        over = budget.fraction(progress) >= 1.0
        any_stops = meter.poll(over or stopped or stopping())
        stopped = stopped or (any_stops and not over)
        learner.set_version(progress.iter)
        spent = budget.fraction(progress)
        due = meter.iters >= log_every and not stopped and spent < 1.0
        # The last report has the iterations that remain once all learners have ended.
        if due or (not at_work and (meter.iters or stopped)):
            learner.pull_shared_weights()
            yield meter.report(spent, stopped)
