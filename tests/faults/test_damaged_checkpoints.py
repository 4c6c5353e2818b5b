"""A damaged checkpoint is noticed, named and passed over; what it holds is never executed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import shlex
import shutil

import numpy as np
import pytest

import paceline
from paceline import checkpoint
from paceline.errors import BadInput

FILES = ("weights.safetensors", "state.safetensors", "state.json", "manifest.json")
FLAGS = shlex.split(
    "--total-iters 4 --save-every 1 --keep 4 --eval-episodes 2 --hidden 16 --num-envs 2"
)


@pytest.fixture(scope="module")
def made(shell_in, tmp_path_factory):
    """A whole run with four checkpoints."""
    shell = shell_in(tmp_path_factory.mktemp("made"))
    return shell.train_here("run", *FLAGS)


@pytest.fixture
def run(made, shell):
    """A copy of it to damage."""
    shutil.copytree(made.path, shell.folder / "run", symlinks=True)
    return shell.run("run")


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def damages(name, whole):
    """Every kind of truncation and single flipped bits: (what was done, content)."""
    seed = int.from_bytes(os.urandom(8), "big")
    print(f"{name}: bits from random.Random({seed})")
    source, size = random.Random(seed), len(whole)
    offsets = {0, 1, 7, 8, 9, size - 2, size - 1} | {size * n // 24 for n in range(24)}
    for length in sorted(offset for offset in offsets if 0 <= offset < size):
        yield f"cut to {length} of {size}", whole[:length]
    for _ in range(25):
        at, bit = source.randrange(size), source.randrange(8)
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        yield f"bit {bit} of byte {at}", bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_a_file_is_noticed_and_the_previous_checkpoint_used(run, name):
    *_, previous, last = run.checkpoints()
    whole = (last / name).read_bytes()
    cases = 0
    for done, content in damages(name, whole):
        (last / name).write_bytes(content)
        path, found, problems = checkpoint.newest(run.path / "checkpoints")
        assert path == previous, done
        assert found.facts["iter"] == int(previous.name)
        assert len(problems) == 1, done
        assert str(last) in problems[0]
        # A changed sum in the manifest can only be seen as a file that does not match it.
        assert name in problems[0] or name == "manifest.json", f"{done}: {problems[0]}"
        cases += 1
    assert cases >= 50
    (last / name).write_bytes(whole)
    assert checkpoint.newest(run.path / "checkpoints")[0] == last


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_longer_file_is_noticed(run, name):
    *_, previous, last = run.checkpoints()
    whole = (last / name).read_bytes()
    (last / name).write_bytes(whole + b"\0")
    assert checkpoint.newest(run.path / "checkpoints")[0] == previous
    (last / name).unlink()
    path, _, problems = checkpoint.newest(run.path / "checkpoints")
    assert path == previous
    assert name in problems[0]
    (last / name).mkdir()
    assert checkpoint.newest(run.path / "checkpoints")[0] == previous


def test_files_of_two_checkpoints_do_not_make_one(run):
    *_, previous, last = run.checkpoints()
    for name in FILES[:3]:
        whole = (last / name).read_bytes()
        (last / name).write_bytes((previous / name).read_bytes())
        assert checkpoint.newest(run.path / "checkpoints")[0] == previous, name
        (last / name).write_bytes(whole)


def test_an_empty_directory_in_place_of_a_checkpoint_is_passed_over(run):
    (run.path / "checkpoints" / "00000099").mkdir()
    path, _, problems = checkpoint.newest(run.path / "checkpoints")
    assert path.name == "00000004"
    assert "00000099" in problems[0]


def test_resume_names_the_damaged_checkpoint_and_goes_on_exactly_from_the_previous(
    shell, run, made
):
    last = run.checkpoints()[-1]
    damaged = bytearray((last / "weights.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 4
    (last / "weights.safetensors").write_bytes(damaged)
    ended = shell("resume", "run")
    assert ended.code == 0, ended
    assert "damaged" in ended.out
    assert f"{last.name}/weights.safetensors" in ended.out
    assert "00000003" in ended.out
    assert run.result() == made.result()
    assert checkpoint.newest(run.path / "checkpoints")[2] == []


def test_when_every_checkpoint_is_damaged_resume_names_them_all_and_touches_nothing(shell, run):
    for path in run.checkpoints():
        os.truncate(path / "state.safetensors", 100)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    ended = shell("resume", "run")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    with pytest.raises(BadInput) as refusal:
        paceline.load(run.path)
    for path in run.checkpoints():
        for said in (ended.err, str(refusal.value)):
            assert f"{path.name}/state.safetensors" in said
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_a_link_in_a_checkpoint_is_refused(run, tmp_path):
    """Even to the very same content: in a downloaded run it could lead to any file."""
    *_, previous, last = run.checkpoints()
    for name in FILES:
        whole = (last / name).read_bytes()
        outside = tmp_path / f"outside-{name}"
        outside.write_bytes(whole)
        (last / name).unlink()
        (last / name).symlink_to(outside)
        path, _, problems = checkpoint.newest(run.path / "checkpoints")
        assert path == previous, name
        assert "link" in problems[0]
        with pytest.raises(BadInput, match="link"):
            paceline.load(last)
        (last / name).unlink()
        (last / name).write_bytes(whole)


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.mkdir, (str(self.canary),)


def as_torch(evil):
    import torch

    out = io.BytesIO()
    torch.save({"weight": evil}, out)
    return out.getvalue()


def as_numpy(evil):
    out = io.BytesIO()
    np.save(out, np.array([evil], dtype=object), allow_pickle=True)
    return out.getvalue()


def as_numpy_archive(evil):
    out = io.BytesIO()
    np.savez(out, weight=np.array([evil], dtype=object))
    return out.getvalue()


HOSTILE = {
    "pickle": lambda evil: pickle.dumps(evil),
    "pickle, protocol 0": lambda evil: pickle.dumps(evil, 0),
    "torch": as_torch,
    "numpy": as_numpy,
    "numpy archive": as_numpy_archive,
}


def plant(folder, name, content):
    """Replace a file of a checkpoint and make the manifest agree."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", FILES)
def test_a_planted_pickle_is_never_executed(run, canary, kind, name):
    content = HOSTILE[kind](Evil(canary))
    if kind.startswith("pickle"):
        pickle.loads(content)
        assert canary.exists()  # the trap works
        canary.rmdir()
    *_, previous, last = run.checkpoints()
    if name == "manifest.json":
        (last / name).write_bytes(content)
    else:
        plant(last, name, content)
    assert checkpoint.newest(run.path / "checkpoints")[0] == previous
    with pytest.raises(BadInput):
        paceline.load(last)
    assert not canary.exists()


def test_commands_never_execute_a_planted_pickle(shell, run, canary):
    for path in run.checkpoints():
        for name in FILES[:2]:
            plant(path, name, pickle.dumps(Evil(canary)))
    ended = shell("eval", "run")
    assert ended.code == 2
    assert "weights.safetensors" in ended.err or "manifest.json" in ended.err
    assert "Traceback" not in ended.err
    with pytest.raises(BadInput):
        next(paceline.resume(run.path))
    assert not canary.exists()


@pytest.mark.parametrize("facts", ["{}", "[]", "null", "5", '{"iter": "x"}', '{"weights": 5}'])
def test_a_checkpoint_that_says_nonsense_about_itself_is_refused_with_a_sentence(run, facts):
    """Its sums agree, as they would in a run that somebody else has made up."""
    last = run.checkpoints()[-1]
    plant(last, "state.json", facts.encode())
    with pytest.raises(BadInput, match=r"state\.json"):
        paceline.load(last)


@pytest.mark.parametrize("manifest", ["[" * 100_000, "[]", "null", "{}", '{"state.json": 5}', ""])
def test_a_manifest_that_is_nonsense_is_refused_with_a_sentence(run, manifest):
    *_, previous, last = run.checkpoints()
    (last / "manifest.json").write_text(manifest)
    assert checkpoint.newest(run.path / "checkpoints")[0] == previous
    with pytest.raises(BadInput, match=r"manifest\.json"):
        paceline.load(last)


def test_nothing_in_a_runs_own_configuration_is_executed(shell, run, canary):
    text = run.text("config.yaml")
    evil = f"!!python/object/apply:os.mkdir ['{canary}']"
    (run.path / "config.yaml").write_text(text.replace("seed: 0", f"seed: {evil}"))
    ended = shell("eval", "run")
    assert ended.code == 2
    assert "config.yaml" in ended.err
    assert "Traceback" not in ended.err
    with pytest.raises(BadInput, match=r"config\.yaml"):
        next(paceline.resume(run.path))
    assert not canary.exists()
