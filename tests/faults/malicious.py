"""Runs that somebody made to harm whoever opens them, and the command line under watch.

Run as a program it executes `paceline` in forked processes and writes down what they open.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import resource
import runpy
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

SECRET = "swordfish"
"""In every file outside of the run: it may never be shown."""
MEMORY = 8 * 2**30
"""Address space of a watched command: a bomb may fail in it, not fill the machine."""
ARGUMENTS = {
    "resume": ("resume", "run", "--total-iters", "4"),
    "eval": ("eval", "run", "--episodes", "2"),
}
COMMANDS = tuple(ARGUMENTS)
BOTH, RESUME, EVAL, NONE = COMMANDS, ("resume",), ("eval",), ()


# Watching -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A command that has ended; `opened` are the files outside that it opened."""

    code: int
    out: str
    err: str
    opened: list[str]


@dataclass(frozen=True)
class Job:
    """A command to run in `folder`, which holds the run and what lies outside of it."""

    folder: str
    arguments: tuple[str, ...]
    seconds: int = 20

    def path(self, name):
        return Path(self.folder) / f"watched.{name}"

    def seen(self, code):
        texts = (self.path(name).read_text("utf-8", "replace") for name in ("out", "err", "log"))
        out, err, opened = texts
        return Seen(code, out, err, opened.splitlines())

    def execute(self):
        """Become `paceline`: its output goes to files, and what it opens outside to another."""
        os.chdir(self.folder)
        if files := sys.modules.get("paceline.storage.files"):
            vars(files)["_STARTED_IN"] = str(Path.cwd())  # as in a process that was started here
        for number, name in ((0, os.devnull), (1, self.path("out")), (2, self.path("err"))):
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        self._watch(os.open(self.path("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(self.seconds)  # nothing here takes this long, unless it hangs
        sys.argv = ["paceline", *self.arguments]
        runpy.run_module("paceline", run_name="__main__", alter_sys=True)

    def _watch(self, log):
        outside = os.path.realpath(Path(self.folder) / "outside")

        def hook(event, arguments):
            if event not in ("open", "os.listdir", "os.scandir") or isinstance(arguments[0], int):
                return
            path = os.fsdecode(arguments[0] or ".")
            refuses_links = event == "open" and int(arguments[2] or 0) & os.O_NOFOLLOW
            if refuses_links and os.path.islink(path):  # noqa: PTH114
                return
            found = os.path.realpath(path)
            if event == "open" and os.path.isdir(found):  # noqa: PTH112
                return
            if found.startswith(outside):
                os.write(log, f"{event} {path}\n".encode())

        sys.addaudithook(hook)


class Forked:
    """Runs jobs in processes that are forked from one that has imported torch."""

    def __init__(self):
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | threads,
        )

    def __call__(self, job):
        print(json.dumps(vars(job)), file=self._process.stdin, flush=True)
        return job.seen(int(self._process.stdout.readline()))

    def close(self):
        self._process.communicate(timeout=30)


def alone(job):
    """Runs a job in an interpreter of its own, which takes a while to import torch."""
    job = replace(job, seconds=60)
    command = [sys.executable, __file__, json.dumps(vars(job))]
    return job.seen(subprocess.run(command, timeout=90, check=False).returncode)


def serve():
    """Fork for each job on stdin; answer with its exit code."""
    import paceline.session  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        if (child := os.fork()) == 0:
            _end(Job(**json.loads(line)).execute)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


def _end(execute):
    """End as the interpreter does, without taking torch apart, which lasts longer than all else."""
    code = 0
    try:
        execute()
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


# Planting -----------------------------------------------------------------------------------------

CHECKPOINT_FILES = ("weights.safetensors", "state.safetensors", "state.json", "manifest.json")


class Scene:
    """A run to plant something in, a directory outside of it, and a file that must never appear."""

    def __init__(self, folder):
        self.folder, self.run = folder, folder / "run"
        self.outside, self.canary = folder / "outside", folder / "canary"

    @property
    def checkpoint(self):
        """The only one of the run."""
        (found,) = (self.run / "checkpoints").glob("[0-9]*")
        return found

    def path(self, name):
        """Where the run keeps the file of this name."""
        return (self.checkpoint if name in CHECKPOINT_FILES else self.run) / name

    def write(self, name, content):
        """Replace a file; where a manifest lists it, that is made to agree."""
        content = content if isinstance(content, bytes) else content.encode("latin-1")
        self.path(name).write_bytes(content)
        if name in CHECKPOINT_FILES[:3]:
            manifest = json.loads(self.path("manifest.json").read_text())
            sha = hashlib.sha256(content).hexdigest()
            manifest[name] = {"bytes": len(content), "sha256": sha}
            self.path("manifest.json").write_text(json.dumps(manifest))

    def change_json(self, name, change):
        values = json.loads(self.path(name).read_text())
        self.write(name, json.dumps(change(values) or values))

    def change_arrays(self, name, change):
        from safetensors.numpy import load, save

        self.write(name, save(change(load(self.path(name).read_bytes()))))

    def change_config(self, **values):
        import yaml

        config = yaml.safe_load(self.path("config.yaml").read_text()) | values
        self.write("config.yaml", yaml.safe_dump(config))

    def link(self, path, target):
        """Put a link to `target` in place of whatever is at `path`."""
        if path.is_dir() and not path.is_symlink():
            path.rename(self.folder / "moved away")
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def pipe(self, name):
        """A named pipe in place of a file: who reads it waits for ever."""
        self.path(name).unlink(missing_ok=True)
        os.mkfifo(self.path(name))

    def directory(self, name):
        self.path(name).unlink()
        self.path(name).mkdir()


@dataclass(frozen=True)
class Case:
    """`refused` are the commands that must refuse it, with one of `named` in what they say.

    The others have no need of what was planted: they refuse too, or go on without it.
    """

    plant: Callable[[Scene], object]
    named: tuple[str, ...]
    refused: tuple[str, ...]


CASES: dict[str, Case] = {}


def case(name, named, refused, plant):
    """Add one; `named` may give alternatives, as a|b."""
    assert name not in CASES, name
    CASES[name] = Case(plant, tuple(named.split("|")), refused)


def content(name, file, text, refused=BOTH):
    """The whole of a file."""
    case(name, file, refused, partial(Scene.write, name=file, content=text))


def edited(what, file, refused, change, named=None):
    """What a file of JSON holds."""
    plant = partial(Scene.change_json, name=file, change=change)
    case(f"{file} {what}", named or file, refused, plant)


READ_BY = {
    "config.yaml": BOTH,
    "run.json": RESUME,
    **dict.fromkeys(CHECKPOINT_FILES, BOTH),
    "metrics.jsonl": NONE,
    "eval.json": NONE,
}

# Pickles.


class Evil:
    """Makes the canary when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def saved_by(save):
    """The content of a file that `save(file, evil)` writes."""

    def dump(evil):
        out = io.BytesIO()
        save(out, evil)
        return out.getvalue()

    return dump


def as_torch(file, evil):
    import torch

    torch.save({"weight": evil}, file)


def as_numpy(file, evil):
    import numpy as np

    np.save(file, np.array([evil], dtype=object), allow_pickle=True)


def as_numpy_archive(file, evil):
    import numpy as np

    np.savez(file, weight=np.array([evil], dtype=object))


PICKLES = {
    "pickle": pickle.dumps,
    "text pickle": lambda evil: pickle.dumps(evil, 0),
    "torch file": saved_by(as_torch),
    "numpy file": saved_by(as_numpy),
    "numpy archive": saved_by(as_numpy_archive),
}


def pickled(scene, dump, name):
    scene.write(name, dump(Evil(scene.canary)))


def beside_the_weights(scene, name):
    (scene.checkpoint / name).write_bytes(pickle.dumps(Evil(scene.canary)))


for (_kind, _dump), (_file, _readers) in product(PICKLES.items(), READ_BY.items()):
    case(f"{_kind} as {_file}", _file, _readers, partial(pickled, dump=_dump, name=_file))
for _name in ("weights.pt", "weights.pkl", ".metadata", "__0_0.distcp", "checkpoint.pth"):
    _plant = partial(beside_the_weights, name=_name)
    case(f"pickle beside the weights as {_name}", _name, NONE, _plant)

# The configuration.

YAML = {
    "apply": "!!python/object/apply:os.system ['touch {canary}']",
    "new": "!!python/object/new:os.system ['touch {canary}']",
    "name": "!!python/name:os.system",
    "module": "!!python/module:antigravity",
    "tuple": "!!python/tuple [1, 2]",
    "object": "!!python/object:subprocess.Popen {{args: ['touch', '{canary}']}}",
    "own tag": "!system 'touch {canary}'",
    "code": "__import__('os').system('touch {canary}')",
    "shell": "$(touch {canary})",
    "escape": r'"\e]0;owned\a\e[2J\e[31m"',
}


def seed(scene, text):
    old = scene.path("config.yaml").read_text()
    new = old.replace("seed: 0", f"seed: {text.format(canary=scene.canary)}")
    scene.write("config.yaml", new)


for _name, _text in YAML.items():
    case(f"YAML {_name}", "config.yaml", BOTH, partial(seed, text=_text))


def bomb(first, line, wide=9, letters="abcdefghi"):
    """Each line refers to the one before `wide` times."""
    lines = [f"a: &a {first}"]
    for old, new in pairwise(letters):
        lines.append(f"{new}: &{new} " + line.format(", ".join([f"*{old}"] * wide)))
    return "\n".join(lines) + "\n"


for _name, _text in {
    "of aliases": bomb("[x, x, x]", "[{}]"),
    "of merged keys": bomb("{lr: 1}", "{{<<: [{}]}}"),
    "of text": f"a: &a {'x' * 1_000_000}\nseed: [{', '.join(['*a'] * 9_000)}]\n",
    "of brackets": "[" * 100_000,
    "of braces": "{a: " * 100_000,
    "of itself": "seed: &a [*a, *a]\n",
    "of digits": f"seed: 0x{'f' * 100_000}\n",
    "of keys": "".join(f"key{number}: 1\n" for number in range(9_000)),
}.items():
    content(f"YAML bomb {_name}", "config.yaml", _text)


def agreed(scene, network=(), **options):
    """Configuration and checkpoint agree about options."""

    def change(facts):
        facts["config"].update(options)
        facts["network"].update(network)

    scene.change_config(**options)
    scene.change_json("state.json", change)


def their_file(scene):
    scene.change_config(log_jsonl=str(scene.outside / "secret.txt"))


def their_directory(scene):
    scene.change_config(output_dir=str(scene.outside), overwrite=True)


def their_run(scene):
    agreed(scene, init_from=str(scene.outside / "run"))


HUGE = {"hidden": [10**9]}
_plant = partial(agreed, network=HUGE, **HUGE)
case("a layer of 10^9 everywhere", "hidden|config.yaml|memory", BOTH, _plant)
case("log_jsonl is somebody's file", "", NONE, their_file)
case("output_dir is somebody's directory", "", NONE, their_directory)
case("init_from is somebody's run", "", NONE, their_run)

# run.json, state.json, manifest.json.


def fact(file, name, value, refused, named=None):
    """One fact, by the names that lead to it."""

    def change(facts):
        *path, last = name.split("/")
        for part in path:
            facts = facts[int(part) if part.isdigit() else part]
        facts[last] = value

    edited(f"with {name} = {json.dumps(value)[:90]}", file, refused, change, named)


CHOICES = {"threads": 1, "compiled": False, "device": "cpu"}
for _value in (
    CHOICES | {"device": "__import__('os').system('touch canary')"},
    CHOICES | {"device": "meta"},
    CHOICES | {"device": "\x1b[2J\x1b]0;owned\a"},
    CHOICES | {"threads": 10**9},
    CHOICES | {"threads": 10**30},
    CHOICES | {"threads": -1},
    CHOICES | {"threads": "x" * 10_000_000},
    CHOICES | {"__class__": "os"},
    {"threads": 1},
    [1, False, "cpu"],
    None,
):
    fact("run.json", "choices", _value, RESUME)

JSON = {
    "deep lists": "[" * 200_000,
    "deep objects": '{"a":' * 200_000,
    "deep and whole": "[" * 5_000 + "]" * 5_000,
    "a huge number": "1" * 100_000,
    "NaN": "NaN",
    "null": "null",
    "text": '"text"',
    "nothing": "",
    "not UTF-8": "ÿþ",
    "10 MB": '"' + "x" * 10_000_000 + '"',
}
for (_name, _text), _file in product(JSON.items(), ("run.json", "state.json", "manifest.json")):
    content(f"{_name} as {_file}", _file, _text, READ_BY[_file])
content("deep lists in metrics.jsonl", "metrics.jsonl", "[" * 100_000 + "\n", NONE)

FACTS_OF_THE_NETWORK = {
    "hidden": ([10**9], [10**30], [-1], [0], ["x"], [1.5], [None], 16, "16", None, [16, 16], []),
    "activation": ("__import__('os')", ["tanh"]),
    "obs": (None,),
    "obs/leaves": ([], "x"),
    "obs/leaves/0/shape": ([10**12],),
    "obs/leaves/0/kind": ("image", "touch canary"),
    "obs/leaves/0/dtype": ("object",),
    "obs/mask": (10**12,),
    "act/size": (10**12,),
    "act/low": (["touch canary"],),
    "unknown": (1,),
    "encoder": (5, "sys:exit", "builtins:print", "builtins:input", "nothing:Here"),
    "normalize_obs": (True,),
}
SAID_OF_THE_NETWORK = "state.json|weights.safetensors|environment|env_id|encoder"
for _name, _values in FACTS_OF_THE_NETWORK.items():
    for _value in _values:
        fact("state.json", f"network/{_name}", _value, EVAL, SAID_OF_THE_NETWORK)
fact("state.json", "network", [], EVAL, SAID_OF_THE_NETWORK)
FACTS_OF_THE_RUN = {
    "iter": ("4", -1, 10**30, 1.5, None),
    "steps": ("x", -1, float("nan")),
    "time": ("x", float("nan")),
    "recent": (5, ["x"], {"a": "b"}),
    "first": (["x"],),
    "episodes": (-1,),
    "best": ("x", []),
    "config": (None, [], "x"),
}
for _name, _values in FACTS_OF_THE_RUN.items():
    for _value in _values:
        fact("state.json", _name, _value, RESUME)
fact("state.json", "env_id", "antigravity:Evil-v0", NONE)


def without(name):
    return lambda facts: {key: value for key, value in facts.items() if key != name}


for _name in ("iter", "recent", "config", "evaluated"):
    edited(f"without {_name}", "state.json", RESUME, without(_name))
edited("without network", "state.json", EVAL, without("network"))

OUTSIDE = {"../../../outside/secret.txt": {"bytes": 20, "sha256": "0" * 64}}
edited("of files outside", "manifest.json", BOTH, lambda _: OUTSIDE)
edited("also of files outside", "manifest.json", NONE, lambda values: values | OUTSIDE)
edited(
    "of absolute paths",
    "manifest.json",
    BOTH,
    lambda values: {f"/etc/{name}": value for name, value in values.items()},
)
for _name, _values in {
    "bytes": ("x" * 10_000_000, "\x1b[2J\x1b]0;owned\a", None),
    "sha256": (["x"], None),
}.items():
    for _value in _values:
        _file = "weights.safetensors"
        fact("manifest.json", f"{_file}/{_name}", _value, BOTH, _file)

# Tensors.


def safetensors(header, body=b"\0" * 8, size=None):
    """The format, by hand: eight bytes of length, JSON, numbers."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"policy.head.bias": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


SECOND = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
TENSORS = {
    "a header longer than the file": safetensors(tensor(), size=10_000),
    "a header of 2^64 bytes": safetensors(tensor(), size=2**64 - 1),
    "a header of 200 MB": safetensors(tensor(), size=200_000_000),
    "no header": b"",
    "a header that is no JSON": safetensors(b"import os"),
    "a header that is a list": safetensors([]),
    "a header of brackets": safetensors(b"[" * 50_000),
    "a false shape": safetensors(tensor(shape=[200])),
    "a shape of 2^62 by 2^62": safetensors(tensor(shape=[2**62, 2**62])),
    "a shape of -1": safetensors(tensor(shape=[-2])),
    "a shape that is text": safetensors(tensor(shape="2")),
    "negative offsets": safetensors(tensor(offsets=[-8, 0])),
    "offsets turned round": safetensors(tensor(offsets=[8, 0])),
    "offsets beyond the end": safetensors(tensor(offsets=[0, 2**40], shape=[2**38])),
    "overlapping tensors": safetensors(tensor() | SECOND),
    "an unknown dtype": safetensors(tensor("object")),
    "bytes behind the end": safetensors(tensor(), b"\0" * 16),
}
for (_name, _bytes), _file in product(TENSORS.items(), CHECKPOINT_FILES[:2]):
    content(f"{_file} with {_name}", _file, _bytes)


def every(change):
    return lambda found: {name: change(array) for name, array in found.items()}


def only(key, change):
    """Change the array whose name begins with `key`."""

    def changed(found):
        import numpy as np

        name = next(name for name in found if name.startswith(key))
        return found | {name: np.asarray(change(found[name]))}

    return changed


def lacking(key):
    return lambda found: {name: array for name, array in found.items() if key not in name}


# Well-formed tensors that are not what they should be.
WEIGHTS = {
    "NaN": every(lambda array: array * float("nan")),
    "one NaN, and float64": only("policy.head.bias", lambda array: array * [1, float("nan")]),
    "infinity": every(lambda array: array + float("inf")),
    "float64": every(lambda array: array.astype("f8")),
    "integers": every(lambda array: array.astype("i8")),
    "bytes": every(lambda array: array.astype("u1")),
    "truth values": every(lambda array: array.astype("?")),
    "flat weights": every(lambda array: array.ravel()),
    "transposed weights": every(lambda array: array.T.copy()),
    "three axes": every(lambda array: array[None]),
    "five axes": every(lambda array: array[None, None, None]),
    "twice as many": every(lambda array: array.repeat(2, 0)),
    "half as many": every(lambda array: array[::2].copy()),
    "nothing": every(lambda array: array[:0]),
    "one missing": lacking("policy.head.bias"),
    "none": lambda found: {"x": found["policy.head.bias"]},
}
STATE = {
    "NaN weights": only("learner.storage", lambda array: array * float("nan")),
    "NaN moments": only("learner.moment0", lambda array: array * float("nan")),
    "infinite weights": only("learner.storage", lambda array: array + float("inf")),
    "too few weights": only("learner.storage", lambda array: array[:-1].copy()),
    "too many weights": only("learner.storage", lambda array: array.repeat(2)),
    "one weight": only("learner.storage", lambda array: array[:1].copy()),
    "weights of bytes": only("learner.storage", lambda array: array.astype("u1")),
    "no moments": lacking("moment"),
    "negative counts": only("learner.counts", lambda array: array * 0 - 5),
    "NaN counts": only("learner.counts", lambda array: array * float("nan")),
    "three counts": only("learner.counts", lambda array: array.repeat(3)),
    "a row far away": only("sampler.0.row", lambda array: array * 0 + 2**62),
    "a negative row": only("sampler.0.row", lambda array: array * 0 - 5),
    "rows that are many": only("sampler.0.row", lambda array: array.repeat(3)),
    "episodes that start later": only("sampler.0.started", lambda array: array + 10**6),
    "episodes that started long ago": only("sampler.0.started", lambda array: array - 2**40),
    "episodes of other columns": only("sampler.0.episode", lambda array: array.repeat(3)),
    "too many ends": only("sampler.0.ended", lambda array: array.repeat(3)),
    "too few observations": only("sampler.0.obs", lambda array: array[:, :2].copy()),
    "rollouts beyond counting": only("sampler.0.rollouts", lambda array: array * 0 - 1),
    "no actions": lacking("sampler.0.actions"),
    "actions of another shape": only("sampler.0.actions", lambda a: a.astype("f8")[:, None]),
    "nothing it should have": lambda found: {"x": found["learner.counts"]},
}
for _file, _changes, _named, _readers in (
    ("weights.safetensors", WEIGHTS, "weights.safetensors|state.json", EVAL),
    ("state.safetensors", STATE, "state.safetensors", RESUME),
):
    for _name, _change in _changes.items():
        _plant = partial(Scene.change_arrays, name=_file, change=_change)
        case(f"{_file} with {_name}", _named, _readers, _plant)

# Links and other files that are none.


def linked(scene, name, target):
    """`{number}` is that of the checkpoint, `{outside}` the directory outside."""
    values = {"outside": scene.outside, "number": scene.checkpoint.name}
    scene.link(scene.run / name.format(**values), target.format(**values))


def link(name, target, named, refused):
    shown = f"{name.format(number='N')} is a link to {target}"
    case(shown, named, refused, partial(linked, name=name, target=target))


HERE = "checkpoints/{number}"
for _name in CHECKPOINT_FILES:
    link(f"{HERE}/{_name}", "{outside}/secret.txt", _name, BOTH)
    link(f"{HERE}/{_name}", f"{{outside}}/run/{HERE}/{_name}", _name, BOTH)
for _target in (f"{{outside}}/run/{HERE}", f"../../outside/run/{HERE}", "../../../../../../../etc"):
    link(HERE, _target, "checkpoints/0", BOTH)
link("checkpoints", "{outside}/run/checkpoints", "checkpoints", BOTH)
link("checkpoints", "{outside}", "checkpoints", BOTH)
link("checkpoints/best", f"{{outside}}/run/{HERE}", "best", NONE)
link("checkpoints/best", "../../../../../../../etc", "best", NONE)
for _target in ("secret.txt", "secret.json", "run/config.yaml"):
    link("config.yaml", f"{{outside}}/{_target}", "config.yaml", BOTH)
link("config.yaml", "{outside}/nothing", "config.yaml", RESUME)
for _target in ("secret.txt", "secret.json", "run/run.json", "nothing"):
    link("run.json", f"{{outside}}/{_target}", "run.json", RESUME)
for _name in (".lock", "metrics.jsonl", "eval.json", ".tmp-eval.json", ".tmp-config.yaml"):
    link(_name, "{outside}/secret.txt", _name, NONE)
    link(_name, "{outside}/made by the run", _name, NONE)
link("metrics.jsonl", "{outside}/run/metrics.jsonl", "metrics.jsonl", NONE)
link("checkpoints/.tmp-00000003", "{outside}", "tmp", NONE)
link("checkpoints/.tmp-best", "{outside}/secret.txt", "tmp", NONE)


def events(scene):
    scene.change_config(track="tensorboard")
    scene.link(scene.run / "events", scene.outside)


def damaged(scene):
    """The place where a damaged checkpoint is put aside is a link."""
    checkpoints = scene.run / "checkpoints"
    (checkpoints / "00000009").mkdir()
    scene.link(checkpoints / ".damaged-00000009", scene.outside)


case("events is a link", "events", NONE, events)
case("the place for damaged checkpoints is a link", "", NONE, damaged)


def terabyte(scene, name):
    os.truncate(scene.path(name), 2**40)


ODD = {
    "is a pipe": (Scene.pipe, READ_BY | {"config.yaml": NONE, ".lock": NONE}),
    "is a directory": (Scene.directory, READ_BY | {"config.yaml": RESUME}),
    "has a terabyte of nothing": (terabyte, {n: r for n, r in READ_BY.items() if r}),
}
for _what, (_plant, _named) in ODD.items():
    for _name, _readers in _named.items():
        case(f"{_name} {_what}", _name, _readers, partial(_plant, name=_name))


QUICK = [
    name for n, name in enumerate(CASES) if n % 12 == 0 or "link" in name or "somebody" in name
]
"""Those that every test run takes; the others come with the slow ones."""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Job(**json.loads(sys.argv[1])).execute()
    else:
        serve()
