"""`paceline eval`: evaluate a saved policy."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BadInput
from .commands import HELP

USAGE = """\
paceline eval RUN | --checkpoint DIR [--env-id ID] [--episodes N] [--sampled]

  RUN              a run directory: its newest checkpoint is used
  --checkpoint DIR one checkpoint, such as runs/x/checkpoints/best
  --env-id ID      another environment with the same spaces
  --episodes N     number of episodes, each with its own seed [100]
  --sampled        sample actions from the policy instead of taking the most likely one
"""
MAX_EPISODES = 10**6


def command(arguments: list[str]) -> int:
    if HELP & set(arguments):
        print(USAGE, end="")
        return 0
    from ..config.flags import Parser

    parser = Parser()
    parser.add_argument("run", nargs="?")
    parser.add_argument("--checkpoint")
    parser.add_argument("--env-id")
    parser.add_argument("--episodes", default="100")
    parser.add_argument("--sampled", action="store_true")
    given = parser.parse(arguments)
    if (given["run"] is None) == (given["checkpoint"] is None):
        raise BadInput("name a run, or a checkpoint with --checkpoint, and not both")
    episodes = _episodes(given["episodes"])
    from ..session import evaluate_saved

    source = Path(given["run"] or given["checkpoint"])
    result = evaluate_saved(source, episodes, given["env_id"], given["sampled"])
    print(
        f"{result.env_id}: mean {result.mean:.2f} ± {result.std:.2f} over {result.episodes} "
        f"episodes (95% interval {result.ci_low:.2f} to {result.ci_high:.2f})\n"
        f"median {result.median:.2f}, min {result.min:.2f}, max {result.max:.2f}, "
        f"mean length {result.length_mean:.1f}\ncheckpoint {result.checkpoint}"
    )
    for line in result.elsewhere_lines():
        print(line)
    return 0


def _episodes(text: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise BadInput(f"episodes is {text!r}: write a whole number, such as 100")
    if len(text) > len(str(MAX_EPISODES)) or int(text) > MAX_EPISODES:
        raise BadInput(f"episodes is {text[:40]}; write at most {MAX_EPISODES}")
    return int(text)
