"""Area `resources`: the other commands under the same conditions, and what was known before."""

from __future__ import annotations

import signal
from typing import Any

from .harness import PACED, WAYS, Case, Trial, wait_for
from .resources import LIMITS, PIPED

DONE = (0,)


def _others() -> list[Trial]:
    """The other commands under the same conditions."""
    rows: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
        ("list closed", "list", (0,), {"shell": 'exec "$@" >&-'}),
        ("list | head", "list", (0, 141), {"shell": '"$@" | head -1; exit ${PIPESTATUS[0]}'}),
        ("list full", "list", (0, 1, 2, 75), {"shell": 'exec "$@" >/dev/full'}),
        ("doctor closed", "doctor", (0,), {"shell": 'exec "$@" >&- 2>&-'}),
        ("doctor full", "doctor", (0, 1, 2, 75), {"shell": 'exec "$@" >/dev/full'}),
        ("doctor no PATH", "doctor", (0,), {"variables": {"PATH": None}}),
        ("doctor no HOME", "doctor", (0,), {"variables": {"HOME": None}}),
        ("doctor 30 files", "doctor", (0,), {"shell": 'ulimit -n 30; exec "$@"'}),
        ("doctor no /proc", "doctor", (0, 2), {"shell": LIMITS["no /proc"][0]}),
        ("doctor no /sys", "doctor", (0,), {"shell": LIMITS["/sys not there"][0]}),
        ("doctor -O", "doctor --json", (0,), {"variables": {"PYTHONOPTIMIZE": "2"}}),
        ("doctor warnings", "doctor", (0,), {"variables": {"PYTHONWARNINGS": "error"}}),
        ("check closed", "check CartPole-v1 --seconds 0.3", (0, 3), {"shell": 'exec "$@" >&-'}),
        ("check stdin closed", "check CartPole-v1 --seconds 0.3", (0,), {"shell": 'exec "$@" <&-'}),
        (
            "check 20 files",
            "check CartPole-v1 --seconds 0.3",
            (0, 2, 3),
            {"shell": 'ulimit -n 20; exec "$@"'},
        ),
        (
            "check -O",
            "check CartPole-v1 --seconds 0.3",
            (0,),
            {"variables": {"PYTHONOPTIMIZE": "2"}},
        ),
        (
            "check warnings",
            "check CartPole-v1 --seconds 0.3",
            (0,),
            {"variables": {"PYTHONWARNINGS": "error"}},
        ),
        (
            "check full",
            "check CartPole-v1 --seconds 0.3",
            (0, 1, 2, 3, 75),
            {"shell": 'exec "$@" >/dev/full'},
        ),
        (
            "eval closed",
            "eval run --episodes 2",
            (0,),
            {"shell": 'exec "$@" >&-', "run": "serial:done"},
        ),
        (
            "eval 12 files",
            "eval run --episodes 2",
            (0, 2, 3),
            {"shell": 'ulimit -n 12; exec "$@"', "run": "serial:done"},
        ),
        (
            "eval files of 0",
            "eval run --episodes 2",
            (0, 2),
            {"shell": PIPED, "run": "serial:done"},
        ),
        (
            "compare full",
            "compare run run --output-dir c",
            (0, 1, 2, 75),
            {"shell": 'exec "$@" >/dev/full', "run": "serial:done"},
        ),
        (
            "compare small files",
            "compare run run --output-dir c",
            (0, 2, 75),
            {"shell": 'ulimit -f 8; exec "$@"', "run": "serial:done"},
        ),
        (
            "compare closed",
            "compare run run --output-dir c",
            (0,),
            {"shell": 'exec "$@" >&-', "run": "serial:done"},
        ),
        (
            "compare no HOME",
            "compare run run --output-dir c",
            (0,),
            {"variables": {"HOME": None, "MPLCONFIGDIR": None}, "run": "serial:done"},
        ),
        (
            "tune small files",
            "tune --time 5s --compile off --output t.yaml",
            (0, 2, 75),
            {"shell": PIPED},
        ),
        (
            "tune full",
            "tune --time 5s --compile off --output t.yaml",
            (0, 1, 2, 75),
            {"shell": 'exec "$@" >/dev/full'},
        ),
        (
            "tune one CPU",
            "tune --time 5s --compile off --output t.yaml",
            (0,),
            {"shell": 'exec taskset -c 0 "$@"'},
        ),
        (
            "scale small files",
            "scale --ranks 1 --repeats 1 --iters 5 --compile off --output-dir s",
            (0, 2, 3, 75),
            {"shell": PIPED},
        ),
        (
            "scale one CPU",
            "scale --ranks 1,2 --repeats 1 --iters 5 --compile off --output-dir s",
            (0,),
            {"shell": 'exec taskset -c 0 "$@"'},
        ),
        (
            "bench small files",
            "bench --algos ppo --modes sequential --seeds 1 --total-steps 600 "
            "--compile off --output-dir b",
            (0, 2, 3, 75),
            {"shell": 'ulimit -f 8; exec "$@"'},
        ),
        (
            "bench full",
            "bench --algos ppo --modes sequential --seeds 1 --total-steps 600 "
            "--compile off --output-dir b",
            (0, 75),
            {"shell": 'exec "$@" >/dev/full'},
        ),
    ]
    return [
        Trial("resources", f"command: {name}", args, codes, timeout=120.0, **more)
        for name, args, codes, more in rows
    ]


def _known() -> list[Trial]:
    rows: list[tuple[str, str, tuple[int, ...], dict[str, Any]]] = [
        ("stdout closed", f"train {PACED}", (0,), {"shell": 'exec "$@" >&-', "resume": "serial"}),
        (
            "stdout closed, ranks",
            f"train {WAYS['ranks']}",
            (0,),
            {"shell": 'exec "$@" >&-', "resume": "ranks"},
        ),
        (
            "eval >/dev/full",
            "eval run --episodes 2",
            (0, 1, 2, 75),
            {"shell": 'exec "$@" >/dev/full', "run": "serial:done"},
        ),
        (
            "nohup",
            f"train {PACED}",
            (0, 75),
            {
                "shell": 'exec nohup "$@"',
                "resume": "serial",
                "during": _hang_up,
                "variables": {"FAULT_PACE": "0.004"},
            },
        ),
        (
            "full temporary folder while compiling",
            f"train {WAYS['compiled']}",
            (0, 2),
            {
                "shell": 'exec unshare -m bash -c \'mount -t tmpfs -o size=40k none "$TMPDIR"; '
                'export TORCHINDUCTOR_CACHE_DIR=$TMPDIR/c; exec "$@"\' - "$@"',
                "timeout": 120.0,
            },
        ),
        (
            "rendezvous at an existing file",
            f"train {WAYS['ranks']} --init-method file://{{here}}/there",
            (0, 2),
            {"prepare": lambda case: (case.here / "there").write_bytes(b"x" * 100)},
        ),
    ]
    return [
        Trial("resources", f"known: {name}", args, codes, known=True, **more)
        for name, args, codes, more in rows
    ]


def _hang_up(case: Case) -> None:
    wait_for(lambda: case.reports() > 2, 40)
    case.process.send_signal(signal.SIGHUP)


def trials() -> list[Trial]:
    return _others() + _known()
