"""Train from Python, look at every report, stop when it is good enough, then use the policy."""

import gymnasium as gym

import paceline

config = paceline.Config(
    algo="ppo", env_id="CartPole-v1", total_steps=100_000, output_dir="runs/own_loop"
)
for report in paceline.train(config):
    if report.recent_return is not None and report.recent_return > 450:
        print(f"good enough after {report.steps:,} steps")
        break  # ends the run cleanly; `paceline resume runs/own_loop` would go on

agent = paceline.load("runs/own_loop")
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=7)
total, done = 0.0, False
while not done:
    obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
    total += float(reward)
    done = terminated or truncated
print(f"one episode: {total}")
