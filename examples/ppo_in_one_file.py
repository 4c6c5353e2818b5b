"""PPO in one file of plain PyTorch, to read beside the paper (Schulman et al. 2017).

    python examples/ppo_in_one_file.py

What Paceline computes, without what makes it fast: given the same rollout, `ppo_loss` has the same
gradient as the library's (a test holds it). T = steps of a rollout, B = environments.
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

STEPS, ENVS, EPOCHS, MINIBATCHES = 64, 8, 6, 2
GAMMA, LAMBDA, CLIP, VF_COEF, ENTROPY_COEF = 0.98, 0.9, 0.2, 0.5, 0.001
LEARNING_RATE, MAX_GRAD_NORM = 2e-3, 0.5


class ActorCritic(nn.Module):
    """A policy and a value function, each an MLP of its own."""

    def __init__(self, observation_size: int, actions: int, hidden: int = 64):
        super().__init__()
        self.policy = mlp(observation_size, hidden, actions, gain=0.01)
        self.value = mlp(observation_size, hidden, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.policy(obs)), self.value(obs).squeeze(-1)


def mlp(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@dataclass
class Rollout:
    """T steps of B environments."""

    obs: Tensor  # [T+1, B, ...]: one more than there are steps, to bootstrap from
    action: Tensor  # [T, B]
    logp: Tensor  # [T, B] under the policy that acted
    reward: Tensor  # [T, B]
    terminated: Tensor  # [T, B] the episode ended: there is no value after it
    truncated: Tensor  # [T, B] a time limit cut it off: the value of obs[t+1] counts
    valid: Tensor  # [T, B] False where the step only reset an environment


def collect(envs: gym.vector.VectorEnv, model: ActorCritic, obs, needs_reset) -> tuple:
    """Act for T steps. Gymnasium resets in the step after an episode's end (next-step autoreset),
    so obs[t+1] is always the true successor of obs[t]; the row that only resets is not valid."""
    rows = []
    for _ in range(STEPS):
        with torch.no_grad():
            policy, _ = model(torch.as_tensor(obs, dtype=torch.float32))
        action = policy.sample()
        next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        logp = policy.log_prob(action)
        rows.append((obs, action, logp, reward, terminated, truncated, ~needs_reset))
        obs, needs_reset = next_obs, terminated | truncated
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    columns[0] = np.concatenate([columns[0], obs[None]])
    tensors = [torch.as_tensor(column) for column in columns]
    tensors[0], tensors[3] = tensors[0].float(), tensors[3].float()
    return Rollout(*tensors), obs, needs_reset


def advantages_and_returns(rollout: Rollout, value: Tensor) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16); `value` is [T+1, B].

    δ[t] = r[t] + γ·(1 − terminated[t])·V[t+1] − V[t]
    Â[t] = δ[t] + γ·λ·(1 − done[t])·Â[t+1]
    """
    done = rollout.terminated | rollout.truncated
    delta = rollout.reward + GAMMA * ~rollout.terminated * value[1:] - value[:-1]
    advantage = torch.zeros_like(delta)
    later = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        later = delta[t] + GAMMA * LAMBDA * ~done[t] * later
        advantage[t] = later
    return advantage, advantage + value[:-1]


def batch_of(rollout: Rollout, model: ActorCritic) -> tuple[Tensor, ...]:
    """All valid rows as (obs, action, logp, advantage, returns); advantages have mean 0, std 1."""
    with torch.no_grad():
        _, value = model(rollout.obs)
    advantage, returns = advantages_and_returns(rollout, value)
    rows = rollout.obs[:-1], rollout.action, rollout.logp, advantage, returns
    obs, action, logp, advantage, returns = (row[rollout.valid] for row in rows)
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    return obs, action, logp, advantage, returns


def ppo_loss(model: ActorCritic, obs, action, logp, advantage, returns) -> Tensor:
    """−min(ρ·Â, clip(ρ, 1 ± ε)·Â) + c₁·½(V − R)² − c₂·entropy (Schulman et al. 2017, eq. 9)."""
    policy, value = model(obs)
    ratio = (policy.log_prob(action) - logp).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_loss = 0.5 * (value - returns).square().mean()
    return policy_loss + VF_COEF * value_loss - ENTROPY_COEF * policy.entropy().mean()


def update(model: ActorCritic, optimizer: torch.optim.Optimizer, rollout: Rollout) -> None:
    """Several epochs of minibatches on one rollout."""
    batch = batch_of(rollout, model)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch[0])).tensor_split(MINIBATCHES):
            loss = ppo_loss(model, *(part[rows] for part in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()


def train(env_id: str = "CartPole-v1", iterations: int = 200, seed: int = 0) -> ActorCritic:
    torch.manual_seed(seed)
    envs = gym.make_vec(env_id, num_envs=ENVS, vectorization_mode="sync")
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    space = envs.single_observation_space
    model = ActorCritic(space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=1e-5)
    obs, _ = envs.reset(seed=seed)
    needs_reset = np.zeros(ENVS, np.bool_)
    for iteration in range(1, iterations + 1):
        rollout, obs, needs_reset = collect(envs, model, obs, needs_reset)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - (iteration - 1) / iterations)
        update(model, optimizer, rollout)
        if iteration % 20 == 0 and envs.return_queue:
            recent = sum(envs.return_queue) / len(envs.return_queue)
            print(f"{iteration * STEPS * ENVS:>8,} steps, return {recent:.1f}")
    envs.close()
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)  # networks this small only lose by more
    train()
