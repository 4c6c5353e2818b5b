"""What data-parallel ranks gain, against the machine's own ceiling, interleaved.

    python benchmarks/ranks.py strong --env-id CartPole-v1 --num-envs 64 --rollout-steps 128
    python benchmarks/ranks.py strong --env-id HalfCheetah-v5 --num-envs 16 --rollout-steps 256
    python benchmarks/ranks.py textbook --num-envs 8     # against DistributedDataParallel
    python benchmarks/ranks.py allreduce                 # one gradient: memory against gloo

Trainings are real `paceline train` processes, PPO with 4 epochs × 4 minibatches, whose
metrics.jsonl is read from the sixth iteration on. `strong` shares the same environments among two
ranks, and measures by two independent trainings at the same time, each with all the environments,
what the machine has to give to two processes. The contestants of a round follow one another, and
ratios are between those of a round. Writes benchmarks/results/ranks-<what>-<env>-<num_envs>.json
and ranks-allreduce[-pinned].json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from parallel import _spread as spread
from parallel import ceiling

from paceline.processes.hardware import available_cpus, cpu_name

WARMUP = 5
"""Iterations before the clock starts."""
CALIBRATION = 15
"""Iterations from which it is guessed how many fill the asked-for seconds."""
POLL = 0.2
PATIENCE = 20.0
"""Seconds that a training has to end by itself."""
QUIET = 0.05
"""Share of the CPUs that other processes may take without a word."""
SUMS = 300
"""All-reduces of a block."""
PHASES = ("t_rollout", "t_learn", "t_sync", "t_other")


class TrainingFailed(Exception):
    """A training ended before its iterations were made; the text is what it said."""


class Training:
    """A `paceline train` process; it and its ranks end with the `with` block in any case."""

    def __init__(self, folder: Path, iters: int, ranks: int, flags: Sequence[str]) -> None:
        folder.mkdir()
        self.iters, self._ranks = iters, ranks
        self._metrics, self._log = folder / "run" / "metrics.jsonl", folder / "log"
        command = [sys.executable, "-m", "paceline", "train", "--ranks", str(ranks), *flags]
        command += ["--total-iters", str(iters), "--output-dir", str(folder / "run")]
        with self._log.open("w") as output:
            self._process = psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"TMPDIR": str(folder)},
            )

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            with suppress(psutil.NoSuchProcess):
                self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except psutil.TimeoutExpired:
            for process in [*self._process.children(recursive=True), self._process]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
        if error is None and self._process.returncode:
            raise self._failure()
        for line in self._log.read_text().splitlines():
            if line.startswith("warning:"):  # ranks that started again took time that nobody counts
                print(line, file=sys.stderr)

    def _failure(self) -> TrainingFailed:
        return TrainingFailed(f"{' '.join(self._process.args)}\n{self._log.read_text()[-3000:]}")

    def reports(self) -> list[dict[str, Any]]:
        """What the training has written so far; one report per iteration."""
        if not self._metrics.exists():
            return []
        lines = self._metrics.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        if any(report["world_size"] != self._ranks for report in found):
            raise TrainingFailed(f"{' '.join(self._process.args)}\nhas not {self._ranks} ranks")
        return found

    def iterations(self) -> int:
        """How many it has made; an error if it has ended before all of them."""
        ended = self._process.poll() is not None
        made = len(self.reports())
        if ended and made < self.iters:
            raise self._failure()
        return made


@dataclass(frozen=True)
class Pace:
    """How fast a training went."""

    rate: float
    """environment steps per second, over all ranks"""
    shares: dict[str, float]
    """of the time, by phase, on the first rank"""

    @staticmethod
    def of(reports: list[dict[str, Any]]) -> Pace:
        seconds = sum(report["t_iter"] for report in reports)
        steps = sum(report["steps_global"] for report in reports)
        shares = {phase: sum(report[phase] for report in reports) / seconds for phase in PHASES}
        return Pace(steps / seconds, shares)


def train(iters: int, ranks: int, flags: Sequence[str], copies: int = 1) -> list[Pace]:
    """Independent trainings at the same time, measured while all of them are learning."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainings = [
            stack.enter_context(Training(folder / str(number), WARMUP + iters, ranks, flags))
            for number in range(copies)
        ]
        while min(training.iterations() for training in trainings) < WARMUP:
            time.sleep(POLL)
        first = [training.iterations() for training in trainings] if copies > 1 else [WARMUP]
        while all(training.iterations() < training.iters for training in trainings):
            time.sleep(POLL)
        last = [training.iterations() for training in trainings]
        if any(end - begin < WARMUP for begin, end in zip(first, last, strict=True)):
            raise TrainingFailed("the trainings hardly ran at the same time; give more --seconds")
        return [
            Pace.of(training.reports()[begin:end])
            for training, begin, end in zip(trainings, first, last, strict=True)
        ]


Side = Callable[[int], Pace]
"""Trains for so many iterations."""


def paceline(options: argparse.Namespace, ranks: int, *more: str, copies: int = 1) -> Side:
    """Paceline with the environments shared among its ranks; the rates of copies are added."""
    flags = ["--algo", "ppo", "--preset", "none", "--env-id", options.env_id]
    flags += ["--num-envs", str(options.num_envs // ranks)]
    flags += ["--rollout-steps", str(options.rollout_steps), "--epochs", "4", "--minibatches", "4"]
    flags += ["--compile", options.compile, "--ppo.entropy-coef", "0.01"]
    flags += ["--track", "none", "--eval-episodes", "1", "--log-every", "1", *more]

    def side(iters: int) -> Pace:
        paces = train(iters, ranks, flags, copies)
        return Pace(sum(pace.rate for pace in paces), paces[0].shares)

    return side


def textbook(options: argparse.Namespace, ddp: bool) -> Side:
    """The textbook loop on two ranks, which starts anew each time, as ours does."""

    def side(iters: int) -> Pace:
        from textbook_ddp import rate

        world = {"env_id": options.env_id, "num_envs": options.num_envs}
        steps = options.rollout_steps
        return Pace(rate(ranks=2, rollout_steps=steps, iters=iters, lr=0.0, ddp=ddp, **world), {})

    return side


def contestants(options: argparse.Namespace) -> dict[str, Side]:
    """In the order of a round, in which those that are compared are neighbors."""
    if options.what == "textbook":
        # At a learning rate of 0 both sides stay in the same world, however far each one comes.
        return {
            "textbook by hand": textbook(options, ddp=False),
            "textbook DDP": textbook(options, ddp=True),
            "2 ranks": paceline(options, 2, "--lr", "0"),
        }
    return {
        "2 ranks gloo": paceline(options, 2, "--backend", "gloo"),
        "1 rank": paceline(options, 1),
        "2 ranks": paceline(options, 2),
        "2 independent": paceline(options, 1, copies=2),
    }


COMPARED = {
    "strong": [
        ("2 ranks", "1 rank"),
        ("2 ranks gloo", "1 rank"),
        ("2 ranks", "2 ranks gloo"),
        ("2 independent", "1 rank"),
        ("2 ranks", "2 independent"),
    ],
    "textbook": [("2 ranks", "textbook DDP"), ("2 ranks", "textbook by hand")],
}


@contextmanager
def taken_by_others(name: str, shares: dict[str, float]) -> Iterator[None]:
    """Note which share of the CPUs' time went to processes that are no part of this benchmark."""

    def clocks() -> tuple[float, float, float]:
        cpus, own = psutil.cpu_times(), os.times()
        busy = sum(cpus) - cpus.idle - getattr(cpus, "iowait", 0.0)
        return time.perf_counter(), busy, sum(own[:4])

    before = clocks()
    yield
    wall, busy, own = (after - at for after, at in zip(clocks(), before, strict=True))
    shares[name] = max(0.0, busy - own) / (wall * psutil.cpu_count())


def warn_of(others: Sequence[dict[str, float]]) -> None:
    most = max(share for shares in others for share in shares.values())
    if most > QUIET:
        print(f"other processes took up to {most:.0%} of the CPUs: measure again when it is quiet")


def calibrated(options: argparse.Namespace, sides: dict[str, Side]) -> dict[str, int]:
    """Run every side once, which also fills the cache of compiled steps; iterations to measure.

    As many as fill `--seconds`; in `strong` the same for all, so that all learn the same.
    """
    rows = options.num_envs * options.rollout_steps
    iters = {
        name: max(CALIBRATION, round(options.seconds * side(CALIBRATION).rate / rows))
        for name, side in sides.items()
    }
    if options.what == "strong":
        return dict.fromkeys(iters, iters["1 rank"])
    return iters


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of all contestants, one after the other."""
    sides = contestants(options)
    iters = calibrated(options, sides)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    shares: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    floats: list[float] = []
    others: list[dict[str, float]] = []
    with ceiling(options.env_id, "floats") as plain:
        plain()
        for _ in range(options.rounds):
            floats.append(plain())
            others.append({})
            for name, side in sides.items():
                with taken_by_others(name, others[-1]):
                    pace = side(iters[name])
                rates[name].append(pace.rate)
                shares[name].append(pace.shares)
            shown = "  ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items())
            print(f"floats {floats[-1]:.2f}  {shown}", flush=True)
    warn_of(others)
    return {
        "iters": iters,
        "rates": rates,
        "shares": {name: values for name, values in shares.items() if values[0]},
        "ratios": ratios(rates, COMPARED[options.what]),
        "ceilings_of_floats": floats,
        "taken_by_others": others,
    }


def ratios(
    rates: dict[str, list[float]], pairs: Sequence[tuple[str, str]]
) -> dict[str, list[float]]:
    """Round by round; printed as well."""
    found = {}
    for one, other in pairs:
        name = f"{one} against {other}"
        found[name] = [a / b for a, b in zip(rates[one], rates[other], strict=True)]
        print(f"{name}: {spread(found[name])}×")
    return found


def gradient_size() -> int:
    """Floats in the gradient of the default policy and value on CartPole."""
    from paceline import Config
    from paceline.policy.actor_critic import ActorCritic
    from paceline.run.build import env_info_of, network_for

    config = Config(preset="none")
    info = env_info_of(config)
    module = ActorCritic(network_for(config, info.obs_spec, info.act_spec))
    return sum(weight.numel() for weight in module.parameters())


def sum_rank(rank: int, folder: str, size: int, blocks: int, pin: bool, answers: Any) -> None:
    """One of two ranks that add up a gradient in every way, block by block."""
    import torch
    import torch.distributed as dist
    from textbook_ddp import end_with_parent, on_loopback

    from paceline.distributed.allreduce import Allreduce
    from paceline.distributed.rendezvous import join_group

    end_with_parent()
    on_loopback()
    torch.set_num_threads(1)
    if pin:  # else two ranks may find themselves on the same CPU while another is at work
        os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[rank]])
    syncs = {
        backend: Allreduce(join_group(f"file://{folder}/{backend}", rank, 2, 60.0), backend)
        for backend in ("shm", "gloo")
    }
    ways = {name: sync.sum for name, sync in syncs.items()} | {"all_reduce": dist.all_reduce}
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(blocks + 1):
        for name, add_up in ways.items():
            found[name].append([timed(add_up, torch.ones(size)) for _ in range(SUMS)])
    for sync in syncs.values():
        sync.close()
    if rank == 0:  # the first block warms up
        answers.put({name: [facts(block) for block in taken[1:]] for name, taken in found.items()})


def timed(add_up: Callable[[Any], Any], gradient: Any) -> float:
    """Seconds until the sum over two ranks is there."""
    began = time.perf_counter()
    add_up(gradient)
    took = time.perf_counter() - began
    if gradient[-1] != 2:
        raise ValueError(f"1 + 1 gave {gradient[-1]}")
    return took


def facts(block: list[float]) -> dict[str, float]:
    return {"median": statistics.median(block), "p90": statistics.quantiles(block, n=10)[-1]}


def all_reduces(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds that one all-reduce takes in each way, block by block.

    `shm` and `gloo` are what ranks use; `all_reduce` is torch.distributed's own call, over gloo.
    """
    import torch.multiprocessing as mp

    size, blocks = gradient_size(), 4 * options.rounds
    answers = mp.get_context("spawn").SimpleQueue()
    others: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, taken_by_others("allreduce", others):
        mp.spawn(sum_rank, (folder, size, blocks, options.pin, answers), nprocs=2)
    found: dict[str, list[dict[str, float]]] = answers.get()
    print(f"{size:,} floats, 2 ranks, {blocks} blocks of {SUMS}; microseconds:")
    for name, taken in found.items():
        median, p90 = ([block[key] * 1e6 for block in taken] for key in ("median", "p90"))
        print(f"{name}: median {spread(median)}, p90 {spread(p90)}")
    medians = {name: [block["median"] for block in taken] for name, taken in found.items()}
    warn_of([others])
    return {
        "floats": size,
        "sums": SUMS,
        "seconds": found,
        "ratios": ratios(medians, [("gloo", "shm"), ("all_reduce", "shm")]),
        "taken_by_others": [others],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["strong", "textbook", "allreduce"])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=64, help="over all ranks")
    parser.add_argument("--rollout-steps", type=int, default=128)
    parser.add_argument("--compile", choices=["on", "off"], default="on")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each contestant in a round")
    parser.add_argument("--pin", action="store_true", help="allreduce: a CPU for each rank")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.num_envs % 2:
        parser.error(f"--num-envs {options.num_envs} can't be shared by two ranks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves every `with` block
    found = all_reduces(options) if options.what == "allreduce" else compare(options)
    machine = {"cpu": cpu_name(), "cpus": available_cpus(), "load": os.getloadavg()[0]}
    text = json.dumps({"options": vars(options), "machine": machine, **found}, indent=1)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    setting = f"-{options.env_id}-{options.num_envs}"
    if options.what == "allreduce":
        setting = "-pinned" if options.pin else ""
    (folder / f"ranks-{options.what}{setting}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
