"""The textbook PPO loop on several processes: the yardstick of `ranks.py`.

    python benchmarks/textbook_ddp.py --ranks 2 --num-envs 8 --rollout-steps 128 --iters 20
    python benchmarks/textbook_ddp.py --ranks 2 --no-ddp        # gradients averaged by hand

The loop of `textbook.py` on every rank, each with its share of the environments, and the agent
wrapped in `DistributedDataParallel` over gloo, as tutorials turn one process into several. With
`--no-ddp` one flat all-reduce takes its place, as in CleanRL's loop for several GPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import deque
from multiprocessing import parent_process
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from textbook import Agent, Textbook
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

HOST = "127.0.0.1"
WARMUP = 5
"""Iterations before the clock starts."""


class Joined(nn.Module):
    """An agent's policy and value as one forward pass, which is where DDP hooks in."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Tensor, action: Tensor) -> Any:
        return self.agent.act(obs, action)


class DDP:
    """An agent that acts by itself and learns through `DistributedDataParallel`."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self.critic, self.parameters = agent, agent.critic, agent.parameters
        self._parallel = DistributedDataParallel(Joined(agent), gradient_as_bucket_view=True)

    def act(self, obs: Tensor, action: Tensor | None = None) -> Any:
        return self._agent.act(obs) if action is None else self._parallel(obs, action)


class ByHand:
    """An agent whose gradients are averaged in one flat all-reduce, once the last is there."""

    def __init__(self, agent: Agent) -> None:
        self.act, self.critic, self.parameters = agent.act, agent.critic, agent.parameters
        self._weights = list(agent.parameters())
        self._arrived = 0
        for weight in self._weights:
            dist.broadcast(weight.data, 0)
            weight.register_post_accumulate_grad_hook(self._count)

    def _count(self, weight: Tensor) -> None:
        self._arrived += 1
        if self._arrived == len(self._weights):
            self._arrived = 0
            self._average()

    def _average(self) -> None:
        gradients = [weight.grad for weight in self._weights]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class TextbookDDP(Textbook):
    """One rank of the loop, with its own environments; needs a process group."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        steps: int,
        epochs: int = 4,
        minibatches: int = 4,
        lr: float = 3e-4,
        ddp: bool = True,
    ) -> None:
        rank = dist.get_rank()
        torch.manual_seed(rank)
        super().__init__(env_id, num_envs, steps, epochs, minibatches)
        self.optimizer.param_groups[0]["lr"] = lr
        first = self.envs.reset(seed=rank * num_envs)[0]
        self.next_obs = torch.as_tensor(first, dtype=torch.float32)
        self.agent = DDP(self.agent) if ddp else ByHand(self.agent)


class Returns:
    """Mean return of the latest episodes of this rank."""

    def __init__(self, num_envs: int) -> None:
        self._running = torch.zeros(num_envs)
        self._recent: deque[float] = deque(maxlen=100)

    def add(self, reward: Tensor, done: Tensor) -> None:
        for row, ended in zip(reward, done.bool(), strict=True):
            self._running += row
            self._recent.extend(self._running[ended].tolist())
            self._running[ended] = 0.0

    def mean(self) -> float:
        return sum(self._recent) / max(1, len(self._recent))


def total(value: float) -> float:
    """Summed over the ranks, who all wait for it."""
    buffer = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(buffer)
    return buffer.item()


def measure(loop: TextbookDDP, iters: int, report_every: int = 0) -> float:
    """Run `iters` iterations on this rank, and some before; steps per second over all ranks.

    Every `report_every` iterations the first rank says how far it is.
    """
    for _ in range(WARMUP):
        loop.iteration()
    total(0)
    returns = Returns(loop.B)
    steps, began = 0, time.perf_counter()
    for number in range(1, iters + 1):
        steps += loop.iteration()
        if report_every and dist.get_rank() == 0:
            returns.add(loop.reward, loop.done)
            if number % report_every == 0:
                made = steps * dist.get_world_size()
                print(f"about {made:9,} steps  return {returns.mean():6.1f}", flush=True)
    return total(steps) / (time.perf_counter() - began)


def end_with_parent() -> None:
    """Let this process end when the one that started it does, in whatever way."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def on_loopback() -> None:
    """Let gloo talk within this host."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def run_rank(rank: int, ranks: int, port: int, options: dict[str, Any], answers: Any) -> None:
    """The life of one rank."""
    end_with_parent()
    on_loopback()
    torch.set_num_threads(1)
    store = dist.TCPStore(HOST, port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    loop = TextbookDDP(
        options["env_id"],
        options["num_envs"] // ranks,
        options["rollout_steps"],
        lr=options["lr"],
        ddp=options["ddp"],
    )
    found = measure(loop, options["iters"], options["report_every"])
    if rank == 0:
        answers.put(found)
    loop.close()
    dist.destroy_process_group()


def rate(
    *,
    ranks: int,
    num_envs: int,
    rollout_steps: int,
    iters: int,
    env_id: str = "CartPole-v1",
    lr: float = 3e-4,
    ddp: bool = True,
    report_every: int = 0,
) -> float:
    """Start the ranks, let them learn, and return steps per second over all of them.

    `num_envs` are those of all ranks.
    """
    options = {
        "env_id": env_id,
        "num_envs": num_envs,
        "rollout_steps": rollout_steps,
        "iters": iters,
        "lr": lr,
        "ddp": ddp,
        "report_every": report_every,
    }
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run_rank, (ranks, store.port, options, answers), nprocs=ranks)
    return answers.get()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--num-envs", type=int, default=8, help="over all ranks")
    parser.add_argument("--rollout-steps", type=int, default=128)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--report-every", type=int, default=10, help="iterations; 0: say nothing")
    parser.add_argument("--ddp", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    if options.num_envs % options.ranks:
        parser.error(f"--num-envs {options.num_envs} can't be shared by {options.ranks} ranks")
    print(f"{rate(**vars(options)):,.0f} steps/s")


if __name__ == "__main__":
    main()
