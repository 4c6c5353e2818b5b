"""The tables of docs/figures.md, from the files in benchmarks/results.

    python benchmarks/tables.py               # rewrite docs/figures.md between its markers
    python benchmarks/tables.py --check       # exit 1 if that would change it

`<!-- speed -->…<!-- /speed -->` holds what peers/run.py and ppo_speed.py measured,
`<!-- learning -->…<!-- /learning -->` what learning.py did.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Row = Sequence[str]


class BadInput(Exception):
    """A sentence for the user."""


def speed(results: Path) -> str:
    """Peers first, case by case; then PPO against the textbook loop; then where and how."""
    file = results / "peers.json"
    cases = _read(file)["cases"] if file.exists() else {}
    rows = [row for name, case in cases.items() for row in _peer_rows(name, case)]
    for file in sorted(results.glob("ppo_speed-*.json")):
        rows += _textbook_rows(_read(file))
    if not rows:
        raise BadInput(
            f"{results} has no peers.json and no ppo_speed-*.json; run benchmarks/peers/run.py or "
            "benchmarks/ppo_speed.py first"
        )
    head = ("setting", "against", "ratio", "ours, steps/s", "theirs, steps/s", "command")
    parts = [_table(head, rows), *_circumstances(cases.values())]
    return "\n\n".join([*parts, *_parallel(results), *_ranks(results)])


def _parallel(results: Path) -> list[str]:
    """What workers gain, and what two independent processes gain on the same machine meanwhile."""
    rows: list[Row] = []
    for file in sorted(results.glob("parallel-*.json")):
        found = _read(file)
        if "ratios" in found:
            base, other = found["rates"]
            options = found["options"]
            what = {
                "rollout": f"sampling {options['env_id']}, 16 envs",
                "train": f"{options['algo'].upper()} on {options['env_id']}, 16 envs",
                "async": "stepping 8 CartPoles",
            }[options["what"]]
            shown = f"`python benchmarks/parallel.py {options['what']}"
            if options["what"] == "train":
                shown += f" --algo {options['algo']}"
            if options["what"] != "async":
                shown += f" --env-id {options['env_id']}"
            rows.append(
                (
                    what,
                    f"{other} against {base}",
                    _ratio(_spread(found["ratios"])),
                    _ratio(_spread(found["ceilings"])),
                    _rate(found["rates"][other]),
                    f"{shown} --rounds {options['rounds']}`",
                )
            )
    head = ("what", "compared", "ratio", "two independent processes", "steps/s", "command")
    return [_table(head, rows)] if rows else []


def _ranks(results: Path) -> list[str]:
    """What ranks gain, and what two independent trainings gain on the same machine meanwhile."""
    rows: list[Row] = []
    for file in sorted(results.glob("ranks-*-*.json")):
        found = _read(file)
        options, ratios = found["options"], found["ratios"]
        if options["what"] == "allreduce":
            continue
        ceiling = ratios.get("2 independent against 1 rank")
        rows += [
            (
                f"PPO on {options['env_id']}, {options['num_envs']} envs × "
                f"{options['rollout_steps']}, 4 epochs × 4 minibatches",
                name,
                _ratio(_spread(ratios[name])),
                _ratio(_spread(ceiling)) if ceiling else "",
                _rate(found["rates"][name.partition(" against ")[0]]),
                f"`python benchmarks/ranks.py {options['what']} --env-id {options['env_id']} "
                f"--num-envs {options['num_envs']} --rollout-steps {options['rollout_steps']} "
                f"--rounds {options['rounds']}`",
            )
            for name in (
                "2 ranks against 1 rank",
                "2 ranks gloo against 1 rank",
                "2 ranks against textbook DDP",
            )
            if name in ratios
        ]
    head = ("what", "compared", "ratio", "two independent trainings", "steps/s", "command")
    return [_table(head, rows)] if rows else []


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def learning(results: Path) -> str:
    """One row per environment and algorithm; every seed that was run is shown."""
    files = sorted(results.glob("learning-*.json"))
    if not files:
        raise BadInput(f"{results} has no learning-*.json; run benchmarks/learning.py first")
    head = ("environment", "algorithm", "steps", "seeds", "mean", "each seed", "command")
    return _table(head, [_learning_row(_read(file)) for file in files])


TABLES = {"speed": speed, "learning": learning}


def _peer_rows(name: str, case: Mapping[str, Any]) -> list[Row]:
    return [
        (
            case["title"],
            case["peers"][peer],
            _ratio(ratio),
            _rate(case["rates"]["ours"]),
            _rate(case["rates"][peer]),
            f"`python benchmarks/peers/run.py --cases {name} --rounds {case['rounds']}`",
        )
        for peer, ratio in case["ratios"].items()
    ]


def _textbook_rows(result: Mapping[str, Any]) -> list[Row]:
    options, rates = result["options"], result["rates"]
    setting = f"PPO on {options['env_id']}, {options['num_envs']} envs × {options['steps']}"
    return [
        (
            f"{setting}, 4 epochs × 4 minibatches, {name}",
            "the textbook loop",
            _ratio(ratio),
            _rate(rates[name]),
            _rate(rates["textbook"]),
            _command("ppo_speed.py", options),
        )
        for name, ratio in result["ratios"].items()
    ]


def _circumstances(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """On what the peers were measured, a line for each machine and set of versions."""
    lines: dict[str, None] = {}
    for case in cases:
        versions: dict[str, str] = {}
        for side in case["versions"].values():
            versions |= side
        software = ", ".join(f"{package} {version}" for package, version in versions.items())
        threads = sorted(set(case["threads"].values()))
        lines[
            f"Peers: median (smallest to largest) of interleaved rounds on "
            f"{case['cpu']}, {case['cpus']} CPUs; {' or '.join(map(str, threads))} thread a side; "
            f"{software}."
        ] = None
    return list(lines)


def _score(score: float) -> str:
    """With as many decimals as its size leaves room for."""
    return f"{score:,.{0 if abs(score) >= 1000 else 1 if abs(score) >= 10 else 2}f}"


def _learning_row(result: Mapping[str, Any]) -> Row:
    options, runs = dict(result["options"]), result["runs"]
    workers, ranks = options.pop("num_workers", 0), options.pop("ranks", 1)
    envs = options.pop("num_envs", 0)
    how = f", {workers} workers" if workers else ""
    if workers:
        options["num_workers"] = workers
    if envs or ranks > 1:
        options["ranks"] = ranks
        how += f", {ranks} rank{'s' if ranks > 1 else ''}"
    if envs:
        options["num_envs"] = envs
        how += f", {envs} envs in all"
    others = result.get("others", [])
    how += f", {' '.join(others)}" if others else ""
    scores, steps = [run["mean"] for run in runs], [run["steps"] for run in runs]
    return (
        options["env_id"],
        options["algo"] + how,
        f"{min(steps):,} to {max(steps):,}" if len(set(steps)) > 1 else f"{steps[0]:,}",
        " ".join(str(run["seed"]) for run in runs),
        _score(statistics.mean(scores)),
        " ".join(_score(score) for score in scores),
        _command("learning.py", options, *others),
    )


def _ratio(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f}× ({ratio['min']:.2f} to {ratio['max']:.2f})"


def _rate(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f}"


def _command(script: str, options: Mapping[str, Any], *others: str) -> str:
    """The call with every option that the result was made with, then `others`."""
    words = [f"python benchmarks/{script}"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag} {value}")
    return f"`{' '.join((*words, *others))}`"


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---") for line in lines)


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{file} is not JSON: {error}") from None


def filled(text: str, results: Path) -> str:
    """`text` with every table between its markers made anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if text.count(begin) != 1 or text.count(end) != 1 or not pattern.search(text):
            raise BadInput(f"it needs {begin} and after it {end}, once each")
        new = f"{begin}\n{table(results)}\n{end}"
        text = pattern.sub(lambda _, new=new: new, text)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Rewrite the tables of a Markdown file.")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "docs" / "figures.md")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    options = parser.parse_args(arguments)
    try:
        old = options.file.read_text(encoding="utf-8")
        new = filled(old, options.results)
    except OSError as error:
        print(f"{options.file} can't be read: {error.strerror}", file=sys.stderr)
        return 2
    except BadInput as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    if not options.check:
        options.file.write_text(new, encoding="utf-8")
    elif old != new:
        print(f"{options.file} is stale; run python benchmarks/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
