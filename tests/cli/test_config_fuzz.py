"""Whatever a configuration holds, it is refused with a sentence or becomes a valid `Config`."""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import math
import random
import signal
import time

import pytest
import yaml
from corrupt import KINDS, WRITTEN, misspelt, valid, wrong_files
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline import Config
from paceline.cli import commands as cli
from paceline.config.files import load_file
from paceline.config.flags import fields_of, parse_config
from paceline.config.resolve import field_names, resolve
from paceline.config.schema import Config as Schema
from paceline.errors import BadInput

NAMES = field_names()
FEWER = settings(max_examples=100, deadline=None)
LONG = 2.0
"""Seconds of CPU: a refusal takes less than one, and as much again where the machine is busy."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**18, -(10**18), 10**400]),
    st.floats(),
    st.text(max_size=20),
    st.text(alphabet="0123456789.e+-_kMsmh ", max_size=8),
    st.sampled_from(["x" * 5000, "[" * 5000, "\0", "\ud800", "..", "/", "none", "auto", "a2c"]),
    st.binary(max_size=8),
    st.dates(),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=6), st.integers()), inner, max_size=4),
        st.tuples(inner),
    ),
    max_leaves=6,
)


class OutOfTime(BaseException):
    """No `except Exception` in between may take it for a mistake in the file."""


@contextlib.contextmanager
def seconds_of_cpu(limit):
    """Fail what computes for longer, by the process's own clock: a busy machine can't move it."""

    def fail(number, frame):
        raise OutOfTime(f"still computing after {limit} s")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit, 1)  # again, should a callback have eaten it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def judged(build):
    """A valid configuration, or None if it was refused in a few sentences."""
    with seconds_of_cpu(5):
        try:
            config = build()
        except BadInput as refusal:
            assert 0 < len(str(refusal)) < 20_000
            return None
    assert isinstance(config, Schema)
    return config


@st.composite
def corrupted(draw):
    """A valid configuration with one to four things wrong."""
    algo = draw(st.sampled_from(["ppo", "a2c", "impala"]))
    config = copy.deepcopy(Config(algo=algo).as_dict())
    if draw(st.booleans()):  # what is not given, presets and defaults fill in
        config = {key: config[key] for key in draw(st.sets(st.sampled_from(list(config))))}
    for _ in range(draw(st.integers(1, 4))):
        *sections, last = draw(st.sampled_from(NAMES)).split(".")
        place = config
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        kind = draw(st.sampled_from(["value", "value", "name", "number"]))
        if kind == "value":
            place[last] = draw(values)
        elif kind == "number":
            place[last] = draw(st.one_of(st.integers(-3, 10**7), st.floats(-5, 5)))
        else:
            place[misspelt(draw(st.randoms()), last)] = place.pop(last, 1)
    return config


@settings(max_examples=300, deadline=None)
@given(corrupted())
@example({"num_envs": 10**9 + 1, "rollout_steps": 10**8 + 7, "minibatches": 4})
@example({"env_id": "x" * 300})
@example({"algo": "x" * 300})
@example({"preset": "x" * 5000})
@example({"env": {"kwargs": "[" * 100_000}})
@example({"lr": 10**400})
@example({"total_steps": 10**400})
@example({"duration": "9" * 400 + "h"})
@example({"duration": "0s"})
@example({1: 2})
@example({"ppo": {1: 2}})
@example({"env": {"kwargs": {"day": datetime.date(2026, 1, 1)}}})
@example({"env": {"kwargs": {"raw": b"bytes", "pair": (1, 2), "none": None, "nan": math.nan}}})
@example({"log_jsonl": "caf\u00e9 \u2192 \U0001f6b4 \x07"})
@example({"log_jsonl": "\ud800"})
@example({"parallel": "auto"})
@example({"parallel": 2, "algo": "a3c"})
def test_a_corrupted_configuration_is_refused_or_valid_and_can_be_written_and_read(config):
    made = judged(lambda: resolve(config))
    if made is not None:
        again = resolve(yaml.safe_load(WRITTEN[".yaml"](made.as_dict()).encode()))
        assert json.dumps(again.as_dict()) == json.dumps(made.as_dict())


@FEWER
@given(st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(), st.integers()), values))
def test_any_dictionary_is_refused_or_valid(config):
    judged(lambda: resolve(config))


flags = st.one_of(
    st.sampled_from([field.flag for field in fields_of()] + ["--config", "--no-pin", "--"]),
    st.text(max_size=12),
    st.builds("--{}".format, st.text(max_size=12)),
    st.builds("--{}={}".format, st.text(max_size=8), st.text(max_size=8)),
)


@FEWER
@given(st.lists(st.one_of(flags, st.text(max_size=12), st.just("1")), max_size=8))
def test_any_arguments_are_refused_or_valid(arguments):
    judged(lambda: parse_config(arguments))


YAML_PIECES = r"""lr : - [ ] { } , &a *a << !!int !!float !!bool !!timestamp !!binary !!set !!omap
!!pairs !!null ? !!python/name:os.system !x %YAML --- ... | > ' " 1_000 0x 0b1 0o7 .inf .nan ~ # \
12:30:45 2026-13-45"""
JSON_PIECES = r"""{"lr": } [ ] , : " 1 1e999 NaN -Infinity null true \ud800 \u0000 "ppo" {"a":"""
TOML_PIECES = r"""lr = [ppo] [[ppo]] [env.kwargs] " \u ' 1 0x inf nan { } . , true #
1979-05-27T07:32:00 07:32:00"""
SPACE = [" ", "\n", "  ", "\t", ": ", "- ", "9" * 5000]
PIECES = {
    suffix: st.sampled_from([*text.split(), *SPACE])
    for suffix, text in ((".yaml", YAML_PIECES), (".json", JSON_PIECES), (".toml", TOML_PIECES))
}
TAGS = ["", *(f"!!{kind} " for kind in ("int", "float", "bool", "timestamp", "binary", "null"))]
scalar_texts = st.one_of(st.text(max_size=6), st.sampled_from(["''", "x", "[]", "{}", "-", "_"]))
LINES = {
    ".yaml": st.builds(
        "{}: {}{}".format, st.sampled_from(NAMES), st.sampled_from(TAGS), scalar_texts
    ),
    ".json": st.builds('{{"{}": {}}}'.format, st.sampled_from(NAMES), scalar_texts),
    ".toml": st.builds("{} = {}".format, st.sampled_from(NAMES), scalar_texts),
}
"""Lines that come nearer to being right, and so go deeper before they fail."""


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
def test_a_file_of_any_content_is_refused_or_holds_names_and_values(tmp_path, suffix):
    file = tmp_path / f"c{suffix}"
    soup = st.lists(st.one_of(PIECES[suffix], st.text(max_size=4)), max_size=14).map("".join)
    lines = st.lists(LINES[suffix], max_size=3).map("\n".join)
    encoded = st.one_of(soup, lines).map(lambda text: text.encode("utf-8", "surrogatepass"))

    @settings(max_examples=400, deadline=None)
    @given(st.one_of(encoded, encoded, st.binary(max_size=200)))
    def check(content):
        file.write_bytes(content)
        judged(lambda: resolve(load_file(file)))

    check()


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_valid_file_with_bytes_changed_is_refused_or_valid(tmp_path, suffix):
    file, whole = tmp_path / f"c{suffix}", WRITTEN[suffix](Config().as_dict()).encode()
    change = st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255))

    @FEWER
    @given(st.lists(change, min_size=1, max_size=4))
    def check(changes):
        content = bytearray(whole)
        for at, byte in changes:
            content[at] = byte
        file.write_bytes(bytes(content))
        judged(lambda: resolve(load_file(file)))

    check()


@pytest.fixture
def command(shell, monkeypatch, capsys):
    """`paceline train` within this process: (exit code or what escaped, stdout, stderr)."""
    monkeypatch.chdir(shell.folder)
    monkeypatch.setattr("paceline.cli.train.follow", lambda *_: pytest.fail("it was accepted"))

    def train(file):
        try:
            with seconds_of_cpu(5):
                code = cli.run(["train", "--config", file.name])
        except (Exception, OutOfTime, SystemExit, pytest.fail.Exception) as escaped:
            code = f"{type(escaped).__name__}: {escaped}"[:200]
        return (code, *capsys.readouterr())

    return train


def faults(case, code, out, err):
    """What is wrong with the answer to a file that is wrong for certain."""
    if code != 2:
        yield f"it ended in {code}"
        return
    lines = err.splitlines()
    if out or not err.startswith("paceline: ") or "Traceback" in err:
        yield f"it said {(out + err)[:200]!r}"
    if len(lines) > 20 or len(err) > 5_000:
        yield f"it said {len(lines)} lines of {len(err)} letters"
    if not all(letter.isprintable() or letter == "\n" for letter in err):
        yield f"it said what a terminal obeys: {err[:200]!r}"
    if not any(word in err for word in case.words):
        yield f"none of {case.words} is in {err[:300]!r}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_wrong_for_certain_is_refused_in_a_few_words_within_a_second(command, shell, name):
    wrong = []
    for case in wrong_files(name):
        file = case.place(shell.folder)
        began = time.process_time()
        answer = command(file)
        seconds = time.process_time() - began
        found = [*faults(case, *answer), *([f"it took {seconds:.1f} s"] if seconds > LONG else [])]
        wrong += [f"{case.what} in {case.name}: {fault}" for fault in found]
        file.rmdir() if file.is_dir() else file.unlink()
    assert not wrong, "\n".join([f"{len(wrong)} faults", *wrong])
    assert not (shell.folder / "runs").exists()


def test_there_are_five_hundred_of_them_and_no_two_are_the_same():
    names = [name for name in KINDS if name != "ten_megabytes"]
    found = {(case.name, case.content) for name in names for case in wrong_files(name)}
    assert len(found) >= 500


@pytest.mark.parametrize("suffix", WRITTEN)
def test_what_they_were_made_from_is_valid(tmp_path, suffix):
    file = tmp_path / f"c{suffix}"
    for seed in range(20):
        file.write_text(WRITTEN[suffix](valid(random.Random(seed), every=seed < 2)))
        values = load_file(file)
        assert values.keys() <= resolve(values).as_dict().keys()
