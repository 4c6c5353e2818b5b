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
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

SECRET = "swordfish"
"""In every file outside of the run: it may never be shown."""
MEMORY = 8 * 2**30
"""Address space of a watched command: a bomb may fail in it, not fill the machine."""
COMMANDS = ("resume", "eval")
ARGUMENTS = {
    "resume": ("resume", "run", "--total-iters", "4"),
    "eval": ("eval", "run", "--episodes", "2"),
}
BOTH, RESUME, EVAL, NONE = COMMANDS, COMMANDS[:1], COMMANDS[1:], ()


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

    def path(self, name: str) -> Path:
        return Path(self.folder) / f"watched.{name}"

    def seen(self, code: int) -> Seen:
        out, err, opened = (
            self.path(n).read_text("utf-8", "replace") for n in ("out", "err", "log")
        )
        return Seen(code, out, err, opened.splitlines())

    def execute(self) -> None:
        """Become `paceline`: its output goes to files, and what it opens outside to another."""
        os.chdir(self.folder)
        if files := sys.modules.get(
            "paceline.storage.files"
        ):  # as in a process that was started here
            vars(files)["_STARTED_IN"] = str(Path.cwd())
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

    def _watch(self, log: int) -> None:
        outside = os.path.realpath(Path(self.folder) / "outside")

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
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

    def __init__(self) -> None:
        threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | threads,
        )

    def __call__(self, job: Job) -> Seen:
        streams = self._process.stdin, self._process.stdout
        assert streams[0] is not None and streams[1] is not None
        print(json.dumps(vars(job)), file=streams[0], flush=True)
        return job.seen(int(streams[1].readline()))

    def close(self) -> None:
        self._process.communicate(timeout=30)


def alone(job: Job) -> Seen:
    """Runs a job in an interpreter of its own, which takes a while to import torch."""
    job = replace(job, seconds=60)
    command = [sys.executable, __file__, json.dumps(vars(job))]
    return job.seen(subprocess.run(command, timeout=90, check=False).returncode)


def serve() -> None:
    """Fork for each job on stdin; answer with its exit code."""
    import paceline.session  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        if (child := os.fork()) == 0:
            _end(Job(**json.loads(line)).execute)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


def _end(execute: Callable[[], None]) -> NoReturn:
    """End as the interpreter does, without taking torch apart, which lasts longer than all else."""
    code: Any = 0
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


@dataclass(frozen=True)
class Scene:
    """A run to plant something in, a directory outside of it, and a file that must never appear."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def checkpoint(self) -> Path:
        """The only one of the run."""
        (found,) = (self.run / "checkpoints").glob("[0-9]*")
        return found

    def path(self, name: str) -> Path:
        """Where the run keeps the file of this name."""
        return (self.checkpoint if name in CHECKPOINT_FILES else self.run) / name

    def write(self, name: str, content: bytes) -> None:
        """Replace a file; where a manifest lists it, that is made to agree."""
        self.path(name).write_bytes(content)
        if name in CHECKPOINT_FILES[:3]:
            manifest = json.loads(self.path("manifest.json").read_text())
            sha = hashlib.sha256(content).hexdigest()
            manifest[name] = {"bytes": len(content), "sha256": sha}
            self.path("manifest.json").write_text(json.dumps(manifest))

    def change_json(self, name: str, change: Callable[[Any], Any]) -> None:
        values = json.loads(self.path(name).read_text())
        self.write(name, json.dumps(change(values) or values).encode())

    def change_arrays(self, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
        from safetensors.numpy import load, save

        arrays = load(self.path(name).read_bytes())
        self.write(name, save(change(arrays) or arrays))

    def change_config(self, **values: Any) -> None:
        import yaml

        config = yaml.safe_load(self.path("config.yaml").read_text()) | values
        self.write("config.yaml", yaml.safe_dump(config).encode())

    def link(self, path: Path, target: Path | str) -> None:
        """Put a link to `target` in place of whatever is at `path`."""
        if path.is_dir() and not path.is_symlink():
            path.rename(self.folder / "moved away")
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def pipe(self, path: Path) -> None:
        """A named pipe in place of a file: who reads it waits for ever."""
        path.unlink(missing_ok=True)
        os.mkfifo(path)


CHECKPOINT_FILES = ("weights.safetensors", "state.safetensors", "state.json", "manifest.json")


@dataclass(frozen=True)
class Case:
    """`refused` are the commands that must refuse it, with one of `named` in what they say.

    The others have no need of what was planted: they refuse too, or go on without it.
    """

    plant: Callable[[Scene], Any]
    named: tuple[str, ...]
    refused: tuple[str, ...] = BOTH


CASES: dict[str, Case] = {}


def case(name: str, plant: Callable[[Scene], Any], named: str, refused: tuple[str, ...]) -> None:
    """Add one; `named` may give alternatives, as a|b."""
    assert name not in CASES, name
    CASES[name] = Case(plant, tuple(named.split("|")), refused)


class Evil:
    """Makes the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.canary}'",)


def as_torch(evil: Any) -> bytes:
    import torch

    out = io.BytesIO()
    torch.save({"weight": evil}, out)
    return out.getvalue()


def as_numpy(evil: Any) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.save(out, np.array([evil], dtype=object), allow_pickle=True)
    return out.getvalue()


def as_numpy_archive(evil: Any) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.savez(out, weight=np.array([evil], dtype=object))
    return out.getvalue()


PICKLES: dict[str, Callable[[Any], bytes]] = {
    "pickle": pickle.dumps,
    "text pickle": lambda evil: pickle.dumps(evil, 0),
    "torch file": as_torch,
    "numpy file": as_numpy,
    "numpy archive": as_numpy_archive,
}
READ_BY = {
    "config.yaml": BOTH,
    "run.json": RESUME,
    **dict.fromkeys(CHECKPOINT_FILES, BOTH),
    "metrics.jsonl": NONE,
    "eval.json": NONE,
}
for _kind, _dump in PICKLES.items():
    for _name, _readers in READ_BY.items():
        case(
            f"{_kind} as {_name}",
            lambda scene, name=_name, dump=_dump: scene.write(name, dump(Evil(scene.canary))),
            _name,
            _readers,
        )
for _name in ("weights.pt", "weights.pkl", ".metadata", "__0_0.distcp", "checkpoint.pth"):
    case(
        f"pickle beside the weights as {_name}",
        lambda scene, name=_name: (scene.checkpoint / name).write_bytes(
            pickle.dumps(Evil(scene.canary))
        ),
        _name,
        NONE,
    )

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
for _name, _text in YAML.items():
    case(
        f"YAML {_name}",
        lambda scene, text=_text: scene.write(
            "config.yaml",
            scene.path("config.yaml")
            .read_text()
            .replace("seed: 0", "seed: " + text.format(canary=scene.canary))
            .encode(),
        ),
        "config.yaml",
        BOTH,
    )


def bomb(first: str, line: str, wide: int = 9, letters: str = "abcdefghi") -> str:
    """Each line refers to the one before `wide` times."""
    lines = [f"a: &a {first}"]
    for old, new in pairwise(letters):
        lines.append(f"{new}: &{new} " + line.format(", ".join([f"*{old}"] * wide)))
    return "\n".join(lines) + "\n"


BOMBS = {
    "of aliases": bomb("[x, x, x]", "[{}]"),
    "of merged keys": bomb("{lr: 1}", "{{<<: [{}]}}"),
    "of text": f"a: &a {'x' * 1_000_000}\nseed: [{', '.join(['*a'] * 9_000)}]\n",
    "of brackets": "[" * 100_000,
    "of braces": "{a: " * 100_000,
    "of itself": "seed: &a [*a, *a]\n",
    "of digits": f"seed: 0x{'f' * 100_000}\n",
    "of keys": "".join(f"key{number}: 1\n" for number in range(9_000)),
}
for _name, _text in BOMBS.items():
    case(
        f"YAML bomb {_name}",
        lambda scene, text=_text: scene.write("config.yaml", text.encode()),
        "config.yaml",
        BOTH,
    )


def absurd_network(scene: Scene) -> None:
    """Configuration and checkpoint agree about a layer that no memory holds."""

    def change(facts: Any) -> None:
        facts["config"]["hidden"] = facts["network"]["hidden"] = [10**9]

    scene.change_config(hidden=[10**9])
    scene.change_json("state.json", change)


case("a layer of 10^9 everywhere", absurd_network, "hidden|config.yaml|memory", BOTH)
case(
    "log_jsonl is somebody's file",
    lambda scene: scene.change_config(log_jsonl=str(scene.outside / "secret.txt")),
    "",
    NONE,
)
case(
    "output_dir is somebody's directory",
    lambda scene: scene.change_config(output_dir=str(scene.outside), overwrite=True),
    "",
    NONE,
)


def another_start(scene: Scene) -> None:
    """Configuration and checkpoint agree that the run began with weights from elsewhere."""
    elsewhere = str(scene.outside / "run")
    scene.change_config(init_from=elsewhere)
    scene.change_json("state.json", lambda facts: facts["config"].update(init_from=elsewhere))


case("init_from is somebody's run", another_start, "", NONE)

# What a run says about how it was made.
CHOICES: dict[str, Any] = {
    "code": {"threads": 1, "compiled": False, "device": "__import__('os').system('touch canary')"},
    "no device": {"threads": 1, "compiled": False, "device": "meta"},
    "10^9 threads": {"threads": 10**9, "compiled": False, "device": "cpu"},
    "10^30 threads": {"threads": 10**30, "compiled": False, "device": "cpu"},
    "-1 threads": {"threads": -1, "compiled": False, "device": "cpu"},
    "unknown": {"threads": 1, "compiled": False, "device": "cpu", "__class__": "os"},
    "a list": [1, False, "cpu"],
    "null": None,
    "10 MB": {"threads": "x" * 10_000_000, "compiled": False, "device": "cpu"},
    "escape": {"threads": 1, "compiled": False, "device": "\x1b[2J\x1b]0;owned\a"},
}
for _name, _value in CHOICES.items():
    case(
        f"run.json with choices: {_name}",
        lambda scene, value=_value: scene.change_json(
            "run.json", lambda facts: facts.update(choices=value)
        ),
        "run.json",
        RESUME,
    )

# JSON that is none, or too much.
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
for _name, _text in JSON.items():
    for _file in ("run.json", "state.json", "manifest.json"):
        case(
            f"{_name} as {_file}",
            lambda scene, file=_file, text=_text: scene.write(file, text.encode("latin-1")),
            _file,
            READ_BY[_file],
        )
case(
    "deep lists in metrics.jsonl",
    lambda scene: scene.write("metrics.jsonl", b"[" * 100_000 + b"\n"),
    "metrics.jsonl",
    NONE,
)


# A checkpoint that lies about itself, with a manifest that agrees.
def fact(name: str, value: Any, refused: tuple[str, ...]) -> None:
    """Set one fact, by its dotted name."""

    def change(facts: Any) -> None:
        *path, last = name.split(".")
        for part in path:
            facts = facts[int(part) if part.isdigit() else part]
        facts[last] = value

    shown = json.dumps(value)
    case(
        f"state.json with {name} = {shown[:40]}",
        lambda scene: scene.change_json("state.json", change),
        "state.json"
        if refused == RESUME
        else "state.json|weights.safetensors|environment|env_id|encoder",
        refused,
    )


for _value in ([10**9], [10**30], [-1], [0], ["x"], [1.5], [None], 16, "16", None, [16, 16], []):
    fact("network.hidden", _value, EVAL)
for _name, _value in (
    ("network.activation", "__import__('os')"),
    ("network.activation", ["tanh"]),
    ("network.obs", None),
    ("network.obs.leaves", []),
    ("network.obs.leaves", "x"),
    ("network.obs.leaves.0.shape", [10**12]),
    ("network.obs.leaves.0.kind", "image"),
    ("network.obs.leaves.0.kind", "touch canary"),
    ("network.obs.leaves.0.dtype", "object"),
    ("network.obs.mask", 10**12),
    ("network.act.size", 10**12),
    ("network.act.low", ["touch canary"]),
    ("network.unknown", 1),
    ("network.encoder", 5),
    ("network.encoder", "sys:exit"),
    ("network.encoder", "builtins:print"),
    ("network.encoder", "builtins:input"),
    ("network.encoder", "nothing:Here"),
    ("network.normalize_obs", True),
    ("network", []),
):
    fact(_name, _value, EVAL)
for _name, _value in (
    ("iter", "4"),
    ("iter", -1),
    ("iter", 10**30),
    ("iter", 1.5),
    ("iter", None),
    ("steps", "x"),
    ("steps", -1),
    ("steps", float("nan")),
    ("time", "x"),
    ("time", float("nan")),
    ("recent", 5),
    ("recent", ["x"]),
    ("recent", {"a": "b"}),
    ("first", ["x"]),
    ("episodes", -1),
    ("best", "x"),
    ("best", []),
    ("config", None),
    ("config", []),
    ("config", "x"),
):
    fact(_name, _value, RESUME)
for _name in ("iter", "recent", "config", "evaluated"):
    case(
        f"state.json without {_name}",
        lambda scene, name=_name: scene.change_json(
            "state.json", lambda facts: facts.pop(name) and None
        ),
        "state.json",
        RESUME,
    )
case(
    "state.json without network",
    lambda scene: scene.change_json("state.json", lambda facts: facts.pop("network") and None),
    "state.json",
    EVAL,
)
case(
    "state.json with an environment of its own",
    lambda scene: scene.change_json(
        "state.json", lambda facts: facts.update(env_id="antigravity:Evil-v0")
    ),
    "",
    NONE,
)


# Manifests.
def manifest(name: str, change: Callable[[Any], Any], refused: tuple[str, ...] = BOTH) -> None:
    case(
        f"manifest.json {name}",
        lambda scene: scene.change_json("manifest.json", change),
        "manifest.json" if refused else "",
        refused,
    )


OUTSIDE = {"../../../outside/secret.txt": {"bytes": 20, "sha256": "0" * 64}}
manifest("of files outside", lambda _: OUTSIDE)
manifest("also of files outside", lambda values: values | OUTSIDE, NONE)
manifest("of absolute paths", lambda values: {f"/etc/{name}": v for name, v in values.items()})
for _name, _value in (
    ("bytes", "x" * 10_000_000),
    ("bytes", "\x1b[2J\x1b]0;owned\a"),
    ("bytes", None),
    ("sha256", ["x"]),
    ("sha256", None),
):
    case(
        f"manifest.json with {_name} = {json.dumps(_value)[:40]}",
        lambda scene, name=_name, value=_value: scene.change_json(
            "manifest.json", lambda values: values["weights.safetensors"].update({name: value})
        ),
        "weights.safetensors",
        BOTH,
    )


# Tensors.
def safetensors(header: Any, body: bytes = b"", size: int | None = None) -> bytes:
    """The format, by hand: eight bytes of length, JSON, numbers."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def tensor(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"policy.head.bias": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


EIGHT = b"\0" * 8
TENSORS = {
    "a header longer than the file": safetensors(tensor(), EIGHT, 10_000),
    "a header of 2^64 bytes": safetensors(tensor(), EIGHT, 2**64 - 1),
    "a header of 200 MB": safetensors(tensor(), EIGHT, 200_000_000),
    "no header": b"",
    "a header that is no JSON": safetensors(b"import os", EIGHT),
    "a header that is a list": safetensors([], EIGHT),
    "a header of brackets": safetensors(b"[" * 50_000, EIGHT),
    "a false shape": safetensors(tensor(shape=[200]), EIGHT),
    "a shape of 2^62 by 2^62": safetensors(tensor(shape=[2**62, 2**62]), EIGHT),
    "a shape of -1": safetensors(tensor(shape=[-2]), EIGHT),
    "a shape that is text": safetensors(tensor(shape="2"), EIGHT),
    "negative offsets": safetensors(tensor(offsets=[-8, 0]), EIGHT),
    "offsets turned round": safetensors(tensor(offsets=[8, 0]), EIGHT),
    "offsets beyond the end": safetensors(tensor(offsets=[0, 2**40], shape=[2**38]), EIGHT),
    "overlapping tensors": safetensors(
        tensor() | {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, EIGHT
    ),
    "an unknown dtype": safetensors(tensor("object"), EIGHT),
    "bytes behind the end": safetensors(tensor(), EIGHT * 2),
}
for _name, _content in TENSORS.items():
    for _file in ("weights.safetensors", "state.safetensors"):
        case(
            f"{_file} with {_name}",
            lambda scene, file=_file, content=_content: scene.write(file, content),
            _file,
            BOTH,
        )


def arrays(file: str, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Well-formed tensors that are not what they should be."""
    case(
        f"{file} with {name}",
        lambda scene: scene.change_arrays(file, change),
        f"{file}|state.json" if file.startswith("weights") else file,
        EVAL if file.startswith("weights") else RESUME,
    )


def every(change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda found: {name: change(array) for name, array in found.items()}


def only(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    """Change the array whose name begins with `key`."""

    def changed(found: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        name = next(name for name in found if name.startswith(key))
        return found | {name: np.asarray(change(found[name]))}

    return changed


WEIGHTS: dict[str, Callable[[dict[str, Any]], Any]] = {
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
    "one missing": lambda found: {k: v for k, v in found.items() if k != "policy.head.bias"},
    "none": lambda found: {"x": found["policy.head.bias"]},
}
for _name, _change in WEIGHTS.items():
    arrays("weights.safetensors", _name, _change)
STATE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NaN weights": only("learner.storage", lambda array: array * float("nan")),
    "NaN moments": only("learner.moment0", lambda array: array * float("nan")),
    "infinite weights": only("learner.storage", lambda array: array + float("inf")),
    "too few weights": only("learner.storage", lambda array: array[:-1].copy()),
    "too many weights": only("learner.storage", lambda array: array.repeat(2)),
    "one weight": only("learner.storage", lambda array: array[:1].copy()),
    "weights of bytes": only("learner.storage", lambda array: array.astype("u1")),
    "no moments": lambda found: {k: v for k, v in found.items() if "moment" not in k},
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
    "no actions": lambda found: {k: v for k, v in found.items() if k != "sampler.0.actions"},
    "actions of another shape": only(
        "sampler.0.actions", lambda array: array.astype("f8")[:, None]
    ),
    "nothing it should have": lambda found: {"x": found["learner.counts"]},
}
for _name, _change in STATE.items():
    arrays("state.safetensors", _name, _change)


# Links and other files that are none.
def link(name: str, target: str, named: str, refused: tuple[str, ...]) -> None:
    def plant(scene: Scene) -> None:
        path = scene.run / name.format(number=scene.checkpoint.name)
        scene.link(path, target.format(outside=scene.outside, number=scene.checkpoint.name))

    case(f"{name.format(number='N')} is a link to {target}", plant, named, refused)


for _name in CHECKPOINT_FILES:
    link(f"checkpoints/{{number}}/{_name}", "{outside}/secret.txt", _name, BOTH)
    link(
        f"checkpoints/{{number}}/{_name}",
        f"{{outside}}/run/checkpoints/{{number}}/{_name}",
        _name,
        BOTH,
    )
link("checkpoints/{number}", "{outside}/run/checkpoints/{number}", "checkpoints/0", BOTH)
link("checkpoints/{number}", "../../outside/run/checkpoints/{number}", "checkpoints/0", BOTH)
link("checkpoints/{number}", "../../../../../../../etc", "checkpoints/0", BOTH)
link("checkpoints", "{outside}/run/checkpoints", "checkpoints", BOTH)
link("checkpoints", "{outside}", "checkpoints", BOTH)
link("checkpoints/best", "{outside}/run/checkpoints/{number}", "best", NONE)
link("checkpoints/best", "../../../../../../../etc", "best", NONE)
for _target in ("secret.txt", "secret.json", "run/config.yaml", "nothing"):
    link(
        "config.yaml",
        f"{{outside}}/{_target}",
        "config.yaml",
        RESUME if _target == "nothing" else BOTH,
    )
for _target in ("secret.txt", "secret.json", "run/run.json", "nothing"):
    link("run.json", f"{{outside}}/{_target}", "run.json", RESUME)
for _name in (".lock", "metrics.jsonl", "eval.json", ".tmp-eval.json", ".tmp-config.yaml"):
    link(_name, "{outside}/secret.txt", _name, NONE)
    link(_name, "{outside}/made by the run", _name, NONE)
link("metrics.jsonl", "{outside}/run/metrics.jsonl", "metrics.jsonl", NONE)
link("checkpoints/.tmp-00000003", "{outside}", "tmp", NONE)
link("checkpoints/.tmp-best", "{outside}/secret.txt", "tmp", NONE)


def events(scene: Scene) -> None:
    scene.change_config(track="tensorboard")
    scene.link(scene.run / "events", scene.outside)


case("events is a link", events, "events", NONE)


def damaged(scene: Scene) -> None:
    """The place where a damaged checkpoint is put aside is a link."""
    checkpoints = scene.run / "checkpoints"
    (checkpoints / "00000009").mkdir()
    scene.link(checkpoints / ".damaged-00000009", scene.outside)


case("the place for damaged checkpoints is a link", damaged, "", NONE)
for _name in ("run.json", *CHECKPOINT_FILES):
    case(
        f"{_name} is a pipe",
        lambda scene, name=_name: scene.pipe(scene.path(name)),
        _name,
        READ_BY[_name],
    )
for _name in ("config.yaml", "eval.json", "metrics.jsonl", ".lock"):
    case(f"{_name} is a pipe", lambda scene, name=_name: scene.pipe(scene.run / name), _name, NONE)
for _name in ("config.yaml", "run.json", *CHECKPOINT_FILES):
    case(
        f"{_name} has a terabyte of nothing",
        lambda scene, name=_name: os.truncate(scene.path(name), 2**40),
        _name,
        READ_BY[_name],
    )


def directory(scene: Scene, name: str) -> None:
    scene.path(name).unlink()
    scene.path(name).mkdir()


for _name, _readers in READ_BY.items():
    case(
        f"{_name} is a directory",
        lambda scene, name=_name: directory(scene, name),
        _name,
        RESUME if _name == "config.yaml" else _readers,
    )


QUICK = [
    name for n, name in enumerate(CASES) if n % 12 == 0 or "link" in name or "somebody" in name
]
"""Those that every test run takes; the others come with the slow ones."""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Job(**json.loads(sys.argv[1])).execute()
    else:
        serve()
