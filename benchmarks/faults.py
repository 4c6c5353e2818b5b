"""Faults and hostile inputs from outside: what survives, what is lost, what hangs.

    python benchmarks/faults.py listeners             sockets that each command listens on
    python benchmarks/faults.py round [--only AREA]   every fault and hostile input, once
    python benchmarks/faults.py resume --trials 30    interrupted runs against undisturbed ones

Writes benchmarks/results/faults-<name>.json. The trials are in benchmarks/fault_trials.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from paceline.processes.hardware import description, limit_threads

limit_threads(1)

from fault_trials import listeners, resuming, rounds  # noqa: E402

KINDS = {"listeners": listeners.measure, "round": rounds.measure, "resume": resuming.measure}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="+", choices=KINDS)
    parser.add_argument("--only", help="an area, or a part of the name of what is tried")
    parser.add_argument(
        "--failed", action="store_true", help="of `round`: not what survived before"
    )
    parser.add_argument("--missing", action="store_true", help="of `round`: what was never tried")
    parser.add_argument("--most", type=int, help="of `round`: no more than this many, drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=30, help="of `resume`")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    for kind in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(kind, signal.SIG_DFL)  # what is ignored here (nohup) would be in every trial
    for name in options.what:
        print(f"— {name}", flush=True)
        file = options.results / f"faults-{name}.json"
        chosen = {k: v for k, v in vars(options).items() if k in ("seed", "trials", "jobs")}
        where = {k: v for k, v in description().items() if k in ("versions", "cpu", "cpus")}
        head = {"what": name, "options": chosen, "machine": where}
        known = json.loads(file.read_text()) if file.exists() else {}
        options.keep = partial(_keep, file, head)
        options.keep(KINDS[name](options, known))


def _keep(file: Path, head: dict[str, Any], result: dict[str, Any]) -> None:
    text = json.dumps(head | result, indent=1)
    for place in (Path(__file__).parents[1], sys.prefix, sys.base_prefix, Path.home()):
        text = text.replace(str(place), "…")  # what is written is not about one machine's folders
    file.write_text(text + "\n")


if __name__ == "__main__":
    main()
