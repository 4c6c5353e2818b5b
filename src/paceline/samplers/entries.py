"""Registry entries of samplers and pools: what a configuration needs to know of each, and how it
is constructed. Imports nothing heavy, so that configurations can be checked without a run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ..errors import BadInput

if TYPE_CHECKING:
    from ..config.schema import Config
    from . import Sampler
    from .pool import PoolSpec, WorkerPool


def processes(spec: PoolSpec) -> WorkerPool:
    """Worker processes on this machine."""
    from .process_pool import start_workers

    return start_workers(spec)


class SerialSampler:
    runs_ahead: ClassVar[bool] = False
    """whether it samples while the learner updates, so that rollouts have older weights"""

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise BadInput for a configuration that it can't run."""
        if config.workers:
            raise BadInput(
                f"sampler is 'serial', which has no workers, and num_workers is {config.workers}"
            )

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Sampler:
        from .serial import make_serial

        return make_serial(
            spec.env_info,
            spec.network,
            spec.rollout,
            spec.seed,
            first_column=spec.first_column,
            heartbeat=spec.heartbeat,
            threads=spec.threads,
        )


class WorkersSampler:
    runs_ahead: ClassVar[bool] = False

    @staticmethod
    def refuse(config: Config) -> None:
        if not config.workers:
            raise BadInput(
                f"sampler is {config.resolved_sampler!r}, which needs workers; write "
                "--num-workers 2, or auto"
            )

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Sampler:
        from .workers import Workers

        return Workers(config.make_entry("pool", spec))


class StreamSampler:
    runs_ahead: ClassVar[bool] = True

    @staticmethod
    def refuse(config: Config) -> None:
        WorkersSampler.refuse(config)
        if not config.algorithm.needs_log_ratio:
            raise BadInput(
                f"sampler is 'stream', whose rollouts come from older weights, and "
                f"{config.algo_section} does not correct for that; write --sampler workers, or "
                "--algo impala, which does"
            )

    @staticmethod
    def make(spec: PoolSpec, config: Config) -> Sampler:
        from .stream import SLOTS, Stream

        pool = config.make_entry("pool", replace(spec, slots_per_worker=SLOTS))
        return Stream(pool, config.max_lag)
