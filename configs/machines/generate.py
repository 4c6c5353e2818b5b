"""Configurations for machines of several sizes, by the model of `paceline tune`.

    python configs/machines/generate.py

Every .yaml here is made by this from constants_ppo.json and constants_impala.json, which were
measured, each by

    paceline tune --algo ppo --env-id LunarLander-v3 --for-cpus 8 --output x.yaml \
        --save-constants constants_ppo.json

and so is what a model expects of machines that nobody has measured. With several processes an
update may have up to twice the rows of the preset, so that numbers of CPUs that are no power of two
can share them; rows of a minibatch stay what they are.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.tools.bench.tune_plan import parse_tune
from paceline.tools.bench.tune_text import config_text, proposal

CPUS = (4, 8, 16, 28, 32)
MODES = ("sequential", "parallel")
ROWS = {"ppo": 16 * 256, "impala": 32 * 32}
"""Of an update in the preset for LunarLander-v3."""
TIMES = 2
"""That many of them at most, with several processes."""


def arguments_of(algo: str, mode: str, cpus: int) -> list[str]:
    """Of the command that makes one file."""
    line = f"--algo {algo} --env-id LunarLander-v3 --for-cpus {cpus} --mode {mode}"
    if mode == "parallel":
        line += f" --max-batch {TIMES * ROWS[algo]}"
    line += f" --constants constants_{algo}.json --output {algo}_{mode}_{cpus}.yaml"
    return line.split()


def main() -> None:
    os.chdir(Path(__file__).parent)
    for algo in ROWS:
        for mode in MODES:
            for cpus in CPUS:
                arguments = arguments_of(algo, mode, cpus)
                plan = parse_tune([*arguments, "--overwrite"])
                assert plan.constants is not None
                chosen, sentences = proposal(plan, *plan.constants)
                text = config_text(plan, chosen, arguments, sentences)
                plan.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
