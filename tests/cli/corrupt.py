"""Configuration files that are wrong for certain: some five hundred, always the same.

Each kind takes a random source. Most start from a valid configuration and are given something that
no reading of it can accept.
"""

from __future__ import annotations

import copy
import datetime
import gzip
import json
import math
import pickle
import random
import string
import types
import typing
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import yaml
from annotated_types import Ge, Gt, Le

from paceline import Config
from paceline.config.flags import fields_of
from paceline.config.resolve import field_names

SUFFIXES = (".yaml", ".json", ".toml")
WRITTEN = {
    ".yaml": lambda config: yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
    ".json": lambda config: json.dumps(config, indent=1),
}
"""How a configuration is written; TOML is tested by its texts alone."""
KINDS = {}


class Corrupt(NamedTuple):
    """A file (without content: a directory), and words of which one has to be in its refusal."""

    what: str
    name: str
    content: bytes | None
    words: tuple[str, ...]

    def place(self, folder):
        path = folder / self.name
        path.mkdir() if self.content is None else path.write_bytes(self.content)
        return path


def kind(function):
    KINDS[function.__name__] = function
    return function


def wrong_files(name):
    """The files of one kind."""
    return list(KINDS[name](random.Random(name)))


def file(suffix, content, *words, what=None):
    """A file of this content, which has to be named, or else one of `words`."""
    content = content if isinstance(content, bytes) else content.encode()
    return Corrupt(what or repr(content[:40]), f"c{suffix}", content, (*words, f"c{suffix}"))


def valid(source, every=False):
    """Some of the fields of a configuration, as they might stand in a file."""
    whole = _whole(source.choice(["ppo", "a2c", "impala"]))
    names = list(whole) if every else source.sample(list(whole), source.randrange(1, 12))
    if "epochs" in names or "minibatches" in names:  # they depend on the algorithm
        names = ["algo", *names]
    return {name: copy.deepcopy(whole[name]) for name in dict.fromkeys(names)}


@cache
def _whole(algo):
    return Config(algo=algo).as_dict()


def changed(source, name, value):
    """A valid configuration with one field, by its dotted name, set to what it can't be."""
    config = valid(source)
    *section, last = name.split(".")
    (config.setdefault(section[0], {}) if section else config)[last] = value
    is_date = isinstance(value, datetime.date)  # which JSON would have as text
    suffix = ".yaml" if is_date else source.choice(list(WRITTEN))
    what = f"{name} = {repr(value)[:40]}"
    return Corrupt(what, f"c{suffix}", WRITTEN[suffix](config).encode(), (name, last.strip()))


# What can be wrong with a field -------------------------------------------------------------------


def parts_of(hint):
    """The types of a union, and the limits that are annotated."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from parts_of(hint.__origin__)
        yield from (limit for limit in hint.__metadata__ if isinstance(limit, Ge | Gt | Le))
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from parts_of(part)
    else:
        yield origin or hint


def wrong_types(kinds):
    """Values that no field of these types takes."""
    if dict in kinds:
        return [5, [1, 2], "x", True, "{"]
    if tuple in kinds:
        return [5, {"a": 1}, [{"a": 1}], [[1]], [None], 1.5]
    wrong = [[1], {"a": 1}, [], {}, [[[]]], datetime.date(2026, 1, 1)]
    if str not in kinds:
        wrong += ["nonsense", "", "1 2", "0x", "--"]
    if not kinds & {int, float, bool}:
        wrong += [5, -1, 1.5]
    if bool in kinds and not kinds & {int, float}:
        wrong += [2, 1.5, "maybe"]
    return wrong + ([2.5] if int in kinds and float not in kinds else [])


@kind
def wrong_values(source):
    """Of another type, out of range, not finite, or missing."""
    for field in fields_of():
        parts = list(parts_of(field.hint))
        wrong = source.sample(wrong_types(set(parts)), 3)
        for limit in parts:
            if isinstance(limit, Le):
                wrong.append(source.choice([limit.le + 1, 10**18, 1e30]))
            elif isinstance(limit, Ge | Gt):
                below = limit.ge - 1 if isinstance(limit, Ge) else limit.gt
                wrong.append(source.choice([below, -(10**18), -1e30]))
        if float in parts:
            wrong += source.sample([math.nan, math.inf, -math.inf], 2)
        if type(None) not in parts:
            wrong.append(None)
        for value in wrong:
            yield changed(source, field.name, value)


@kind
def misspelt_names(source):
    known = set(field_names())
    for _ in range(48):
        section, dot, last = source.choice(fields_of()).name.rpartition(".")
        wrong = last
        while section + dot + wrong in known or not wrong:
            wrong = misspelt(source, last)
        yield changed(source, section + dot + wrong, 1)


def misspelt(source, name):
    """With a letter added, lost, changed or doubled, or written in another way."""
    at, letter = source.randrange(len(name)), source.choice(string.ascii_lowercase + "_- ")
    before, after = name[:at], name[at:]
    spelt = [before + letter + after, before + after[1:], before + letter + after[1:]]
    spelt += [before + after[0] + after, name.upper(), f"{name} ", f"--{name}"]
    return source.choice([*spelt, name.replace("_", "-")])


@kind
def sections_that_are_none(source):
    for section in ("env", "ppo", "a2c", "impala"):
        for value in (None, 5, "hard", [], [1], True, 1.5, [{}]):
            yield changed(source, section, value)


@kind
def strange_names(source):
    for name in ("", " ", ".", "..", "lr.", ".lr", "ppo.clip", "\x1b[2J", "é", "x" * 5000, "a\nb"):
        for config in ({name: 1}, {"ppo": {name: 1}}):
            suffix = source.choice(list(WRITTEN))
            content = WRITTEN[suffix](valid(source) | config)
            yield file(suffix, content, "no such option", what=f"{config}"[:40])
    for name in ("1", "1.5", "true", "~", "2026-01-01", "? ''\n", "!!binary aGk="):
        yield file(".yaml", f"{name}: 1\n", "no such option")
        yield file(".yaml", f"ppo:\n  {name}: 1\n", "ppo")


# Texts --------------------------------------------------------------------------------------------

BROKEN_YAML = r"""
lr: [1, 2
lr: }
lr: "open
lr: 1: 2
lr: @here
lr: *nothing
\tlr: 1
lr: 1\n  gamma: 1
- lr
? [lr]\n: 1
lr: 1\n---\nlr: 2
lr: !!float x
seed: !!int ''
lr: !!timestamp soon
normalize_obs: !!bool perhaps
lr: !!binary ß
lr: !unknown 1
lr: !!python/name:os.system
seed: 2026-02-31
lr: \0
<<: 5
!!set {lr, 5}: 1
lr: !!omap [1]
"""
BROKEN_JSON = r"""
{"lr": 1
{"lr": 1,}
{"lr": 1}{"lr": 1}
{"lr": 1} // mine
{'lr': 1}
{"lr" 1}
{"lr": "\7"}
{"lr": 01}
{"lr": "\x41"}
{"lr"}
"""
BROKEN_TOML = r"""
lr = = 1
lr = 1 gamma = 2
lr = 'open
lr = [1, 2
lr = 01
lr = null
lr = 2026-13-45
lr = 1\nlr = 2
[ppo]\n[ppo]
ppo = 1\n[ppo]\nclip = 0.1
lr: 1
lr = \7
"""
BROKEN_PYTHON = r"""
lr = 1
config = {'lr': 1}
1 / 0
def f(:
import nothing_of_the_kind
\0
import paceline; config = paceline.Config
import paceline; config = paceline.Config(lr=-1)
raise RuntimeError('x' * 100_000)
raise RuntimeError(chr(10) * 100)
config = 'x' * 100_000
def f(): f()\nf()
"""
NO_NAMES = """
[]
[1, 2]
5
true
"text"
[["lr", 1]]
[{"lr": 1}]
"""
BROKEN = {
    ".yaml": BROKEN_YAML + NO_NAMES + "just words\n2026-01-01\n!!set {lr}\nlr=1\n",
    ".json": BROKEN_JSON + NO_NAMES,
    ".toml": BROKEN_TOML,
    ".py": BROKEN_PYTHON,
}
"""One text per line, with a few characters escaped."""
ESCAPED = {r"\n": "\n", r"\t": "\t", r"\0": "\0", r"\7": "\7"}


@kind
def broken_texts(source):
    for suffix, texts in BROKEN.items():
        for line in filter(None, texts.splitlines()):
            for escaped, letter in ESCAPED.items():
                line = line.replace(escaped, letter)
            yield file(suffix, f"{line}\n", "lr", "ppo")
    for _ in range(20):
        whole = json.dumps(valid(source), indent=source.choice([None, 1]))
        yield file(".json", whole[: source.randrange(1, len(whole))])


@kind
def not_text(source):
    for suffix in SUFFIXES:
        noise = bytearray(source.randbytes(5000))
        noise[source.randrange(5000)] = 0xFF  # in UTF-8 there is none
        yield file(suffix, bytes(noise))
        yield file(suffix, pickle.dumps({"lr": 1.0}))
        yield file(suffix, gzip.compress(b"lr: 1", mtime=0))
        yield file(suffix, b"\0" * 1000)
        word = {".yaml": "log_jsonl: {}\n", ".json": '{{"log_jsonl": "{}"}}'}
        text = word.get(suffix, 'log_jsonl = "{}"\n')
        for encoding in ("utf-16", "utf-16-le", "utf-32", "latin-1"):
            yield file(suffix, text.format("é").encode(encoding))
        surrogate = text.format("LETTER").encode().replace(b"LETTER", b"\xed\xa0\x80")
        yield file(suffix, surrogate)


@kind
def other_files(source):
    for suffix in (".txt", ".cfg", "", ".YAML", ".yaml.bak", ".pkl", ".jsonc"):
        yield file(suffix, "lr: 1\n")
    for suffix in (*SUFFIXES, ".py", ""):
        yield Corrupt(f"directory {suffix!r}", f"folder{suffix}", None, (f"folder{suffix}",))


@kind
def what_is_not_there(source):
    for env_id in ("Cartpole-v1", "CartPole-v99", "", "toy:", "toy:idenity", "no_module:X-v0", ":"):
        yield file(".json", json.dumps({"env_id": env_id}), "env_id", "toy")
    for wrapper in ("nowhere:Wrapper", "gymnasium.wrappers:Absent", "nothing", ":", "os:environ.x"):
        yield file(".json", json.dumps({"env": {"wrappers": [wrapper]}}), "wrappers")
    for preset in ("cartpole", "CartPole", "../ppo/CartPole-v1", "/etc/passwd", "", "x" * 300):
        yield file(".json", json.dumps({"preset": preset}), "preset")


# What would take long or fill the memory ----------------------------------------------------------


@kind
def numbers_beyond_counting(source):
    digits, letters = "9" * 5000, f"0x{'f' * 6000}"
    for name in ("seed", "num_envs", "lr", "total_steps", "hidden", "env_id", "algo", "preset"):
        yield file(".yaml", f"{name}: {letters}\n", name)
        yield file(".yaml", f"{name}: [{letters}]\n", name)
        yield file(".toml", f"{name} = {letters}\n", name)
    for name in ("seed", "lr", "duration"):
        yield file(".yaml", f"{name}: {digits}\n", name)
        yield file(".json", f'{{"{name}": {digits}}}', name)
        yield file(".json", f'{{"{name}": "{digits}x"}}', name)
    yield file(".json", '{"lr": 1e999}', "lr")
    yield file(".yaml", f"[{letters}]\n")
    primes = {"num_envs": 10_007, "rollout_steps": 9_973}
    yield file(".json", json.dumps(primes | {"minibatches": 4}), "minibatches")
    few = {"num_envs": 3, "rollout_steps": 3}
    yield file(".json", json.dumps(few | {"batch_size": 10**12}), "batch_size")


@kind
def too_many_mistakes(source):
    near = {f"lr{number}": 1 for number in range(2_000)}
    for config in (near, {"ppo": near}, {name: [[]] for name in valid(source, every=True)}):
        yield file(".json", json.dumps(config), "lr", "ppo", "algo")
    yield file(".yaml", yaml.safe_dump({f"key{number}": 1 for number in range(300)}), "key")
    for value in ("x", -1, None, [1]):
        yield file(".json", json.dumps({"hidden": [value] * 9_000}), "hidden")
    for name in ("lr", "algo", "preset", "env_id"):
        yield file(".json", json.dumps({name: "x" * 60_000}), name)
    yield file(".json", json.dumps({"lr": "\n" * 30_000}), "lr")


@kind
def nested_too_deeply(source):
    for depth in (10, 100, 900, 980, 990, 1000, 5000):
        for name in ("lr", "ppo", "hidden", "unknown"):
            for left, right in (("[", "]"), ('{"a":', "}")):
                content = f'{{"{name}": {left * depth}1{right * depth}}}'
                yield file(".json", content, name, what=f"{name} {depth} {left}")
        yield file(".yaml", f"{'- ' * depth}1\n")
        yield file(".yaml", f"lr: {'[' * depth}{']' * depth}\n", "lr")
        yield file(".toml", f"lr = {'[' * depth}{']' * depth}\n", "lr")
        yield file(".toml", f"a{'.a' * depth} = 1\n", "a")
    yield file(".yaml", f"lr: {'[' * 5_000}\n")
    yield file(".yaml", f"lr: {'{a: ' * 5_000}\n")


def yaml_bomb(first, line, wide=9, letters="abcdefghi"):
    """Each line refers to the one before `wide` times."""
    lines = [f"a: &a {first}"]
    for old, new in pairwise(letters):
        lines.append(f"{new}: &{new} " + line.format(", ".join([f"*{old}"] * wide)))
    return "\n".join(lines) + "\n"


@kind
def texts_that_multiply(source):
    for wide, letters in ((2, string.ascii_letters), (9, "abcdefghi"), (99, "abcde")):
        for first, line in (("[x]", "[{}]"), ("x", "[{}]"), ("{k: v}", "{{0: [{}]}}")):
            content = yaml_bomb(first, line, wide, letters) + f"seed: *{letters[-1]}\n"
            yield file(".yaml", content, "a", what=f"{wide} to the {len(letters)} {line}")
    # Merged keys: so few that memory holds out until the time is up.
    yield file(".yaml", yaml_bomb("{k: v}", "{{<<: [{}]}}", 9, "abcdefgh"), what="merged keys")
    yield file(".yaml", yaml_bomb("{k: v}", "{{<<: [{}]}}", 99, "abcde"), what="merged keys, once")
    for content in ("lr: &a [*a]", "lr: &a {a: *a}", "&a lr: *a", "lr: &a {<<: *a}", "&a [*a]"):
        yield file(".yaml", f"{content}\n", "lr")
    long = f"a: &a {'x' * 50_000}\nhidden: [{', '.join(['*a'] * 2_000)}]\n"
    yield file(".yaml", long, "a", "hidden", what="long text, often")


@kind
def ten_megabytes(source):
    """Of one value, of many names, and of noise."""
    size = 10_000_000
    for suffix in SUFFIXES:
        yield file(suffix, f'{{"lr": "{"x" * size}"}}')
        yield file(suffix, "".join(f"key{number:05}: 1\n" for number in range(size // 12)))
        yield file(suffix, source.randbytes(size))
