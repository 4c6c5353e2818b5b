"""The ring: collect, update, publish; a generator of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .distributed import Sync
from .learning.learner import Learner
from .processes.stopping import StopNow
from .run.budget import Budget, Progress
from .run.meter import Meter
from .run.report import Report
from .run.topology import Topology
from .samplers import Sampler


def ring(
    sampler: Sampler,
    learner: Learner,
    sync: Sync,
    budget: Budget,
    progress: Progress,
    log_every: int,
    stopping: Callable[[], bool] = lambda: False,
    topology: Topology | None = None,
) -> Iterator[Report]:
    """Train until the budget is spent; `progress` is kept up to date in place.

    When `stopping()` on any rank, the report comes at once instead of after `log_every` iterations.
    """
    meter = Meter(progress, learner, sync, sampler.t_wait, topology)
    while (spent := budget.fraction(progress)) < 1.0:
        meter.begin()
        try:
            rollout = sampler.collect()
        except StopNow:
            if meter.iters:  # since the last report
                yield meter.report(spent, True)
            raise
        meter.collected()
        lag = learner.version - rollout.version
        metrics = learner.update(rollout, 1.0 - spent)
        stop = meter.learned(rollout, lag, metrics, sampler, stopping())
        learner.set_version(progress.iter)
        sampler.publish(learner.weights, learner.version)
        fraction = budget.fraction(progress)
        if progress.iter % log_every == 0 or fraction >= 1.0 or stop:
            yield meter.report(fraction, stop)
