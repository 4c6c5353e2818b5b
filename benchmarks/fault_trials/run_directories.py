"""Area `files`: run directories that were edited, damaged, or put together from several."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from .doctoring import call, damage, drop, edit, link, network, put, set_values, swap
from .harness import Case, Trial

BAD = (2,)

DOCTORED: dict[str, tuple[Callable[[Case], None], tuple[int, ...]]] = {
    "run.json empty": (put("run.json", b""), BAD),
    "run.json a list": (edit("run.json", lambda f: [f]), BAD),
    "run.json null": (edit("run.json", lambda f: 0), BAD),
    "run.json no choices": (edit("run.json", drop("choices")), BAD),
    "run.json threads -1": (
        edit("run.json", lambda f: f["choices"].update(threads=-1)),
        BAD,
    ),
    "run.json threads 300": (
        edit("run.json", lambda f: f["choices"].update(threads=300)),
        (0, 2),
    ),
    "run.json threads true": (
        edit("run.json", lambda f: f["choices"].update(threads=True)),
        BAD,
    ),
    "run.json more choices": (edit("run.json", lambda f: f["choices"].update(x=1)), BAD),
    "run.json preset a dict": (edit("run.json", set_values(preset={"a": [1] * 50})), (0, 2)),
    "run.json preset escapes": (edit("run.json", set_values(preset="\x1b[2J\x07")), (0,)),
    "run.json no preset": (edit("run.json", drop("preset")), (0,)),
    "run.json launch": (edit("run.json", set_values(launch="x")), (0,)),
    "run.json deep": (put("run.json", b"[" * 10**5), BAD),
    "run.json missing": (put("run.json", None), BAD),
    "config.yaml empty": (put("config.yaml", b""), BAD),
    "config.yaml binary": (put("config.yaml", b"\x89PNG\r\n\0\1"), BAD),
    "config.yaml missing": (put("config.yaml", None), BAD),
    "metrics.jsonl missing": (put("metrics.jsonl", None), (0, 2)),
    "metrics.jsonl empty": (put("metrics.jsonl", b""), (0, 2)),
    "metrics.jsonl binary": (put("metrics.jsonl", os.urandom(4000)), (0, 2, 75)),
    "metrics.jsonl a list": (put("metrics.jsonl", b"[1]\n[2]\n"), (0, 2)),
    "metrics.jsonl no iter": (put("metrics.jsonl", b'{"time": 1}\n' * 5), (0, 2)),
    "metrics.jsonl iter text": (put("metrics.jsonl", b'{"iter": "1"}\n' * 5), (0, 2)),
    "metrics.jsonl one line of 50 MB": (put("metrics.jsonl", b"x" * 50_000_000), (0, 2)),
    "metrics.jsonl NaN": (put("metrics.jsonl", b'{"iter": NaN}\n'), (0, 2)),
    "metrics.jsonl deep": (put("metrics.jsonl", b"[" * 10**5 + b"\n"), (0, 2)),
    "eval.json binary": (put("eval.json", b"\0\1"), (0,)),
    "eval.json a directory": (put("eval.json/x", b""), BAD),
    "state.json iter -1": (edit("state.json", set_values(iter=-1)), (0, 2)),
    "state.json iter huge": (edit("state.json", set_values(iter=10**30)), (0, 2)),
    "state.json iter text": (edit("state.json", set_values(iter="5")), (0, 2)),
    "state.json iter float": (edit("state.json", set_values(iter=5.5)), (0, 2)),
    "state.json steps -5": (edit("state.json", set_values(steps=-5)), (0, 2)),
    "state.json time NaN": (edit("state.json", set_values(time=float("nan"))), (0, 2)),
    "state.json time huge": (edit("state.json", set_values(time=1e300)), (0, 2)),
    "state.json recent dicts": (edit("state.json", set_values(recent=[{}])), (0, 2)),
    "state.json recent long": (edit("state.json", set_values(recent=[1.0] * 10**5)), (0, 2)),
    "state.json best text": (edit("state.json", set_values(best="good")), (0, 2)),
    "state.json no network": (edit("state.json", drop("network")), (0, 2)),
    "state.json network a list": (edit("state.json", set_values(network=[])), (0, 2)),
    "state.json hidden huge": (edit("state.json", network(hidden=[10**9] * 3)), (0, 2)),
    "state.json hidden negative": (edit("state.json", network(hidden=[-1])), (0, 2)),
    "state.json hidden text": (edit("state.json", network(hidden="64")), (0, 2)),
    "state.json activation": (edit("state.json", network(activation="os:system")), (0, 2)),
    "state.json encoder": (edit("state.json", network(encoder="os:system")), (0, 2)),
    "state.json no config": (edit("state.json", drop("config")), (0, 2)),
    "state.json config a list": (edit("state.json", set_values(config=[])), (0, 2)),
    "state.json a list": (edit("state.json", lambda f: [f]), (0, 2)),
    "manifest empty": (put("{new}/manifest.json", b"{}"), (0, 2)),
    "manifest a list": (put("{new}/manifest.json", b"[]"), (0, 2)),
    "manifest bytes huge": (
        edit("manifest.json", lambda f: f["state.safetensors"].update(bytes=10**30)),
        (0, 2),
    ),
    "manifest bytes true": (
        edit("manifest.json", lambda f: f["state.safetensors"].update(bytes=True)),
        (0, 2),
    ),
    "manifest bytes negative": (
        edit("manifest.json", lambda f: f["state.safetensors"].update(bytes=-1)),
        (0, 2),
    ),
    "weights one bit": (damage("weights.safetensors", "bit"), (0, 2)),
    "weights half": (damage("weights.safetensors", "half"), (0, 2)),
    "weights longer": (damage("weights.safetensors", "long"), (0, 2)),
    "state one bit": (damage("state.safetensors", "bit"), (0, 2)),
    "state half": (damage("state.safetensors", "half"), (0, 2)),
    "state of another run": (
        call(swap("checkpoint", "normalized")),
        (0, 2),
    ),
    "checkpoint of a2c": (swap("checkpoint", "a2c"), (0, 2)),
    "config of workers": (swap("config.yaml", "workers"), (0, 2)),
    "config of a2c": (swap("config.yaml", "a2c"), BAD),
    "config of ranks": (swap("config.yaml", "ranks"), (0, 2)),
    "run.json of workers": (swap("run.json", "workers"), (0,)),
    "metrics of a2c": (swap("metrics.jsonl", "a2c"), (0, 2)),
    "checkpoints a file": (put("checkpoints", b"x"), BAD),
    "checkpoints empty": (
        call(put("checkpoints", None), lambda c: (c.run / "checkpoints").mkdir()),
        (0, 2),
    ),
    "checkpoints missing": (put("checkpoints", None), (0, 2)),
    "checkpoints a link": (link("checkpoints", "{here}/moved"), BAD),
    "metrics a link": (link("metrics.jsonl", "{here}/moved"), BAD),
    "the lock a link": (link(".lock", "{here}/elsewhere"), BAD),
    "the lock a directory": (put(".lock/x", b""), BAD),
    "best to nowhere": (link("checkpoints/best", "00099999"), (0, 2)),
    "best to itself": (link("checkpoints/best", "best"), (0, 2)),
    "best out of the run": (link("checkpoints/best", "/etc"), (0, 2)),
    "checkpoint with more files": (put("{new}/more.bin", b"x"), (0,)),
    "a folder 00000000": (put("checkpoints/00000000/x", b""), (0,)),
    "a folder in other digits": (put("checkpoints/٣٣/x", b""), (0, 2)),
    "left temporary": (put(".tmp-config.yaml", b"x"), (0,)),
    "left temporary folder": (put("checkpoints/.tmp-00000009/x", b"x"), (0,)),
    "left temporary config folder": (put(".tmp-config.yaml/x/y", b"x"), (0,)),
}
"""What was done to a run that had stopped in the middle; exit codes of `resume`."""
ALSO_EVAL = (
    *("run.json missing", "run.json deep", "config.yaml binary", "eval.json a directory"),
    *("state.json no network", "state.json network a list", "state.json hidden huge"),
    *("state.json hidden negative", "state.json hidden text", "state.json activation"),
    *("state.json encoder", "state.json a list", "manifest a list", "manifest bytes huge"),
    *("weights one bit", "weights half", "state half", "checkpoints a file", "checkpoints a link"),
    *("checkpoints empty", "best to itself", "state of another run", "config of ranks"),
    *("left temporary config folder", "config.yaml missing", "checkpoint of a2c"),
)
ALSO_COMPARE = (
    *("run.json missing", "run.json deep", "config.yaml binary", "config.yaml empty"),
    *("metrics.jsonl missing", "metrics.jsonl empty", "metrics.jsonl binary", "metrics a link"),
    *("metrics.jsonl a list", "metrics.jsonl no iter", "metrics.jsonl iter text"),
    *("metrics.jsonl one line of 50 MB", "metrics.jsonl NaN", "metrics.jsonl deep"),
    *("eval.json binary", "eval.json a directory", "run.json preset escapes", "config of a2c"),
)


def _second(case: Case) -> None:
    shutil.copytree(case.kept.of("serial") / "whole", case.here / "other", symlinks=True)


def trials() -> list[Trial]:
    found = [
        Trial("files", f"resume: {name}", "resume run", codes, run="serial", prepare=prepare)
        for name, (prepare, codes) in DOCTORED.items()
    ]
    found += [
        Trial("files", f"eval: {n}", "eval run --episodes 2", (0, 2), run="serial", prepare=p)
        for n, (p, _) in DOCTORED.items()
        if n in ALSO_EVAL
    ]
    found += [
        Trial(
            "files",
            f"compare: {name}",
            "compare run other --output-dir compared",
            (0, 2),
            run="serial",
            prepare=call(prepare, _second),
        )
        for name, (prepare, _) in DOCTORED.items()
        if name in ALSO_COMPARE
    ]
    return found
