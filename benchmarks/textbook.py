"""The textbook PPO loop, as tutorials write it: the yardstick of `ppo_speed.py`.

SyncVectorEnv, `torch.distributions.Categorical`, per-tensor Adam and clipping; the same
hyper-parameters, network and next-step bookkeeping as ours. T = steps, B = environments.
"""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, obs: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            layer(obs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )
        self.critic = nn.Sequential(
            layer(obs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )

    def act(self, obs, action=None):
        distribution = Categorical(logits=self.actor(obs))
        if action is None:
            action = distribution.sample()
        value = self.critic(obs).squeeze(-1)
        return action, distribution.log_prob(action), distribution.entropy(), value


class Textbook:
    """One object per measurement; `iteration()` returns the environment steps it made."""

    def __init__(
        self, env_id: str, num_envs: int, steps: int, epochs: int, minibatches: int
    ) -> None:
        self.T, self.B, self.epochs, self.minibatches = steps, num_envs, epochs, minibatches
        self.envs = gym.vector.SyncVectorEnv([lambda: gym.make(env_id) for _ in range(num_envs)])
        size = self.envs.single_observation_space.shape[0]
        self.agent = Agent(size, self.envs.single_action_space.n)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=3e-4, eps=1e-5)
        self.obs = torch.zeros(steps, num_envs, size)
        self.action = torch.zeros(steps, num_envs, dtype=torch.int64)
        self.logp, self.reward, self.value = (torch.zeros(steps, num_envs) for _ in range(3))
        self.terminated, self.done, self.reset_row = (
            torch.zeros(steps, num_envs) for _ in range(3)
        )
        self.next_obs = torch.as_tensor(self.envs.reset(seed=0)[0], dtype=torch.float32)
        self.previous = torch.zeros(num_envs)
        self.t_rollout = self.t_learn = 0.0

    def iteration(self) -> int:
        began = time.perf_counter()
        self.rollout()
        collected = time.perf_counter()
        self.learn()
        self.t_rollout += collected - began
        self.t_learn += time.perf_counter() - collected
        return int((1 - self.reset_row).sum())

    def rollout(self) -> None:
        for t in range(self.T):
            self.obs[t], self.reset_row[t] = self.next_obs, self.previous
            with torch.no_grad():
                action, logp, _, value = self.agent.act(self.next_obs)
            self.action[t], self.logp[t], self.value[t] = action, logp, value
            obs, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            self.reward[t] = torch.as_tensor(reward, dtype=torch.float32)
            self.terminated[t] = torch.as_tensor(terminated, dtype=torch.float32)
            self.done[t] = torch.as_tensor(
                np.logical_or(terminated, truncated), dtype=torch.float32
            )
            self.next_obs = torch.as_tensor(obs, dtype=torch.float32)
            self.previous = self.done[t]

    def learn(self) -> None:
        with torch.no_grad():
            next_value = self.agent.critic(self.next_obs).squeeze(-1)
            advantage, later = torch.zeros_like(self.reward), 0.0
            for t in reversed(range(self.T)):
                delta = (
                    self.reward[t] + 0.99 * (1 - self.terminated[t]) * next_value - self.value[t]
                )
                later = delta + 0.99 * 0.95 * (1 - self.done[t]) * later
                advantage[t], next_value = later, self.value[t]
            returns = advantage + self.value
        keep = self.reset_row.flatten() == 0
        obs, action = self.obs.flatten(0, 1)[keep], self.action.flatten()[keep]
        logp, advantage = self.logp.flatten()[keep], advantage.flatten()[keep]
        returns = returns.flatten()[keep]
        rows = len(obs)
        for _ in range(self.epochs):
            order = torch.randperm(rows)
            for index in order.tensor_split(self.minibatches):
                _, new_logp, entropy, value = self.agent.act(obs[index], action[index])
                log_ratio = new_logp - logp[index]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - log_ratio).mean().item()
                    ((ratio - 1).abs() > 0.2).float().mean().item()
                a = advantage[index]
                a = (a - a.mean()) / (a.std() + 1e-8)
                policy_loss = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
                value_loss = 0.5 * (value - returns[index]).pow(2).mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
                self.optimizer.step()

    def close(self) -> None:
        self.envs.close()
