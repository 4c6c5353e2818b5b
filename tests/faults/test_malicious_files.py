"""Nothing that lies in a run directory is executed, leads out of it, or ends in a traceback.

Every case goes through `paceline resume` and `paceline eval`, as processes of their own.
"""

from __future__ import annotations

import io
import pickle
import shlex
import shutil
import unicodedata

import malicious
import numpy as np
import pytest
import yaml
from malicious import ARGUMENTS, CASES, COMMANDS, QUICK, SECRET, Job, Scene, alone

import paceline

FLAGS = shlex.split(
    "--total-iters 2 --save-every 1 --keep 1 --eval-episodes 2 --hidden 16 --num-envs 2"
)


@pytest.fixture
def scene(made, tmp_path):
    """A run with one checkpoint, and files outside of it that are none of its business."""
    folder = tmp_path / "scene"
    shutil.copytree(made.path, folder / "run", symlinks=True)
    shutil.copytree(made.path, folder / "outside" / "run", symlinks=True)
    (folder / "outside" / "secret.txt").write_text(f"password: {SECRET}\n")
    (folder / "outside" / "secret.json").write_text(f'{{"password": "{SECRET}"}}\n')
    yield Scene(folder)
    shutil.rmtree(folder)  # nobody else should stumble over its pipes


def contents(folder):
    """Everything below, by path: what it holds and when it was last written."""
    return {
        path.relative_to(folder): (
            path.read_bytes() if path.is_file() else None,
            path.lstat().st_mtime_ns,
        )
        for path in folder.rglob("*")
    }


def harmless(scene, run, arguments):
    """Run a command: it executes, reads and writes nothing outside, and says little, plainly."""
    before = contents(scene.outside)
    seen = run(Job(str(scene.folder), arguments))
    assert contents(scene.outside) == before, "something was written outside"
    said = seen.out + seen.err
    assert not scene.canary.exists(), "it was executed"
    assert seen.opened == [], "it was read"
    assert SECRET not in said and "password" not in said
    assert "Traceback" not in said, said[-3000:]
    assert seen.code in (0, 2), (seen.code, said[-3000:])
    assert len(seen.err.splitlines()) <= 20, said[-3000:]
    assert len(said) < 10_000, said[:300]
    odd = {letter for letter in said if unicodedata.category(letter) == "Cc"} - {"\n"}
    assert not odd, f"a terminal would obey {odd}"
    return seen


def check(scene, name, command, run):
    case = CASES[name]
    case.plant(scene)
    seen = harmless(scene, run, ARGUMENTS[command])
    if command in case.refused:
        assert seen.code == 2, seen
        assert any(name in seen.err for name in case.named), seen


@pytest.mark.sampled(7)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_a_planted_file_does_no_harm_and_is_refused_by_name(scene, forked, name, command):
    check(scene, name, command, forked)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_file_does_no_harm_to_a_fresh_process(scene, name, command):
    check(scene, name, command, alone)


def test_the_traps_work(scene):
    """Each payload does make the canary where it is loaded carelessly."""
    import torch

    load = {
        "pickle": pickle.loads,
        "text pickle": pickle.loads,
        "torch file": lambda data: torch.load(io.BytesIO(data), weights_only=False),
        "numpy file": lambda data: np.load(io.BytesIO(data), allow_pickle=True),
        "numpy archive": lambda data: np.load(io.BytesIO(data), allow_pickle=True)["weight"],
    }
    for kind, dump in malicious.PICKLES.items():
        load[kind](dump(malicious.Evil(scene.canary)))
        assert scene.canary.exists()
        scene.canary.unlink()
    yaml.unsafe_load(malicious.YAML["apply"].format(canary=scene.canary))
    assert scene.canary.exists()


def test_the_watch_works(scene, forked):
    """A file outside that is opened, through a link or by its name, is noticed."""
    (scene.folder / "c.yaml").symlink_to(scene.outside / "secret.txt")
    seen = forked(Job(str(scene.folder), ("train", "--config", "c.yaml")))
    assert seen.opened == ["open c.yaml"]
    assert seen.code == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", ["forked", "alone"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_run_is_whole_when_nothing_is_planted(scene, forked, command, run):
    seen = harmless(scene, alone if run == "alone" else forked, ARGUMENTS[command])
    # On a slow machine an evaluation says how far it is.
    complaints = [line for line in seen.err.splitlines() if not line.startswith("evaluating: ")]
    assert (seen.code, complaints) == (0, [])


def test_best_may_be_a_link_to_a_checkpoint_of_the_run(scene, forked):
    (scene.run / "checkpoints" / "best").symlink_to(scene.checkpoint.name)
    for arguments in (*ARGUMENTS.values(), ("eval", "--checkpoint", "run/checkpoints/best")):
        seen = forked(Job(str(scene.folder), arguments))
        assert seen.code == 0, seen


@pytest.mark.parametrize(
    "target", ["{outside}/run/checkpoints/{name}", "../../outside/run/checkpoints/{name}", "/etc"]
)
def test_best_may_not_lead_out_of_the_run(scene, forked, target):
    best = scene.run / "checkpoints" / "best"
    best.symlink_to(target.format(outside=scene.outside, name=scene.checkpoint.name))
    seen = harmless(scene, forked, ("eval", "--checkpoint", "run/checkpoints/best"))
    assert seen.code == 2
    assert "best" in seen.err


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{name} as {file}"
            for name in malicious.JSON
            for file in ("state.json", "manifest.json")
        ),
        *(f"weights.safetensors with {name}" for name in malicious.TENSORS | malicious.WEIGHTS),
        "state.json without network",
    ],
)
def test_python_refuses_planted_checkpoints_too(scene, name):
    CASES[name].plant(scene)
    for source in (scene.run, scene.checkpoint):
        with pytest.raises(paceline.BadInput) as refusal:
            paceline.load(source).act(np.zeros(4))
        assert any(name in str(refusal.value) for name in CASES[name].named)
