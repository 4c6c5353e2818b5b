"""PPO on Procgen as one writes it by hand: contiguous float32 tensors, torch for everything.

The same network, rollout, epochs, minibatches and loss as Paceline's preset; what acting computes
is kept, as there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

EPOCHS, MINIBATCHES, GAMMA, LAMBDA, CLIP = 3, 8, 0.999, 0.95, 0.2


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(functional.relu(self.one(functional.relu(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels in (16, 32, 32):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Block(channels), Block(channels)]
            before = channels
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(2048, 256), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.policy, self.value = nn.Linear(256, 15), nn.Linear(256, 1)

    def forward(self, obs: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        features = self.trunk(obs.permute(0, 3, 1, 2).contiguous() / 255.0)
        return torch.distributions.Categorical(logits=self.policy(features)), self.value(
            features
        ).squeeze(-1)


def plain_training(num_envs: int, steps: int, threads: int) -> Callable[[int], int]:
    """Trains for so many iterations; returns the steps made."""
    from paceline.envs.suites.procgen import import_procgen

    torch.manual_seed(0)
    options = {"distribution_mode": "easy", "num_levels": 200, "rand_seed": 0}
    env = import_procgen().ProcgenGym3Env(num_envs, "coinrun", num_threads=threads, **options)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4, eps=1e-5)
    obs = torch.zeros(steps, num_envs, 64, 64, 3)
    action = torch.zeros(steps, num_envs, dtype=torch.int64)
    logp, reward, done = (torch.zeros(steps, num_envs) for _ in range(3))
    value = torch.zeros(steps + 1, num_envs)

    def iteration() -> None:
        for t in range(steps):
            obs[t] = torch.from_numpy(env.observe()[1]["rgb"]).float()
            with torch.no_grad():
                policy, value[t] = net(obs[t])
                action[t] = policy.sample()
                logp[t] = policy.log_prob(action[t])
            env.act(action[t].numpy())
            gained, _, first = env.observe()
            reward[t], done[t] = torch.from_numpy(gained), torch.from_numpy(np.float32(first))
        with torch.no_grad():
            value[-1] = net(torch.from_numpy(env.observe()[1]["rgb"]).float())[1]
        advantage, running = torch.zeros_like(reward), torch.zeros(num_envs)
        for t in reversed(range(steps)):
            going = 1 - done[t]
            delta = reward[t] + GAMMA * value[t + 1] * going - value[t]
            advantage[t] = running = delta + GAMMA * LAMBDA * going * running
        returns = advantage + value[:-1]
        rows = [x.flatten(0, 1) for x in (obs, action, logp, advantage, returns)]
        for _ in range(EPOCHS):
            for index in torch.randperm(steps * num_envs).chunk(MINIBATCHES):
                learn(*(x[index] for x in rows))

    def learn(obs: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> None:
        policy, value = net(obs)
        ratio = (policy.log_prob(action) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gain = torch.min(ratio * advantage, clipped * advantage).mean()
        error = (value - target).square().mean()
        loss = -gain + 0.25 * error - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

    def train(iterations: int) -> int:
        for _ in range(iterations):
            iteration()
        return iterations * steps * num_envs

    return train
