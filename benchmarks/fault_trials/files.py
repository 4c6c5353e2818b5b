"""Area `files`: configurations and run directories that are odd, damaged, or used twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import PACED, QUICK, Case, Trial, differs, lost, wait_for, words

BAD = (2,)
GOOD = "env_id: CartPole-v1\ntotal_iters: 3\ncompile: 'off'\ntrack: none\noutput_dir: run\n"

CONFIGS: dict[str, tuple[str, bytes, tuple[int, ...]]] = {
    "anchors and merge": ("yaml", b"a: &a 3\ntotal_iters: *a\ntrack: none\n", BAD),
    "merge key": ("yaml", (GOOD + "<<: {seed: 2}\n").encode(), (0, 2)),
    "anchor used": ("yaml", GOOD.replace("3", "&n 3").encode() + b"seed: *n\n", (0,)),
    "anchor of itself": ("yaml", b"env: &e\n  kwargs: *e\n", BAD),
    "duplicate key": ("yaml", (GOOD + "seed: 1\nseed: 2\n").encode(), (0, 2)),
    "billion laughs": (
        "yaml",
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9))
            for i in range(9)
        ),
        BAD,
    ),
    "deep nesting": ("yaml", b"a: " + b"[" * 20000, BAD),
    "deep JSON": ("json", b'{"a":' * 20000, BAD),
    "NaN": ("yaml", (GOOD + "lr: .nan\n").encode(), BAD),
    "JSON NaN": ("json", b'{"lr": NaN, "total_iters": 3}', BAD),
    "infinite": ("yaml", (GOOD + "lr: .inf\n").encode(), BAD),
    "huge int": ("yaml", (GOOD + "seed: " + "9" * 5000 + "\n").encode(), BAD),
    "huge JSON int": ("json", b'{"seed": ' + b"9" * 5000 + b"}", BAD),
    "huge TOML int": ("toml", b"seed = " + b"9" * 5000, BAD),
    "tabs": ("yaml", GOOD.replace(": ", ":\t").encode(), (0, 2)),
    "tab indentation": ("yaml", b"env:\n\ttime_limit: 3\n", BAD),
    "BOM": ("yaml", b"\xef\xbb\xbf" + GOOD.encode(), (0,)),
    "JSON BOM": ("json", b'\xef\xbb\xbf{"total_iters": 3}', (0, 2)),
    "TOML BOM": ("toml", b"\xef\xbb\xbfseed = 3", (0, 2)),
    "UTF-16": ("yaml", GOOD.encode("utf-16"), (0, 2)),
    "UTF-16 JSON": ("json", '{"total_iters": 3}'.encode("utf-16"), (0, 2)),
    "Latin-1": ("yaml", "output_dir: größe\n".encode("latin-1"), BAD),
    "binary": ("yaml", bytes(range(256)) * 4, BAD),
    "NUL": ("yaml", GOOD.encode() + b"\0", BAD),
    "empty": ("yaml", b"", (0, 2)),
    "only a comment": ("yaml", b"# nothing\n", (0, 2)),
    "a list": ("yaml", b"- 1\n- 2\n", BAD),
    "a word": ("yaml", b"hello", BAD),
    "two documents": ("yaml", GOOD.encode() + b"---\n" + GOOD.encode(), BAD),
    "Norway": ("yaml", GOOD.replace("'off'", "off").encode(), (0,)),
    "octal": ("yaml", (GOOD + "seed: 017\n").encode(), (0, 2)),
    "sexagesimal": ("yaml", (GOOD + "seed: 1:30\n").encode(), (0, 2)),
    "date": ("yaml", (GOOD + "seed: 2020-01-01\n").encode(), BAD),
    "python tag": ("yaml", b"seed: !!python/object/apply:os.system ['touch pwned']\n", BAD),
    "set tag": ("yaml", (GOOD + "hidden: !!set {64}\n").encode(), BAD),
    "binary tag": ("yaml", (GOOD + "env_id: !!binary aGk=\n").encode(), BAD),
    "numeric keys": ("yaml", b"1: 2\n", BAD),
    "null key": ("yaml", b"~: 2\n", BAD),
    "list key": ("yaml", b"[1, 2]: 2\n", BAD),
    "dict for a number": ("yaml", (GOOD + "seed: {a: 1}\n").encode(), BAD),
    "text for a section": ("yaml", (GOOD + "env: fast\n").encode(), BAD),
    "CRLF": ("yaml", GOOD.replace("\n", "\r\n").encode(), (0,)),
    "JSON with comments": ("json", b'{"seed": 1} // x', BAD),
    "JSON duplicate": ("json", b'{"total_iters": 3, "seed": 1, "seed": 2, "track": "none"}', (0, 2)),
    "TOML duplicate": ("toml", b"seed = 1\nseed = 2\n", BAD),
    "TOML date": ("toml", b"seed = 1979-05-27\n", BAD),
    "TOML array of tables": ("toml", b"[[env]]\ntime_limit = 3\n", BAD),
    "upper-case suffix": ("YAML", GOOD.encode(), (0, 2)),
    "py that raises": ("py", b"raise RuntimeError('FAULT')\n", BAD),
    "py that exits": ("py", b"import sys\nsys.exit(0)\n", BAD),
    "py without config": ("py", b"x = 1\n", BAD),
    "py with a wrong config": ("py", b"config = 3\n", BAD),
    "py with a syntax error": ("py", b"def (\n", BAD),
    "py that interrupts": ("py", b"raise KeyboardInterrupt\n", (2, 75)),
    "py with NUL": ("py", b"x = 1\0\n", BAD),
}


def _configured(case: Case, suffix: str, data: bytes) -> None:
    (case.here / f"c.{suffix}").write_bytes(data)


def _no_harm(case: Case) -> None:
    if (case.here / "pwned").exists():
        raise lost("the configuration was executed")


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("[0-9]*"))


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Case], None]:
    """Change a JSON file of the run, or of its newest checkpoint; manifests are put right."""

    def prepare(case: Case) -> None:
        path = case.run / name if name == "run.json" else newest(case.run) / name
        facts = json.loads(path.read_text())
        changed = change(facts)
        path.write_text(json.dumps(facts if changed is None else changed))
        if name == "state.json":
            _sign(path.parent)

    return prepare


def _sign(checkpoint: Path) -> None:
    """The manifest says what is there: what is wrong has to be found by reading it."""
    import hashlib

    sums = {}
    for name in ("weights.safetensors", "state.safetensors", "state.json"):
        data = (checkpoint / name).read_bytes()
        sums[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(sums))


def put(name: str, data: bytes | None) -> Callable[[Case], None]:
    """Replace or remove a file of the run ({new}: of its newest checkpoint)."""

    def prepare(case: Case) -> None:
        path = newest(case.run) / name[6:] if name.startswith("{new}/") else case.run / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if data is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return prepare


def damage(name: str, how: str) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        path = newest(case.run) / name
        data = bytearray(path.read_bytes())
        if how == "bit":
            data[len(data) // 2] ^= 1
        elif how == "half":
            del data[len(data) // 2 :]
        else:
            data += b"\0" * 100
        path.write_bytes(data)

    return prepare


def swap(name: str, way: str) -> Callable[[Case], None]:
    """A part of another run in place of its own."""

    def prepare(case: Case) -> None:
        other = case.kept.of(way) / "run"
        if name == "checkpoint":
            target = newest(case.run)
            shutil.rmtree(target)
            shutil.copytree(newest(other), target)
            if target.name != newest(other).name:
                facts = json.loads((target / "state.json").read_text())
                facts["iter"] = int(target.name)
                (target / "state.json").write_text(json.dumps(facts))
                _sign(target)
        else:
            (case.run / name).write_bytes((other / name).read_bytes())

    return prepare


def link(name: str, target: str) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        path = case.run / name
        if path.is_dir() and not path.is_symlink():
            path.rename(case.here / "moved")
        elif path.exists():
            path.rename(case.here / "moved")
        path.symlink_to(target.replace("{here}", str(case.here)))

    return prepare


def call(*steps: Callable[[Case], Any]) -> Callable[[Case], None]:
    def prepare(case: Case) -> None:
        for step in steps:
            step(case)

    return prepare


def chmod(name: str, mode: int) -> Callable[[Case], None]:
    return lambda case: (case.run / name).chmod(mode)


def _set(**values: Any) -> Callable[[Any], None]:
    return lambda facts: facts.update(values)


def _drop(name: str) -> Callable[[Any], None]:
    return lambda facts: facts.pop(name)


def _network(**values: Any) -> Callable[[Any], None]:
    return lambda facts: facts["network"].update(values)


DOCTORED: dict[str, tuple[Callable[[Case], None], tuple[int, ...]]] = {
    "run.json empty": (put("run.json", b""), BAD),
    "run.json a list": (edit("run.json", lambda f: [f]), BAD),
    "run.json null": (edit("run.json", lambda f: 0), BAD),
    "run.json no choices": (edit("run.json", _drop("choices")), BAD),
    "run.json threads -1": (
        edit("run.json", lambda f: f["choices"].update(threads=-1)),
        BAD,
    ),
    "run.json threads 4096": (
        edit("run.json", lambda f: f["choices"].update(threads=4096)),
        (0, 2),
    ),
    "run.json threads true": (
        edit("run.json", lambda f: f["choices"].update(threads=True)),
        BAD,
    ),
    "run.json more choices": (edit("run.json", lambda f: f["choices"].update(x=1)), BAD),
    "run.json preset a dict": (edit("run.json", _set(preset={"a": [1] * 50})), (0, 2)),
    "run.json preset escapes": (edit("run.json", _set(preset="\x1b[2J\x07")), (0,)),
    "run.json no preset": (edit("run.json", _drop("preset")), (0,)),
    "run.json launch": (edit("run.json", _set(launch="x")), (0,)),
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
    "state.json iter -1": (edit("state.json", _set(iter=-1)), (0, 2)),
    "state.json iter huge": (edit("state.json", _set(iter=10**30)), (0, 2)),
    "state.json iter text": (edit("state.json", _set(iter="5")), (0, 2)),
    "state.json iter float": (edit("state.json", _set(iter=5.5)), (0, 2)),
    "state.json steps -5": (edit("state.json", _set(steps=-5)), (0, 2)),
    "state.json time NaN": (edit("state.json", _set(time=float("nan"))), (0, 2)),
    "state.json time huge": (edit("state.json", _set(time=1e300)), (0, 2)),
    "state.json recent dicts": (edit("state.json", _set(recent=[{}])), (0, 2)),
    "state.json recent long": (edit("state.json", _set(recent=[1.0] * 10**5)), (0, 2)),
    "state.json best text": (edit("state.json", _set(best="good")), (0, 2)),
    "state.json no network": (edit("state.json", _drop("network")), (0, 2)),
    "state.json network a list": (edit("state.json", _set(network=[])), (0, 2)),
    "state.json hidden huge": (edit("state.json", _network(hidden=[10**9] * 3)), (0, 2)),
    "state.json hidden negative": (edit("state.json", _network(hidden=[-1])), (0, 2)),
    "state.json hidden text": (edit("state.json", _network(hidden="64")), (0, 2)),
    "state.json activation": (edit("state.json", _network(activation="os:system")), (0, 2)),
    "state.json encoder": (edit("state.json", _network(encoder="os:system")), (0, 2)),
    "state.json no config": (edit("state.json", _drop("config")), (0, 2)),
    "state.json config a list": (edit("state.json", _set(config=[])), (0, 2)),
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
        Trial(
            "files",
            f"config: {name}",
            f"train --config c.{suffix} --compile off --output-dir run"
            + (" --total-iters 3" if codes != BAD else ""),
            codes,
            prepare=lambda case, s=suffix, d=data: _configured(case, s, d),
            after=_no_harm,
            timeout=40.0,
            quotes=suffix == "py",
        )
        for name, (suffix, data, codes) in CONFIGS.items()
    ]
    found += [
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
    return found + _together() + _known()


# Two at once.


def _both(first: str, second: str) -> Callable[[Case], None]:
    """A second command on the same run, while the first is at it."""

    def during(case: Case) -> None:
        if not wait_for(lambda: case.reports() > 1 or case.process.poll() is not None, 40):
            raise words("it did not begin")
        code, said = case.also(second)
        allowed = (0,) if second.startswith(("eval", "compare", "list")) else (2,)
        if code not in allowed or "Traceback" in said:
            raise words(f"`paceline {second}` beside it: exit code {code}: {said[-200:]}")

    return during


def _same_moment(args: str, codes: tuple[int, ...]) -> Callable[[Case], None]:
    def during(case: Case) -> None:
        code, said = case.also(args, 90.0)
        if code not in codes or "Traceback" in said:
            raise words(f"`paceline {args}` beside it: exit code {code}: {said[-200:]}")
        ended = case.process.wait(90)
        if sorted((code, ended)) not in ([0, 2], [0, 0]):
            raise lost(f"of two at the same moment: exit codes {ended} and {code}")

    return during


def _copied(case: Case) -> None:
    """What is copied while it trains resumes as the run does."""
    if not wait_for(lambda: case.reports() > 4, 40):
        raise words("it did not begin")
    for number in range(3):
        try:
            shutil.copytree(case.run, case.here / f"copy{number}", symlinks=True)
        except shutil.Error:  # something went away meanwhile, as cp would say
            continue
        time.sleep(0.15)


def _copies_resume(case: Case) -> None:
    for copy in case.here.glob("copy[0-9]"):
        if not (copy / "config.yaml").exists():
            continue
        code, said = case.also(f"resume {copy.name}", 90.0)
        if code or "Traceback" in said:
            raise lost(f"{copy.name}: exit code {code}: {said[-300:]}")
        if difference := differs(copy, case.run):
            raise lost(f"{copy.name} ends otherwise: {difference}")


def _moved_away(case: Case) -> None:
    if not wait_for(lambda: case.reports() > 2, 40):
        raise words("it did not begin")
    case.run.rename(case.here / "elsewhere")


def _removed(case: Case) -> None:
    if not wait_for(lambda: case.reports() > 2, 40):
        raise words("it did not begin")
    shutil.rmtree(case.run, ignore_errors=True)


def _disturb(name: str, what: Callable[[Path], Any]) -> Callable[[Case], None]:
    def during(case: Case) -> None:
        if not wait_for(lambda: case.reports() > 2, 40):
            raise words("it did not begin")
        what(case.run / name)

    return during


SLOW: dict[str, str | None] = {"FAULT_PACE": "0.004"}


def _together() -> list[Trial]:
    paced = f"train {PACED}"
    rows: list[Trial] = [
        Trial("files", f"beside training: {second}", paced, (0,), during=_both(paced, second),
              variables=SLOW, resume="serial")
        for second in (
            "resume run",
            f"train {QUICK} --overwrite",
            f"train {QUICK}",
            "eval run --episodes 2",
            "list",
        )
    ]  # fmt: skip
    rows += [
        Trial("files", "two resume at the same moment", "resume run", (0, 2), run="serial",
              during=_same_moment("resume run", (0, 2)), variables=SLOW),
        Trial("files", "two train at the same moment", paced, (0, 2), variables=SLOW,
              during=_same_moment(f"train {PACED}", (0, 2))),
        Trial("files", "two overwrite at the same moment", f"{paced} --overwrite", (0, 2),
              during=_same_moment(f"train {PACED} --overwrite", (0, 2)), run="serial"),
        Trial("files", "two evaluate at the same moment", "eval run --episodes 20", (0,),
              during=_same_moment("eval run --episodes 20", (0,)), run="serial:done"),
        Trial("files", "two compare into one folder", "compare run run --output-dir c", (0, 2),
              during=_same_moment("compare run run --output-dir c", (0, 2)), run="serial:done"),
        Trial("files", "copied while it trains", paced, (0,), variables=SLOW,
              during=_copied, after=_copies_resume, timeout=90.0),
        Trial("files", "moved while it trains", paced, (0, 2, 75), variables=SLOW,
              during=_moved_away, known=True),
        Trial("files", "removed while it trains", paced, (0, 2, 75), variables=SLOW,
              during=_removed, known=True),
    ]  # fmt: skip
    disturbed: dict[str, tuple[str, Callable[[Path], Any], tuple[int, ...], str]] = {
        "metrics removed": ("metrics.jsonl", Path.unlink, (0, 75), ""),
        "metrics truncated": ("metrics.jsonl", lambda p: p.write_bytes(b""), (0, 75), ""),
        "metrics a folder": ("metrics.jsonl", lambda p: (p.unlink(), p.mkdir()), (0, 75), ""),
        "config.yaml removed": ("config.yaml", Path.unlink, (0, 75), ""),
        "run.json removed": ("run.json", Path.unlink, (0, 75), ""),
        "run.json torn": ("run.json", lambda p: p.write_bytes(b"{"), (0, 75), ""),
        "the lock removed": (".lock", Path.unlink, (0,), "serial"),
        "checkpoints removed": ("checkpoints", shutil.rmtree, (0, 75), ""),
        "checkpoints a file": (
            "checkpoints",
            lambda p: (shutil.rmtree(p), p.write_bytes(b"")),
            (0, 75),
            "",
        ),
        "a checkpoint removed": ("checkpoints", lambda p: shutil.rmtree(min(p.iterdir())), (0,),
                                 "serial"),
        "a checkpoint's file a pipe": (
            "checkpoints", lambda p: os.mkfifo(min(p.iterdir()) / "pipe"), (0,), "serial"),
        "eval.json a folder": ("eval.json", lambda p: (p / "x").mkdir(parents=True), (0, 75), ""),
    }  # fmt: skip
    rows += [
        Trial("files", f"while it trains: {name}", paced, codes, resume=resume, variables=SLOW,
              during=_disturb(file, what))
        for name, (file, what, codes, resume) in disturbed.items()
    ]  # fmt: skip
    unprivileged = 'exec setpriv --inh-caps=-all --bounding-set=-all -- "$@"'
    read_only: dict[str, tuple[str, str, int, tuple[int, ...]]] = {
        "run": ("resume run", ".", 0o555, (2, 75)),
        "checkpoints": ("resume run", "checkpoints", 0o555, (0, 2, 75)),
        "run for eval": ("eval run --episodes 2", ".", 0o555, (0,)),
        "run for overwrite": (f"train {QUICK} --overwrite", ".", 0o555, (2,)),
        "metrics": ("resume run", "metrics.jsonl", 0o444, (0, 2, 75)),
        "config.yaml unreadable": ("resume run", "config.yaml", 0o000, (2,)),
        "run unreadable": ("resume run", ".", 0o000, (2,)),
        "run unreadable for eval": ("eval run", ".", 0o000, (2,)),
        "run unreadable for compare": ("compare run run --output-dir c", ".", 0o000, (2,)),
        "checkpoints unreadable": ("eval run", "checkpoints", 0o000, (2,)),
        "run without x": ("resume run", ".", 0o600, (2,)),
    }
    rows += [
        Trial("files", f"mode {mode:o}: {name}", args, codes, run="serial", shell=unprivileged,
              prepare=chmod(file, mode))
        for name, (args, file, mode, codes) in read_only.items()
    ]  # fmt: skip
    return rows


def _fifo(case: Case) -> None:
    os.mkfifo(case.here / "pipe")


def _sparse(case: Case) -> None:
    with (case.run / "metrics.jsonl").open("r+b") as file:
        file.truncate(40 * 10**9)


def _big_names(case: Case) -> None:
    put("checkpoints/100000000/x", b"")(case)


def _stranger_log(case: Case) -> None:
    victim = case.here / "victim.txt"
    victim.write_text("precious\n")
    config = case.run / "config.yaml"
    text = config.read_text().replace("log_jsonl: null", f"log_jsonl: {victim}")
    config.write_text(text)


def _victim(case: Case) -> None:
    if (case.here / "victim.txt").read_text() != "precious\n":
        raise lost("a stranger's log_jsonl led to another file being written")


def _squares(case: Case) -> None:
    (case.run / "checkpoints" / "9²").mkdir()


def _known() -> list[Trial]:
    paced = f"train {PACED}"

    def one(name: str, args: str, codes: tuple[int, ...], **more: Any) -> Trial:
        return Trial("files", f"known: {name}", args, codes, known=True, **more)

    def write_later(case: Case) -> None:
        threading.Timer(0.0, lambda: None).start()
        wait_for(lambda: case.reports() > 1, 30)
        case.process.send_signal(signal.SIGTERM)

    return [
        one("FIFO as log_jsonl", f"train {QUICK} --log-jsonl pipe", (0, 2), prepare=_fifo,
            timeout=30.0),
        one("sparse 40 GB metrics", "resume run", (0, 2), run="serial", prepare=_sparse),
        one("sparse 40 GB metrics, compare", "compare run run --output-dir c", (0, 2),
            run="serial", prepare=_sparse),
        one("checkpoint 10^8", "resume run", (0, 2), run="serial", prepare=_big_names),
        one("stranger's log_jsonl", "resume run", (0, 2), run="serial", prepare=_stranger_log,
            after=_victim),
        one("9² directory", "resume run", (0,), run="serial", prepare=_squares),
        one("9² directory, eval", "eval run --episodes 2", (0,), run="serial", prepare=_squares),
        one("unwritable metrics", paced, (0, 75), variables=SLOW,
            during=_disturb("metrics.jsonl", lambda p: (p.unlink(), p.mkdir()))),
    ]  # fmt: skip
