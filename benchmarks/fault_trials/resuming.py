"""`resume`: runs that are killed and resumed, against the same runs undisturbed."""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from .harness import Case, Kept, Trial, Wrong, differs, wait_for

SMALL = "--preset none --num-envs 4 --rollout-steps 32 --total-iters 24 --eval-episodes 2"
SHORT = f"{SMALL} --save-every 256 --log-every 1 --track none --output-dir run"
EAGER = f"{SHORT} --compile off"
FEW = EAGER.replace("--total-iters 24", "--total-iters 10")
WORLD = "--env-id fault_trials.worlds"
ATARI = f"{FEW} --env.time-limit 80 --encoder"
NORMAL = "--normalize-obs true --normalize-return true"

RUNS = {
    # name: flags; `Paced` makes quick ones last
    "ppo": f"{EAGER} --env-id CartPole-v1 paced",
    "a2c": f"{EAGER} --algo a2c --env-id CartPole-v1 paced",
    "impala": f"{EAGER} --algo impala --env-id CartPole-v1 paced",
    "ppo, normalized, Pendulum": f"{EAGER} --env-id Pendulum-v1 {NORMAL} paced",
    "a2c, normalized, MountainCarContinuous": f"{EAGER} --algo a2c {NORMAL} "
    "--env-id MountainCarContinuous-v0 paced",
    "impala, normalized observations": f"{EAGER} --algo impala --env-id Acrobot-v1 "
    "--normalize-obs true paced",
    "ppo, workers": f"{EAGER} --env-id CartPole-v1 --num-workers 2 paced",
    "a2c, workers, normalized": f"{EAGER} --algo a2c --env-id Pendulum-v1 {NORMAL} "
    "--num-workers 2 paced",
    "impala, workers in step": f"{EAGER} --algo impala --env-id CartPole-v1 --num-workers 2 "
    "--sampler workers paced",
    "ppo, ranks": f"{EAGER} --env-id CartPole-v1 --ranks 2 paced",
    "ppo, ranks, normalized": f"{EAGER} --env-id Pendulum-v1 --ranks 2 {NORMAL} paced",
    "a2c, ranks": f"{EAGER} --algo a2c --env-id CartPole-v1 --ranks 2 paced",
    "impala, ranks": f"{EAGER} --algo impala --env-id CartPole-v1 --ranks 2 --sampler serial paced",
    "ppo, ranks of workers": f"{EAGER} --env-id CartPole-v1 --ranks 2 --num-workers 2 paced",
    "ppo, compiled": f"{SHORT} --compile on --env-id CartPole-v1 paced",
    "a2c, compiled, workers": f"{SHORT} --algo a2c --compile on --env-id CartPole-v1 "
    "--num-workers 2 paced",
    "impala, compiled": f"{SHORT} --algo impala --compile on --env-id CartPole-v1 paced",
    "ppo, compiled, normalized": f"{SHORT} --compile on --env-id Pendulum-v1 {NORMAL} paced",
    "ppo, compiled, ranks": f"{SHORT} --compile on --env-id CartPole-v1 --ranks 2 paced",
    "ppo, masks": f"{EAGER} {WORLD}:MaskedPole-v0 paced",
    "a2c, masks, workers": f"{EAGER} --algo a2c {WORLD}:MaskedPole-v0 --num-workers 2 paced",
    "ppo, images": f"{FEW} {WORLD}:PicturePole-v0 --encoder small paced",
    "ppo, images, stacked": f"{FEW} {WORLD}:PicturePole-v0 --encoder mlp --env.frame-stack 4 paced",
    "ppo, stacked": f"{EAGER} --env-id CartPole-v1 --env.frame-stack 4 paced",
    "ppo, KL stop, annealed": f"{EAGER} --env-id CartPole-v1 --ppo.target-kl 0.01 --lr-schedule "
    "linear --ppo.clip-schedule linear paced",
    "ppo, best kept": f"{EAGER} --env-id CartPole-v1 --eval-every 384 --keep 1 paced",
    "ppo, log_jsonl": f"{EAGER} --env-id CartPole-v1 --log-jsonl copy.jsonl paced",
    "ppo, FrozenLake": f"{EAGER} --env-id FrozenLake-v1 paced",
    "a2c, Taxi": f"{EAGER} --algo a2c --env-id Taxi-v4 paced",
    "ppo, Blackjack": f"{EAGER} --env-id Blackjack-v1 paced",
    "ppo, CliffWalking": f"{EAGER} --env-id CliffWalkingSlippery-v1 paced",
    "ppo, LunarLander": f"{EAGER} --env-id LunarLander-v3 paced",
    "ppo, LunarLanderContinuous, normalized": f"{EAGER} --env-id LunarLanderContinuous-v3 {NORMAL} "
    "--num-workers 2 paced",
    "a2c, BipedalWalker": f"{EAGER} --algo a2c --env-id BipedalWalker-v3 paced",
    "ppo, HalfCheetah, normalized": f"{EAGER} --env-id HalfCheetah-v5 {NORMAL} paced",
    "ppo, Hopper, workers": f"{EAGER} --env-id Hopper-v5 --num-workers 2 {NORMAL} paced",
    "impala, Ant": f"{EAGER} --algo impala --env-id Ant-v5 paced",
    "ppo, Humanoid, ranks": f"{EAGER} --env-id Humanoid-v5 --ranks 2 {NORMAL} paced",
    "ppo, Swimmer": f"{EAGER} --env-id Swimmer-v5 paced",
    "ppo, toy:memory": f"{EAGER} --env-id toy:memory paced",
    "ppo, toy:chain": f"{EAGER} --env-id toy:chain paced",
    "ppo, minigrid:DoorKey-5x5": f"{FEW} --env-id minigrid:DoorKey-5x5 paced",
    "a2c, minigrid, workers": f"{FEW} --algo a2c --env-id minigrid:Empty-5x5 --num-workers 2 paced",
    "ppo, procgen:coinrun": f"{FEW} --env-id procgen:coinrun --encoder small",
    "ppo, procgen:fruitbot, workers": f"{FEW} --env-id procgen:fruitbot --encoder small "
    "--num-workers 2",
    "a2c, procgen:maze, ranks": f"{FEW} --algo a2c --env-id procgen:maze --encoder small --ranks 2",
    "ppo, procgen:bigfish, normalized return": f"{FEW} --env-id procgen:bigfish --encoder mlp "
    "--normalize-return true",
    "ppo, atari:Breakout": f"{ATARI} small --env-id atari:Breakout --clip-reward true",
    "ppo, atari:Pong, workers": f"{ATARI} small --env-id atari:Pong --num-workers 2",
    "a2c, atari, sticky, stacked": f"{ATARI} mlp --algo a2c --env-id atari:SpaceInvaders "
    "--env.kwargs '{\"repeat_action_probability\": 0.25}'",
    "impala, atari": f"{ATARI} small --algo impala --env-id atari:Breakout",
    **{
        f"memory, {cell}{how}": f"{EAGER} --env-id CartPole-v1 --env.mask-velocity --memory {cell} "
        f"--memory-size 16 --memory-segment 16 {flags}paced"
        for cell in ("lstm", "gru", "mingru")
        for how, flags in {
            "": "",
            ", workers": "--num-workers 2 ",
            ", shared": "--shared-trunk true ",
            ", shared, workers": "--shared-trunk true --num-workers 2 ",
        }.items()
    },
    "memory, ranks": f"{EAGER} --env-id CartPole-v1 --memory lstm --ranks 2 paced",
    "memory, impala, shown actions": f"{EAGER} --algo impala --env-id CartPole-v1 --memory gru "
    "--memory-inputs action,reward paced",
    "memory, images": f"{FEW} {WORLD}:PicturePole-v0 --encoder small --memory gru paced",
    "memory, mingru, compiled, normalized": f"{SHORT} --compile on --env-id Pendulum-v1 {NORMAL} "
    "--memory mingru paced",
    "ppo, vector CartPole": f"{EAGER} --env-id CartPole-v1 --env.vector true --num-envs 16",
    "a2c, vector CartPole, workers": f"{EAGER} --algo a2c --env-id CartPole-v1 --env.vector true "
    "--num-envs 16 --num-workers 2",
    "ppo, vector CartPole, ranks": f"{EAGER} --env-id CartPole-v1 --env.vector true --num-envs 16 "
    "--ranks 2",
}
"""Everything that is promised to resume exactly."""
PACE = "0.001"


def measure(options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """`known` is what was found before: its runs are kept as long as they are declared."""
    source = random.Random(options.seed)
    declared = tuple(_flags(name) for name in RUNS)
    rows = {r["flags"]: r for r in known.get("rows", []) if r["flags"].startswith(declared)}
    chosen = [name for name in RUNS if not options.only or options.only in name]
    source.shuffle(chosen)
    chosen = (chosen * (1 + options.trials // max(1, len(chosen))))[: options.trials]
    tasks = [(name, source.randrange(2**31)) for name in chosen]
    with (
        tempfile.TemporaryDirectory(prefix="faults-kept-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        kept = Kept(Path(folder))
        for future in as_completed([pool.submit(_one, *task, kept) for task in tasks]):
            row = future.result()
            rows[row["flags"]] = row
            options.keep(_summed([*rows.values()]))
            shown = "exact" if row["exact"] else f"NOT exact: {row['difference']}"
            print(f"{row['name']}: {row['interrupted']}: {shown}", flush=True)
    found = _summed([*rows.values()])
    print(f"{found['exact']} of {found['trials']} end as undisturbed, byte for byte")
    return found


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    exact = sum(row["exact"] for row in rows)
    return {"trials": len(rows), "exact": exact, "rows": sorted(rows, key=lambda row: row["name"])}


def _flags(name: str) -> str:
    return RUNS[name].replace(" paced", " --env.wrappers fault_trials.worlds:Paced")


def _one(name: str, seed: int, kept: Kept) -> dict[str, Any]:
    source = random.Random(seed)
    flags = f"{_flags(name)} --seed {seed % 1000}"
    row: dict[str, Any] = {"name": name, "flags": flags, "interrupted": [], "exact": False}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        pace = {"FAULT_PACE": PACE}
        case = Case(Trial("resume", name, f"train {flags}", variables=pace), Path(folder), kept)
        try:
            began = time.monotonic()
            code, said = case.also(f"train {flags}", 300.0, **pace)
            lasted = time.monotonic() - began
            if code:
                raise Wrong("broken trial", f"undisturbed: exit code {code}: {said[-300:]}")
            whole = case.here / "whole"
            case.run.rename(whole)
            (case.here / "copy.jsonl").unlink(missing_ok=True)
            row["interrupted"], row["difference"] = _interrupted(case, source, lasted, whole)
        except Wrong as wrong:
            row["difference"] = wrong.text
        finally:
            case.clean()
            shutil.rmtree(case.here / "run", ignore_errors=True)
    row["exact"] = row["difference"] == ""
    return row


def _interrupted(
    case: Case, source: random.Random, lasted: float, whole: Path
) -> tuple[list[str], str]:
    """Kill it one to three times, let it end, and compare."""
    happened: list[str] = []
    args = case.trial.args
    for _ in range(source.choice((2, 2, 3, 4))):
        kind = source.choice(("SIGKILL", "SIGKILL", "SIGTERM"))
        moment = source.uniform(0.3, 0.95) * lasted
        again = Case.__new__(Case)
        again.__dict__ |= case.__dict__
        again.trial = Trial("resume", "", args, variables=case.trial.variables)
        again.start()
        wait_for(lambda again=again: again.process.poll() is not None, moment)
        if again.process.poll() is None:
            again.process.send_signal(getattr(signal, kind))
            again.process.wait(60)
            happened.append(f"{kind} after {moment:.1f} s at report {case.reports()}")
        wait_for(lambda: not case.marked(), 20)
        if not happened and (case.run / "eval.json").exists():  # it was over before
            shutil.rmtree(case.run)
            lasted /= 2
        elif (case.run / "config.yaml").exists():
            args = "resume run"
        elif case.run.exists():
            shutil.rmtree(case.run)
        lasted = max(lasted * 0.8, 1.0)
    if args != "resume run" or not (case.run / "eval.json").exists():
        code, said = case.also(str(args), 300.0)
        if code:
            return happened, f"{args}: exit code {code}: {said[-300:]}"
        if "did not replay" in said:
            return happened, f"did not replay: {said[-300:]}"
    difference = differs(case.run, whole)
    if not difference and "--log-jsonl" in shlex.split(str(case.trial.args)):
        copy = (case.here / "copy.jsonl").read_text()
        if copy != (case.run / "metrics.jsonl").read_text():
            difference = "log_jsonl differs from the metrics"
    return happened, difference
