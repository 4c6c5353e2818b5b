"""A damaged checkpoint is noticed, named and passed over, and the one before it used."""

from __future__ import annotations

import os
import random
import shlex
import shutil
from itertools import islice

import pytest
from malicious import Job

import paceline
from paceline.errors import BadInput
from paceline.storage import checkpoint

FILES = ("weights.safetensors", "state.safetensors", "state.json", "manifest.json")
FLAGS = shlex.split(
    "--total-iters 4 --save-every 1 --keep 4 --eval-episodes 2 --hidden 16 --num-envs 2"
)
PER_FILE = 130
"""Damages to each of the four files."""


def damages(name, run):
    """(what is done, content) for a file of the newest checkpoint; None where it is gone.

    Without end, and always the same for the same content.
    """
    *_, previous, last = run.checkpoints()
    whole, other = (last / name).read_bytes(), (previous / name).read_bytes()
    source, size = random.Random(name), len(whole)
    yield "removed", None
    yield "that of the checkpoint before", other
    yield "its first half that of the checkpoint before", other[: size // 2] + whole[size // 2 :]
    yield "turned round", whole[::-1]
    if name == "manifest.json":
        for nonsense in (b"[" * 100_000, b"[]", b"null", b"{}", b'{"state.json": 5}'):
            yield f"replaced by {nonsense[:9]}", nonsense
    for more in (b"\0", b"}", b"0", whole, bytes(4096)):  # white space would change no JSON
        yield f"{len(more)} bytes appended", whole + more
        yield f"{len(more)} bytes put before", more + whole
    ends = {0, 1, 2, 7, 8, 9, 15, 16, size - 2, size - 1}
    while len(ends) < 50:
        ends.add(source.randrange(size))
    for length in sorted(ends):
        yield f"cut to {length} of {size} bytes", whole[:length]
    for length in (1, 8, 64, size):
        for _ in range(3):
            at = source.randrange(max(1, size - length))
            for what, filler in (("zeros", bytes(length)), ("noise", source.randbytes(length))):
                content = (whole[:at] + filler + whole[at + length :])[:size]
                if content != whole:
                    yield f"{length} bytes of {what} at {at}", content
    while True:
        at, bit = source.randrange(size), source.randrange(8)
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        yield f"bit {bit} of byte {at}", bytes(changed)


def damage(path, content):
    path.unlink()
    if content is not None:
        path.write_bytes(content)


def cases(name, run):
    return list(islice(damages(name, run), PER_FILE))


@pytest.mark.parametrize("name", FILES)
def test_every_damage_to_a_file_is_noticed_and_the_previous_checkpoint_used(run, name):
    *_, previous, last = run.checkpoints()
    whole, found = (last / name).read_bytes(), cases(name, run)
    assert len({content for _, content in found}) >= 125  # five hundred in all
    for done, content in found:
        damage(last / name, content)
        path, used, problems = checkpoint.load_newest(run.path / "checkpoints")
        assert path == previous, done
        assert used.facts["iter"] == int(previous.name)
        assert len(problems) == 1, done
        assert str(last) in problems[0]
        # A changed sum in the manifest can only be seen as a file that does not match it.
        assert name in problems[0] or name == "manifest.json", f"{done}: {problems[0]}"
        (last / name).write_bytes(whole)
    assert checkpoint.load_newest(run.path / "checkpoints")[0] == last


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("name", FILES)
def test_resume_names_the_damaged_file_and_goes_on_exactly_from_the_checkpoint_before(
    shell, run, made, forked, name, which
):
    last = run.checkpoints()[-1]
    found = cases(name, run)
    done, content = found[which * (len(found) - 1) // 2]
    damage(last / name, content)
    seen = forked(Job(str(shell.folder), ("resume", "run")))
    assert seen.code == 0, (done, seen)
    assert "warning: damaged" in seen.out
    assert f"{last.name}/{name}" in seen.out or name == "manifest.json", (done, seen)
    assert last.name in seen.out
    assert "00000003" in seen.out
    assert "Traceback" not in seen.out + seen.err
    assert run.result() == made.result()
    assert checkpoint.load_newest(run.path / "checkpoints")[2] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_resume_in_a_fresh_process_survives_every_tenth_damage(shell, made, name):
    for number, (done, content) in enumerate(cases(name, made)[::10]):
        shutil.copytree(made.path, shell.folder / f"run{number}", symlinks=True)
        run = shell.run(f"run{number}")
        damage(run.checkpoints()[-1] / name, content)
        ended = shell("resume", f"run{number}")
        assert ended.code == 0, (done, ended)
        assert "warning: damaged" in ended.out
        assert run.result() == made.result(), done


def test_a_directory_in_place_of_a_file_is_noticed(run):
    *_, previous, last = run.checkpoints()
    for name in FILES:
        (last / name).rename(run.path / name)
        (last / name).mkdir()
        path, _, problems = checkpoint.load_newest(run.path / "checkpoints")
        assert path == previous
        assert name in problems[0]
        (last / name).rmdir()
        (run.path / name).rename(last / name)


@pytest.mark.parametrize("what", ["directory", "file"])
def test_something_else_in_place_of_a_checkpoint_is_passed_over(run, what):
    path = run.path / "checkpoints" / "00000099"
    path.mkdir() if what == "directory" else path.write_bytes(b"")
    found, _, problems = checkpoint.load_newest(run.path / "checkpoints")
    assert found.name == "00000004"
    assert "00000099" in problems[0]


def test_when_every_checkpoint_is_damaged_resume_names_them_all_and_touches_nothing(
    shell, run, forked
):
    for path in run.checkpoints():
        os.truncate(path / "state.safetensors", 100)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    seen = forked(Job(str(shell.folder), ("resume", "run")))
    assert seen.code == 2
    assert "Traceback" not in seen.err
    with pytest.raises(BadInput) as refusal:
        paceline.load(run.path)
    for path in run.checkpoints():
        for said in (seen.err, str(refusal.value)):
            assert f"{path.name}/state.safetensors" in said
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_all_but_the_oldest_may_be_damaged(shell, run, made, forked):
    oldest, *rest = run.checkpoints()
    for path, name in zip(rest, FILES, strict=False):
        os.truncate(path / name, 20)
    seen = forked(Job(str(shell.folder), ("resume", "run")))
    assert seen.code == 0, seen
    for path, name in zip(rest, FILES, strict=False):
        assert f"{path.name}/{name}" in seen.out
    assert f"resuming from run/checkpoints/{oldest.name}" in seen.out
    assert run.result() == made.result()


def test_loading_a_policy_says_which_checkpoint_it_passed_over(shell, run, forked):
    """Otherwise an evaluation would silently be that of another policy."""
    last = run.checkpoints()[-1]
    os.truncate(last / "weights.safetensors", 100)
    seen = forked(Job(str(shell.folder), ("eval", "run", "--episodes", "2")))
    assert seen.code == 0, seen
    assert f"{last.name}/weights.safetensors" in seen.out + seen.err
    assert "checkpoint run/checkpoints/00000003" in seen.out


def test_a_damaged_checkpoint_that_is_asked_for_is_refused(run):
    last = run.checkpoints()[-1]
    os.truncate(last / "weights.safetensors", 100)
    with pytest.raises(BadInput, match=r"weights\.safetensors"):
        paceline.load(last)


def test_the_newest_is_kept_and_used_also_after_a_hundred_million_iterations(run):
    folder, content = run.path / "checkpoints", checkpoint.load_newest(run.path / "checkpoints")[1]
    for iteration in (99_999_999, 100_000_000, 100_000_001):
        checkpoint.save(folder, iteration, content)
    assert checkpoint.load_newest(folder)[0].name == "100000001"
    checkpoint.prune(folder, keep=2)
    assert [path.name for path in checkpoint.paths(folder)] == ["100000000", "100000001"]
    checkpoint.set_aside(folder, checkpoint.save(folder, 99_999_999, content))
    assert [path.name for path in checkpoint.paths(folder)] == ["99999999"]


@pytest.mark.parametrize("name", ["9²", "٣", "9" * 5000, "-1", "1e3"])
def test_a_directory_that_is_no_checkpoint_is_left_alone(shell, run, made, name):
    strange = run.path / "checkpoints" / name[:200]
    strange.mkdir()
    resumed = shell.resume_here("run")
    strange.rmdir()
    assert resumed.result() == made.result()
