"""Samplers as a configuration chooses them: what follows from each, and how it is made.

Light, so that a configuration can be read and refused without what a run needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..errors import BadInput

if TYPE_CHECKING:
    from ..config import Config
    from ..envs.maker import World
    from ..policy.network import NetworkSpec
    from ..rollout import Pulse, Rollout
    from . import Sampler


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """What there is to sample, for whom and with what."""

    world: World
    network: NetworkSpec
    weights: int
    """how many are published"""
    columns: int
    first_column: int
    steps: int
    seed: int
    values: bool
    """whether actors give the value of what they see"""
    pulse: Pulse
    threads: int
    """for environments that are stepped as a batch"""
    workers: int
    cpus: list[list[int]]
    """of each worker"""
    timeout: float
    max_restarts: int
    max_lag: int
    pool: Any
    """the entry that starts workers"""
    blank: Callable[[], Rollout]
    """a rollout of the right shapes, with nothing in it"""

    def start_pool(self, own_slots: int) -> Any:
        return self.pool.start(
            self.world,
            self.network,
            self.weights,
            workers=self.workers,
            num_envs=self.columns,
            steps=self.steps,
            seed=self.seed,
            first_column=self.first_column,
            own_slots=own_slots,
            cpus=self.cpus,
            timeout=self.timeout,
            max_restarts=self.max_restarts,
            pulse=self.pulse,
            values=self.values,
        )


class ProcessPool:
    @staticmethod
    def start(*arguments: Any, **options: Any) -> Any:
        from .hire import hire

        return hire(*arguments, **options)


class SamplerEntry(Protocol):
    runs_ahead: ClassVar[bool]
    """whether it samples while the learner learns, and so with older weights"""

    @staticmethod
    def refuse(config: Config) -> None:
        """Raise BadInput for a configuration that it can't serve."""

    @staticmethod
    def make(spec: SamplerSpec) -> Sampler: ...


class SerialSampler:
    runs_ahead: ClassVar[bool] = False

    @staticmethod
    def refuse(config: Config) -> None:
        if config.workers:
            raise BadInput(
                f"sampler is 'serial', which has no workers, and num_workers is {config.workers}"
            )

    @staticmethod
    def make(spec: SamplerSpec) -> Sampler:
        from .serial import make_serial

        return make_serial(
            spec.world,
            spec.network,
            spec.columns,
            spec.steps,
            spec.seed,
            first_column=spec.first_column,
            pulse=spec.pulse,
            threads=spec.threads,
            values=spec.values,
        )


class WorkersSampler:
    runs_ahead: ClassVar[bool] = False

    @staticmethod
    def refuse(config: Config) -> None:
        _refuse_without_workers(config)

    @staticmethod
    def make(spec: SamplerSpec) -> Sampler:
        from .workers import Workers

        return Workers(*spec.start_pool(own_slots=0))


class StreamSampler:
    runs_ahead: ClassVar[bool] = True

    @staticmethod
    def refuse(config: Config) -> None:
        _refuse_without_workers(config)
        if not config.algorithm.needs_log_ratio:
            raise BadInput(
                f"sampler is 'stream', whose rollouts are made by older weights than those that "
                f"learn, and {config.algo_section} takes them for its own; write --sampler "
                "workers, or --algo impala, which corrects for it"
            )

    @staticmethod
    def make(spec: SamplerSpec) -> Sampler:
        from .stream import SLOTS, Stream

        crew, memory = spec.start_pool(own_slots=SLOTS)
        return Stream(crew, memory, spec.blank(), spec.max_lag)


def _refuse_without_workers(config: Config) -> None:
    if not config.workers:
        raise BadInput(
            f"sampler is {config.sampling!r}, which needs workers; write --num-workers 2, or auto"
        )
