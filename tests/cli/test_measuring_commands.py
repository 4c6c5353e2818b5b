"""What `scale`, `bench` and `tune` have in common: help, refusals, failures, interruptions."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from measuring import FAILURE, write_failing

from paceline.tools.bench.runs import RunFailed

pytestmark = pytest.mark.timeout(110)

COMMANDS = ("scale", "bench", "tune")
CONSTANTS = Path(__file__).resolve().parents[2] / "configs" / "machines" / "constants_ppo.json"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_of_the_command(name):
    plan = importlib.import_module(f"paceline.tools.bench.{name}_plan")
    usage = importlib.import_module(f"paceline.tools.bench.{name}").USAGE
    assert all(flag in usage for flag in plan.OPTIONS)


def test_help_imports_neither_torch_nor_matplotlib():
    code = "import sys\n"
    for name in ("scale", "tune"):
        code += f"from paceline.tools.bench.{name} import command\ncommand(['--help'])\n"
    code += "print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False False"


# Refusals, before anything runs: the words that the message has to hold.

REFUSED = {
    "scale": ("--ranks 1,2", "--num-workers 1,2"),
    "scale --ranks 1,2 --num-workers 1,2": ("either", "--ranks", "--num-workers"),
    "scale --num-workers 1,two": ("--num-workers", "'1,two'", "1,2,4"),
    "scale --num-workers auto": ("'auto'", "whole numbers"),
    "scale --num-workers 0,1 --predict some": ("--predict", "'some'", "1,2,4"),
    "scale --num-workers 0,1 --predict 0": ("--predict", "4,8,16"),
    "scale --num-workers 0,1 --predict 3 --num-envs 8": ("3 workers", "--num-envs 9"),
    "scale --ranks 0,1": ("--ranks", "'0,1'", "1,2"),
    "scale --num-workers 1,3 --num-envs 8": ("num_envs 8", "3 workers", "--num-envs 9"),
    "scale --num-workers 2,3 --num-envs 8": ("3 workers", "--num-envs 12"),
    "scale --num-workers 1 --total-steps 1000": ("--total-steps", "'1000'", "--iters", "--seconds"),
    "scale --num-workers 1 --duration 10s": ("--duration", "'10s'", "--seconds"),
    "scale --num-workers 1 --stop-at-return 9": ("--stop-at-return", "'9'", "--target-return"),
    "scale --num-workers 1 --log-jsonl x": ("--log-jsonl", "logs/"),
    "scale --num-workers 1 --num-envs 4 --num-envs-per-worker 2": ("--num-envs", "write one"),
    "scale --num-workers 1 --num-envs-per-worker few": ("num_envs_per_worker", "'few'"),
    "scale --ranks 1,2 --num-envs-per-worker 4": ("num_envs_per_worker is 4", "no workers"),
    "scale --ranks 1,2 --sync local": ("'local'", "ranks is 2"),
    "scale --algo a3c --ranks 1,2": ("a3c", "--num-workers"),
    "scale --num-workers 1 --repeat 3": ("--repeat", "--repeats"),
    "scale --num-workers 1 --repeats 0": ("--repeats", "'0'", "from 1"),
    "scale --num-workers 1 --iters 2.5": ("--iters", "'2.5'", "whole number"),
    "scale --num-workers 1 --seconds 0": ("--seconds", "'0'", "number"),
    "scale --num-workers 1 --target-return nan": ("--target-return", "'nan'", "number"),
    "scale --num-workers 1 --env-id Nope-v0": ("Nope",),
    "scale --num-workers 1 --config missing.yaml": ("missing.yaml", "no such file"),
    "scale --num-workers 1 --sampler serial": ("'serial'", "num_workers is 1"),
    "scale --num-workers 1 stray": ("stray", "no such argument"),
    "scale --num-workers 1 --output-dir full": ("full", "not empty", "notes.txt", "--overwrite"),
    "scale --num-workers 1 --output-dir full/notes.txt": ("full/notes.txt", "can't be"),
    "bench --algos ppo,sarsa": ("--algos", "'sarsa'", "ppo"),
    "bench --algos ,": ("--algos", "','"),
    "bench --modes fast": ("--modes", "'fast'", "sequential"),
    "bench --seeds 1001": ("--seeds", "'1001'", "to 1,000"),
    "bench --first-seed -1": ("--first-seed",),
    "bench --algo ppo": ("--algo", "--algos"),
    "bench --seed 3": ("--seed", "--seeds"),
    "bench --target-return nan": ("--target-return", "'nan'"),
    "bench --duration 10": ("duration", "10s"),
    "bench --env-id Nope-v0": ("Nope",),
    "bench --num-workers few": ("num_workers", "'few'", "whole number"),
    "bench --algos a3c --modes ranks": ("a3c", "no such form"),
    "bench --algos ppo --modes parallel --num-envs 3 --num-workers 2": ("num_envs", "3"),
    "bench --resume none": ("none", "holds no benchmark"),
    "bench --resume full": ("full", "holds no benchmark"),
    "bench --resume full --seeds 3": ("--resume", "leave"),
    "bench --resume broken": ("broken", "bench.json"),
    "bench --output-dir full": ("full", "not empty", "notes.txt", "choose another"),
    "bench --output-dir full --overwrite": ("full", "notes.txt", "no benchmark; choose another\n"),
    "bench --config logs.yaml": ("--log-jsonl", "'mine.jsonl'", "logs.yaml", "bench sets it"),
    "bench --config init.yaml": ("--init-from", "'runs/mine'", "init.yaml"),
    "bench --num-envs 4 --num-envs-per-worker 2": ("--num-envs-per-worker", "write one"),
    "bench --output-dir broken": ("broken", "another benchmark"),
    "bench --output-dir full/notes.txt": ("full/notes.txt", "can't be"),
    "tune --num-workers 2": ("--num-workers", "'2'", "tune sets it", "--mode"),
    "tune --threads 2": ("--threads", "'2'", "tune sets it"),
    "tune --output-dir runs/x": ("--output-dir", "'runs/x'", "--output"),
    "tune --log-jsonl x": ("--log-jsonl", "leave it out"),
    "tune --time 10": ("--time", "'10'", "10s"),
    "tune --max-batch 100": ("--max-batch", "100", "512 rows", "8 envs × 64 steps"),
    "tune --min-rollout-steps 512": ("--min-rollout-steps", "512", "64 steps"),
    "tune --mode fast": ("--mode", "'fast'", "sequential"),
    "tune --mode sequential --algo a3c": ("sequential", "a3c", "--algo a2c"),
    "tune --mode parallel --for-cpus 1": ("parallel", "one CPU"),
    "tune --mode parallel --num-envs 1 --rollout-steps 25 --minibatches 1": ("25 rows", "--max-b"),
    "tune --for-cpus 0": ("--for-cpus", "'0'", "from 1"),
    "tune --constants mine.json": ("--constants", "mine.json", "--for-cpus"),
    "tune --for-cpus 4 --constants missing.json": ("missing.json", "no such file"),
    "tune --for-cpus 4 --constants mine.json": ("mine.json", "no constants", "--save-constants"),
    "tune --for-cpus 4 --constants other.json": ("other.json", "'Other-v0'", "'CartPole-v1'"),
    "tune --output mine.yaml": ("mine.yaml", "exists", "--overwrite"),
    "tune --output mine.txt": ("mine.txt", ".yaml"),
    "tune --output nowhere/new.yaml": ("nowhere", "no directory"),
    "tune --save-constants mine.json": ("mine.json", "exists", "--overwrite"),
    "tune --save-constants new.yaml": ("new.yaml", ".json"),
    "tune --env-id Nope-v0": ("Nope",),
    "tune --tiem 10s": ("--tiem", "--time"),
}
FILES = {
    "full/notes.txt": "mine",
    "broken/bench.json": '{"argu',
    "logs.yaml": "log_jsonl: mine.jsonl\n",
    "init.yaml": "init_from: runs/mine\n",
    "mine.yaml": "algo: ppo\n",
    "mine.json": "{}\n",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_can_not_be_run_is_refused_before_anything_is(command, shell, arguments):
    constants = json.loads(CONSTANTS.read_text()) | {"env_id": "Other-v0"}
    for name, text in (FILES | {"other.json": json.dumps(constants)}).items():
        (shell.folder / name).parent.mkdir(exist_ok=True)
        (shell.folder / name).write_text(text)
    before = sorted(path for path in shell.folder.rglob("*") if path.name != ".lock")
    ended = command(*arguments.split())
    assert ended.code == 2 and not ended.out and "Traceback" not in ended.err
    assert ended.err.startswith("paceline: ") and len(ended.err.splitlines()) <= 3
    for word in REFUSED[arguments]:
        assert word in ended.err, f"{word!r} is not in: {ended.err}"
    assert sorted(path for path in shell.folder.rglob("*") if path.name != ".lock") == before


# Failures of a run.


@pytest.mark.parametrize(
    "arguments",
    [
        "scale --num-workers 0,1 --repeats 1 --warmup-iters 1 --iters 4 --output-dir out",
        pytest.param("tune --time 2s", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_fails_ends_the_command_with_its_error_and_exit_code(shell, arguments):
    failing = write_failing(shell.folder)
    ended = shell(*arguments.split(), *failing, "--hidden", "16", "--num-envs", 4)
    assert ended.code == 3, ended
    assert "a training run exited with 3" in ended.err and FAILURE in ended.err
    assert "Traceback" not in ended.err
    assert not list(shell.folder.glob("out/.run-*")) and not list(shell.folder.glob("*.yaml"))
    assert not list((shell.folder / "tmp").iterdir())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["warning: slow", "paceline: out of rope", "see above"], "out of rope"),
        (["Segmentation fault"], "a training run exited with 3"),
        ([], "a training run exited with 3"),
    ],
    ids=["an error message", "a crash", "nothing"],
)
def test_the_reason_of_a_failure_is_the_line_of_the_error_message(tmp_path, lines, reason):
    (tmp_path / "log").write_text("\n".join(lines))
    assert RunFailed(tmp_path / "log", 3).reason == reason


# Interruptions. That no process stays is checked by a fixture of every test here.

LONG = {
    "scale": "scale --num-workers 0,1 --repeats 3 --warmup-iters 1 --iters 40 --output-dir out",
    "bench": "bench --algos ppo --modes parallel --num-workers 2 --seeds 1 --duration 10m "
    "--hidden 16 --num-envs 4 --output-dir out",
    "tune": "tune --env-id CartPole-v1 --time 5m",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_the_runs_and_keeps_what_is_whole(shell, command, until, name, kind):
    process = shell.start(*LONG[name].split())
    out, scratch = shell.folder / "out", shell.folder / "tmp"
    if name == "scale":
        until(lambda: (out / "per_run.csv").exists() or process.poll() is not None)
    until(lambda: list(shell.folder.rglob("metrics.jsonl")) or process.poll() is not None)
    if name == "bench":  # a directory belongs to one benchmark at a time
        refused = command("bench", "--resume", "out")
        assert refused.code == 2 and "another process" in refused.err
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and "interrupted" in err and "Traceback" not in err
    if name == "scale":
        assert len((out / "per_run.csv").read_text().splitlines()) >= 2
        assert not list(out.glob(".run-*"))
    elif name == "bench":
        assert "`paceline bench --resume out`" in err and not (out / "report.html").exists()
        assert list(out.glob("runs/ppo-parallel/seed-0/checkpoints/0*")), "it was not saved"
    else:
        assert not list(scratch.iterdir()) and not list(shell.folder.glob("*.yaml"))


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its parent on Linux alone")
def test_a_killed_command_takes_its_runs_with_it(shell, until):
    options = ("--repeats", 1, "--iters", 100_000, "--output-dir", "out")
    process = shell.start("scale", "--num-workers", "1", *options)
    runs = (shell.folder / "out").glob
    until(lambda: list(runs(".run-*/*/metrics.jsonl")) or process.poll() is not None)
    process.kill()
    process.communicate(timeout=10)
