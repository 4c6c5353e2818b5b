"""Configurations that are wrong for certain: some five hundred files, always the same.

Each starts from a valid configuration and is given something that no reading of it can accept.
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
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from annotated_types import Ge, Gt, Le

from paceline import Config
from paceline.config.registry import sections
from paceline.config.resolve import field_names
from paceline.config.schema import Config as Schema
from paceline.config.schema import EnvConfig, option_fields

SUFFIXES = (".yaml", ".json", ".toml")
MEGABYTES = 10_000_000


@dataclass(frozen=True)
class Corrupt:
    """A file, and words of which one has to be in what is said about it."""

    what: str
    name: str
    content: bytes | None
    words: tuple[str, ...]

    def place(self, folder: Path) -> Path:
        path = folder / self.name
        if self.content is None:
            path.mkdir()
        else:
            path.write_bytes(self.content)
        return path


# Valid configurations, and how they are written ---------------------------------------------------


def valid(source: random.Random, every: bool = False) -> dict[str, Any]:
    """Some of the fields of a configuration, as they might stand in a file."""
    whole = _whole(source.choice(["ppo", "a2c", "impala"]))
    names = list(whole) if every else source.sample(list(whole), source.randrange(1, 12))
    if "epochs" in names or "minibatches" in names:  # they depend on the algorithm
        names = ["algo", *names]
    return {name: copy.deepcopy(whole[name]) for name in dict.fromkeys(names)}


@cache
def _whole(algo: str) -> dict[str, Any]:
    return Config(algo=algo).as_dict()


def written(config: dict[str, Any], suffix: str) -> bytes:
    if suffix == ".yaml":
        return yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode()
    if suffix == ".json":
        return json.dumps(config, indent=1).encode()
    return "\n".join(_toml(config, "")).encode()


def _toml(values: dict[Any, Any], section: str) -> Iterator[str]:
    """TOML has no null: what is not set is left out. Sections come last."""
    inner = {}
    for key, value in values.items():
        if isinstance(value, dict):
            inner[key] = value
        elif value is not None:
            yield f"{json.dumps(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        name = f"{section}.{json.dumps(key)}" if section else json.dumps(key)
        yield f"[{name}]"
        yield from _toml(value, name)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(part) for part in value)}]"
    if isinstance(value, dict):
        parts = (f"{json.dumps(key)} = {_toml_value(part)}" for key, part in value.items())
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, datetime.date) else json.dumps(value)


def put(config: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Set a field by its dotted name."""
    *sections, last = name.split(".")
    place = config
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return config


# What can be wrong with a field -------------------------------------------------------------------


class Leaf(NamedTuple):
    """An option that is no section."""

    name: str
    """dotted"""
    hint: Any
    default: Any


def leaves() -> Iterator[Leaf]:
    kinds = {"": Schema, "env.": EnvConfig}
    kinds |= {f"{name}.": kind for name, kind in sections({}).items()}
    for prefix, kind in kinds.items():
        hints = typing.get_type_hints(kind, include_extras=True)
        for field in option_fields() if kind is Schema else fields(kind):
            if field.name != "env":
                made = field.default_factory
                default = field.default if made is MISSING else made()
                yield Leaf(prefix + field.name, hints[field.name], default)


def parts_of(hint: Any) -> Iterator[Any]:
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


NUMBERS = {int, float}


def wrong_types(hint: Any) -> list[Any]:
    """Values that no field of this type takes."""
    kinds = set(parts_of(hint))
    wrong: list[Any] = []
    if dict in kinds:
        return [5, [1, 2], "x", True, "{"]
    if tuple in kinds:
        return [5, {"a": 1}, [{"a": 1}], [[1]], [None], 1.5]
    if str not in kinds:
        wrong += ["nonsense", "", "1 2", "0x", "--"]
    if not kinds & NUMBERS and bool not in kinds:
        wrong += [5, -1, 1.5]
    if bool in kinds and not kinds & NUMBERS:
        wrong += [2, 1.5, "maybe"]
    if int in kinds and float not in kinds:
        wrong += [2.5]
    return [*wrong, [1], {"a": 1}, [], {}, [[[]]], datetime.date(2026, 1, 1)]


def out_of_range(hint: Any) -> list[Any]:
    wrong: list[Any] = []
    for limit in parts_of(hint):
        if isinstance(limit, Ge):
            wrong += [limit.ge - 1, -(10**18), -1e30]
        elif isinstance(limit, Gt):
            wrong += [limit.gt, limit.gt - 0.5, -1e30]
        elif isinstance(limit, Le):
            wrong += [limit.le + 1, 10**18, 1e30]
    return wrong


# The kinds ----------------------------------------------------------------------------------------

Found = Iterator[Corrupt]
Kind = Callable[[random.Random], Found]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def changed(source: random.Random, name: str, value: Any, suffix: str) -> Corrupt:
    """A valid configuration with one field set to what it can't be."""
    if isinstance(value, datetime.date) and suffix == ".json":  # which would have it as text
        suffix = ".yaml"
    config = put(valid(source), name, value)
    what = f"{name} = {repr(value)[:40]}"
    return Corrupt(what, f"c{suffix}", written(config, suffix), (name, name.rpartition(".")[2]))


def text(what: str, suffix: str, content: str | bytes, *words: str) -> Corrupt:
    """A file of this content, which has to be named, or else one of `words`."""
    content = content if isinstance(content, bytes) else content.encode()
    return Corrupt(what, f"c{suffix}", content, (*words, f"c{suffix}"))


def misspelt(source: random.Random, name: str) -> str:
    at = source.randrange(len(name))
    letter = source.choice(string.ascii_lowercase + "_- ")
    return source.choice(
        [
            name[:at] + letter + name[at:],
            name[:at] + name[at + 1 :],
            name[:at] + letter + name[at + 1 :],
            name[: at + 1] + name[at:],
            name.upper(),
            f"{name} ",
            f"--{name}",
            name.replace("_", "-"),
        ]
    )


@kind
def misspelt_names(source: random.Random) -> Found:
    known = set(field_names())
    for number in range(48):
        name = source.choice([leaf.name for leaf in leaves()])
        *sections, last = name.split(".")
        while ".".join([*sections, last]) in known or not last:
            last = misspelt(source, name.rpartition(".")[2])
        config = put(valid(source), ".".join(sections) or "seed", {} if sections else 0)
        place = config[sections[0]] if sections else config
        place[last] = 1
        suffix = SUFFIXES[number % 3]
        yield Corrupt(f"{name} as {last!r}", f"c{suffix}", written(config, suffix), (last.strip(),))


@kind
def wrong_types_of_values(source: random.Random) -> Found:
    for name, hint, _ in leaves():
        for value in source.sample(wrong_types(hint), 1):
            yield changed(source, name, value, source.choice(SUFFIXES))


@kind
def numbers_out_of_range(source: random.Random) -> Found:
    for name, hint, _ in leaves():
        wrong = out_of_range(hint)
        if wrong:
            yield changed(source, name, source.choice(wrong), source.choice(SUFFIXES))


@kind
def numbers_that_are_none(source: random.Random) -> Found:
    for name, hint, _ in leaves():
        if float in set(parts_of(hint)):
            for value in source.sample([math.nan, math.inf, -math.inf], 2):
                yield changed(source, name, value, source.choice(SUFFIXES))


@kind
def numbers_beyond_counting(source: random.Random) -> Found:
    digits = "9" * 5000
    for name in ("seed", "num_envs", "lr", "total_steps", "hidden", "env_id", "algo", "preset"):
        for value in (f"0x{'f' * 6000}", f"[0x{'f' * 6000}]"):
            yield text(f"{name}: {value[:9]}", ".yaml", f"{name}: {value}\n", name)
        yield text(f"{name} = 0xf…", ".toml", f"{name} = 0x{'f' * 6000}\n", name)
    for name in ("seed", "lr", "duration"):
        yield text(f"{name}: 9…", ".yaml", f"{name}: {digits}\n", name)
        yield text(f"{name}: 9…", ".json", f'{{"{name}": {digits}}}', name)
        yield text(f"{name}: '9…'", ".json", f'{{"{name}": "{digits}x"}}', name)
    yield text("1e999", ".json", '{"lr": 1e999}', "lr")
    yield text("a list", ".yaml", f"[0x{'f' * 6000}]\n")


@kind
def nothing_where_something_is_needed(source: random.Random) -> Found:
    for name, hint, _ in leaves():
        if type(None) not in set(parts_of(hint)):
            yield changed(source, name, None, source.choice(SUFFIXES[:2]))


@kind
def sections_that_are_none(source: random.Random) -> Found:
    for section in ("env", "ppo", "a2c", "impala"):
        for value in (None, 5, "hard", [], [1], True, 1.5, [{}]):
            yield changed(
                source, section, value, source.choice(SUFFIXES[: 2 if value is None else 3])
            )


@kind
def broken_yaml(source: random.Random) -> Found:
    for piece in (
        "lr: [1, 2",
        "lr: {a: 1",
        "lr: }",
        "lr: ]",
        'lr: "open',
        "lr: 'open",
        "lr: 1: 2",
        "lr: @here",
        "lr: `here`",
        "lr: %here",
        "lr: *nothing",
        "lr: &a",
        "\tlr: 1",
        "lr: 1\n  gamma: 1",
        "lr:\n- 1\n gamma: 1",
        "- lr",
        "lr",
        "? [lr]\n: 1",
        "? {lr: 1}\n: 1",
        "lr: 1\n---\nlr: 2",
        "lr: !!float x",
        "seed: !!int ''",
        "lr: !!timestamp soon",
        "anneal_lr: !!bool perhaps",
        "lr: !!binary ß",
        "lr: !unknown 1",
        "lr: !!python/name:os.system",
        "seed: 2026-02-31",
        "lr: \x07",
        "lr: \x00",
        "<<: 5",
        "<<: [1]",
        "!!set {lr, 5}: 1",
        "lr: !!omap [1]",
        "lr: |\n1",
    ):
        before = "" if piece.startswith("\t") else yaml.safe_dump(valid(source))
        yield text(repr(piece), ".yaml", f"{before}{piece}\n", "lr")


@kind
def broken_json(source: random.Random) -> Found:
    for _ in range(20):
        whole = json.dumps(valid(source), indent=source.choice([None, 1]))
        length = source.randrange(1, len(whole))
        yield text(f"cut to {length} of {len(whole)}", ".json", whole[:length])
    whole = json.dumps(valid(source))
    for what, content in (
        ("nothing", ""),
        ("comma", whole[:-1] + ",}"),
        ("twice", whole * 2),
        ("comment", whole + " // mine"),
        ("single quotes", whole.replace('"', "'")),
        ("bare names", whole.replace('"', "")),
        ("no colon", whole.replace(":", "", 1)),
        ("equals", whole.replace(":", "=", 1)),
        ("semicolon", whole + ";"),
        ("control", '{"lr": "\x01"}'),
        ("python", "{'lr': True}"),
        ("bare value", '{"lr": yes}'),
        ("leading zero", '{"lr": 01}'),
        ("plus", '{"lr": +1}'),
        ("escape", '{"lr": "\\x41"}'),
        ("only a name", '{"lr"}'),
        ("only white space", " \n\t "),
    ):
        yield text(what, ".json", content)


@kind
def broken_toml(source: random.Random) -> Found:
    for piece in (
        "lr = = 1",
        "lr =",
        "lr",
        "= 1",
        "lr = 1 gamma = 2",
        "lr = 'open",
        'lr = "open',
        'lr = """open',
        "lr = [1, 2",
        "lr = {a = 1",
        "lr = 01",
        "lr = 1__0",
        "lr = 1.",
        "lr = .5",
        "lr = yes",
        "lr = True",
        "lr = null",
        "lr = 2026-13-45",
        "lr = 1\nlr = 2",
        "[ppo",
        "[ppo]]",
        "[]",
        "[[ppo]\n",
        "[ppo]\n[ppo]",
        "ppo = 1\n[ppo]\nclip = 0.1",
        "lr: 1",
        "lr = 1 // mine",
        "lr = \x07",
        'lr = "\\x"',
        "lr = 0b2",
    ):
        yield text(repr(piece), ".toml", f"{piece}\n", "lr", "ppo")
    whole = written(valid(source, every=True), ".toml")
    yield text("twice", ".toml", whole + b"\n" + whole)


@kind
def not_text(source: random.Random) -> Found:
    for size in (1, 2, 100, 5000, 100_000):
        for suffix in SUFFIXES:
            content = bytearray(source.randbytes(size))
            content[source.randrange(size)] = 0xFF  # in UTF-8 there is none
            yield text(f"{size} bytes", suffix, bytes(content))
    for suffix in SUFFIXES:
        yield text("pickle", suffix, pickle.dumps({"lr": 1.0}))
        yield text("gzip", suffix, gzip.compress(written(valid(source), suffix), mtime=0))
        yield text("NUL", suffix, b"\0" * 1000)


@kind
def other_encodings(source: random.Random) -> Found:
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"):
        for suffix in SUFFIXES:
            yield text(encoding, suffix, written(valid(source), suffix).decode().encode(encoding))
    for encoding in ("latin-1", "cp1252", "shift-jis", "utf-8-surrogates"):
        for suffix in SUFFIXES:
            letter = "ア" if encoding == "shift-jis" else "é"
            broken = b"\xed\xa0\x80" if "surrogates" in encoding else letter.encode(encoding)
            config = written({"log_jsonl": "LETTER"}, suffix)
            yield text(encoding, suffix, config.replace(b"LETTER", broken))


@kind
def not_names_and_values(source: random.Random) -> Found:
    for content in ("[]", "[1, 2]", "5", "1.5", "true", '"text"', '[["lr", 1]]', '[{"lr": 1}]'):
        yield text(content, ".yaml", f"{content}\n")
        yield text(content, ".json", content)
    for content in ("just words", "- lr: 1\n", "2026-01-01", "!!set {lr}", "lr=1", "lr 1"):
        yield text(content, ".yaml", f"{content}\n", "lr")


@kind
def strange_names(source: random.Random) -> Found:
    for name in ("", " ", ".", "..", "lr.", ".lr", "ppo.clip", "\x1b[2J", "é", "x" * 5000, "a\nb"):
        config = valid(source) | {name: 1}
        suffix = source.choice(SUFFIXES)
        words = (f"c{suffix}", "no such option")
        yield Corrupt(f"{name[:20]!r}", f"c{suffix}", written(config, suffix), words)
    for name in ("", "lr", "Clip", "clip ", "__class__", "x" * 5000):
        config = valid(source) | {"ppo": {name: 1}}
        suffix = source.choice(SUFFIXES)
        words = (f"c{suffix}", "no such option")
        yield Corrupt(f"ppo.{name[:20]!r}", f"c{suffix}", written(config, suffix), words)
    for name in ("1", "1.5", "true", "~", "2026-01-01", "? ''\n", "!!binary aGk="):
        yield text(f"{name}: 1", ".yaml", f"{name}: 1\n", "no such option")
        yield text(f"ppo: {name}", ".yaml", f"ppo:\n  {name}: 1\n", "ppo")
    newlines = "\\n" * 100
    yield text("newlines", ".json", f'{{"{newlines}": 1}}', "no such option")


@kind
def too_many_mistakes(source: random.Random) -> Found:
    keys = {f"key{number}": 1 for number in range(9_000)}
    near = {f"lr{number}": 1 for number in range(2_000)}
    for suffix in (".json", ".toml"):
        yield text("9,000 names", suffix, written(keys, suffix), "key", f"c{suffix}")
        yield text("2,000 near names", suffix, written(near, suffix), "lr", f"c{suffix}")
        ppo = {"ppo": keys}
        yield text("9,000 names of ppo", suffix, written(ppo, suffix), "ppo", f"c{suffix}")
    yield text("300 names", ".yaml", written(dict(list(keys.items())[:300]), ".yaml"), "key")
    for value in ("x", -1, None, [1]):
        config = json.dumps({"hidden": [value] * 9_000})
        yield text(f"9,000 times {value}", ".json", config, "hidden")
    whole = valid(source, every=True)
    worst = {name: [[]] for name in whole}
    yield text("every field", ".json", written(worst, ".json"), "algo")
    yield text("long text", ".json", json.dumps({"lr": "\n" * 100_000}), "lr")
    yield text("wide text", ".json", json.dumps({"algo": "x" * 100_000}), "algo")
    yield text("long preset", ".json", json.dumps({"preset": "x" * 100_000}), "preset")
    yield text("long env_id", ".json", json.dumps({"env_id": "x" * 100_000}), "env_id")


@kind
def the_same_thing_twice(source: random.Random) -> Found:
    for config, word in (
        ({"batch_size": 64, "minibatches": 4}, "minibatches"),
        ({"batch_size": 1, "minibatches": 1}, "minibatches"),
        ({"algo": "a2c", "epochs": 2}, "epochs"),
        ({"algo": "a2c", "minibatches": 5}, "minibatches"),
        ({"algo": "a2c", "batch_size": 8}, "minibatches"),
        ({"algo": "impala", "epochs": 2}, "epochs"),
        ({"algo": "impala", "impala": {"rho_bar": 0.5}}, "c_bar"),
        ({"num_envs": 8, "rollout_steps": 5, "minibatches": 3}, "minibatches"),
        ({"num_envs": 8, "rollout_steps": 8, "batch_size": 48}, "batch_size"),
        ({"num_envs": 10_007, "rollout_steps": 9_973, "minibatches": 4}, "minibatches"),
        ({"num_envs": 3, "rollout_steps": 3, "batch_size": 10**12}, "batch_size"),
    ):
        for suffix in SUFFIXES:
            yield text(str(config), suffix, written(config, suffix), word)


@kind
def nested_too_deeply(source: random.Random) -> Found:
    for depth in (50, 980, 100_000):
        for name in ("lr", "ppo", "unknown"):
            lists, objects = "[" * depth + "1" + "]" * depth, '{"a":' * depth + "1" + "}" * depth
            yield text(f"{depth} lists", ".json", f'{{"{name}": {lists}}}', name)
            yield text(f"{depth} objects", ".json", f'{{"{name}": {objects}}}', name)
        yield text(f"{depth} dashes", ".yaml", f"{'- ' * depth}1\n")
        yield text(f"{depth} lists", ".toml", f"lr = {'[' * depth}{']' * depth}\n", "lr")
        yield text(f"{depth} dots", ".toml", f"a{'.a' * depth} = 1\n", "a")
    for depth in (50, 980, 100_000):
        yield text(f"{depth} lists", ".yaml", f"lr: {'[' * depth}{']' * depth}\n", "lr")
    yield text("open lists", ".yaml", f"lr: {'[' * 5_000}\n")
    yield text("open objects", ".yaml", f"lr: {'{a: ' * 5_000}\n")


def yaml_bomb(first: str, line: str, wide: int = 9, letters: str = "abcdefghi") -> str:
    """Each line refers to the one before `wide` times."""
    lines = [f"a: &a {first}"]
    for old, new in pairwise(letters):
        lines.append(f"{new}: &{new} " + line.format(", ".join([f"*{old}"] * wide)))
    return "\n".join(lines) + "\n"


@kind
def texts_that_multiply(source: random.Random) -> Found:
    for wide, letters in ((2, string.ascii_letters), (9, "abcdefghi"), (99, "abcde")):
        for first, line in (("[x]", "[{}]"), ("x", "[{}]"), ("{k: v}", "{{0: [{}]}}")):
            content = yaml_bomb(first, line, wide, letters) + f"seed: *{letters[-1]}\n"
            yield text(f"{wide} to the {len(letters)} {line}", ".yaml", content, "a")
    # Merged keys: so few that memory holds out until the time is up.
    yield text("merged keys", ".yaml", yaml_bomb("{k: v}", "{{<<: [{}]}}", 9, "abcdefgh"))
    yield text("merged keys, once", ".yaml", yaml_bomb("{k: v}", "{{<<: [{}]}}", 99, "abcde"))
    for content in ("lr: &a [*a]", "lr: &a {a: *a}", "&a lr: *a", "lr: &a {<<: *a}", "&a [*a]"):
        yield text(content, ".yaml", f"{content}\n", "lr")
    long = f"a: &a {'x' * 50_000}\nhidden: [{', '.join(['*a'] * 2_000)}]\n"
    yield text("long text, often", ".yaml", long, "a", "hidden")


@kind
def ten_megabytes(source: random.Random) -> Found:
    letters, lines = "x" * MEGABYTES, MEGABYTES // 10
    yield text("one value", ".json", f'{{"lr": "{letters}"}}', "lr")
    yield text("one name", ".json", f'{{"{letters}": 1}}', "xxx")
    yield text("one list", ".json", f'{{"hidden": [{"1," * (MEGABYTES // 2)}-1]}}')
    yield text("names", ".json", "{" + '"a":1,' * lines + '"lr":"x"}', "lr")
    yield text("one value", ".yaml", f"lr: {letters}\n", "lr")
    yield text("one quoted value", ".yaml", f'lr: "{letters}"\n', "lr")
    yield text("one name", ".yaml", f"{letters}: 1\n", "xxx")
    yield text("names", ".yaml", "".join(f"key{n:05}: 1\n" for n in range(lines)))
    yield text("a list", ".yaml", "- 1\n" * (MEGABYTES // 4))
    yield text("comments", ".yaml", "# mine\n" * (MEGABYTES // 7) + "lr: x\n", "lr")
    yield text("spaces", ".yaml", " " * MEGABYTES + "lr: x\n", "lr")
    yield text("one value", ".toml", f'lr = "{letters}"\n', "lr")
    yield text("names", ".toml", "".join(f"key{n} = 1\n" for n in range(lines)))
    yield text("comments", ".toml", "# mine\n" * (MEGABYTES // 7) + "lr = 'x'\n", "lr")
    yield text("noise", ".yaml", source.randbytes(MEGABYTES))
    yield text("noise", ".json", source.randbytes(MEGABYTES))
    yield text("noise", ".toml", source.randbytes(MEGABYTES))
    yield text("zeros", ".yaml", bytes(MEGABYTES))


@kind
def other_files(source: random.Random) -> Found:
    for suffix in (
        ".txt",
        ".ini",
        ".cfg",
        "",
        ".YAML",
        ".yaml.bak",
        ".xml",
        ".pkl",
        ".pt",
        ".jsonc",
    ):
        yield text(f"suffix {suffix!r}", suffix, written(valid(source), ".yaml"))
    for suffix in (*SUFFIXES, ".py", ""):
        yield Corrupt(f"directory {suffix!r}", f"folder{suffix}", None, (f"folder{suffix}",))


@kind
def python_files(source: random.Random) -> Found:
    for content in (
        "",
        "lr = 1\n",
        "config = {'lr': 1}\n",
        "config = None\n",
        "1 / 0\n",
        "def f(:\n",
        "import nothing_of_the_kind\n",
        "\0",
        "\x80",
        "import paceline\nconfig = paceline.Config\n",
        "import paceline\nconfig = paceline.Config(lr=-1)\n",
        "import paceline\nconfig = paceline.Config(lrr=1)\n",
        "raise RuntimeError('x' * 100_000)\n",
        "raise RuntimeError('\\n' * 100)\n",
        "config = 'x' * 100_000\n",
        "def f(): f()\nf()\n",
    ):
        yield text(repr(content), ".py", content.encode("latin-1"), "lr")


@kind
def worlds_that_are_none(source: random.Random) -> Found:
    for env_id in (
        "Cartpole-v1",
        "CartPole-v99",
        "",
        " ",
        "toy:",
        "toy:idenity",
        "no_module:X-v0",
        ":",
    ):
        for suffix in source.sample(SUFFIXES, 2):
            config = written({"env_id": env_id}, suffix)
            yield text(f"env_id {env_id!r}", suffix, config, "env_id", "toy", "environment")
    for wrapper in ("nowhere:Wrapper", "gymnasium.wrappers:Absent", "nothing", ":", "os:environ.x"):
        config = written({"env": {"wrappers": [wrapper]}}, ".json")
        yield text(f"wrapper {wrapper!r}", ".json", config, "wrappers")
    for preset in ("cartpole", "CartPole", "../ppo/CartPole-v1", "/etc/passwd", "", "x" * 300):
        yield text(f"preset {preset[:20]!r}", ".json", json.dumps({"preset": preset}), "preset")


def wrong_files(name: str) -> list[Corrupt]:
    """The files of one kind."""
    return list(KINDS[name](random.Random(name)))
