"""Train on an environment of your own: any callable that returns a Gymnasium environment."""

import gymnasium as gym
import numpy as np

import paceline


class Thermostat(gym.Env):
    """Keep a room at 20 degrees; the action is how much to heat."""

    observation_space = gym.spaces.Box(-50, 50, (2,), np.float32)
    action_space = gym.spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.outside = self.np_random.uniform(10, 30), self.np_random.uniform(-5, 10)
        return np.array([self.room, self.outside], np.float32), {}

    def step(self, action):
        self.room += 2.0 * float(action[0]) - 0.05 * (self.room - self.outside)
        reward = -abs(self.room - 20) / 10
        return np.array([self.room, self.outside], np.float32), reward, False, False, {}


config = paceline.Config(
    env_id=Thermostat,
    env={"time_limit": 100},  # cut off, not ended: the value of the last state still counts
    normalize_obs=True,
    total_steps=60_000,
    lr=1e-3,
    output_dir="runs/thermostat",
)
*_, last = paceline.train(config)
print(f"mean return of the last 100 episodes: {last.recent_return:.2f}")
