"""Area `environments`: environments that misbehave, in the learner's process and in workers."""

from __future__ import annotations

import json

from .harness import Case, Trial, lost
from .misbehaving import RETURNS
from .worlds import SPACES

DONE, FAILED, EITHER = (0,), (3,), (0, 3)
ENV = "--env-id fault_trials.misbehaving:Misbehaves-v0 --preset CartPole-v1"
BASE = f"{ENV} --total-iters 3 --eval-episodes 3 --compile off --track none --output-dir run"

STEP: dict[str, tuple[int, ...]] = {
    "fork, child ends": DONE,
    "fork, child raises": EITHER,
    "fork, child sys.exit": EITHER,
    "subprocess": DONE,
    "200 threads": DONE,
    "thread raises": DONE,
    "SIGTERM ignored": DONE,
    "SIGCHLD ignored": DONE,
    "all signals blocked": DONE,
    "alarm": (0, 3, -14),
    "timer raises": (0, 3),
    "SIGINT to itself": (75, 0),
    "SIGTERM to itself": (75, 3, 0),
    "wakeup fd": DONE,
    "close 0-2": EITHER,
    "close 3-10": (0, 3, 75),
    "close 3-63": (0, 3, 75),
    "5 MB to stdout": DONE,
    "5 MB to stderr": DONE,
    "no newline": DONE,
    "binary to fd 1": DONE,
    "stdout None": DONE,
    "stderr None": DONE,
    "stdout closed": EITHER,
    "stderr closed": EITHER,
    "reads stdin": DONE,
    "input()": EITHER,
    "umask 0777": (0, 3, 75),
    "16 files at most": (0, 3, 75),
    "empty files only": (0, 75),
    "environ cleared": DONE,
    "variables of a rank": DONE,
    "warnings are errors": DONE,
    "warns": DONE,
    "warns 10,000 times": DONE,
    "logging disabled": DONE,
    "root logs everything": DONE,
    "recursion limit 60": EITHER,
    "numpy raises": (0, 3, 4),
    "numpy seeded": DONE,
    "random seeded": DONE,
    "torch seeded": DONE,
    "torch 4 threads": DONE,
    "torch without gradients": EITHER,
    "torch inference mode": EITHER,
    "torch on meta": EITHER,
    "torch float64": EITHER,
    "torch anomalies": DONE,
    "torch deterministic": DONE,
    "torch flushes denormals": DONE,
    "gc disabled": DONE,
    "nice 19": DONE,
    "one CPU": DONE,
    "locale": DONE,
    "traced": DONE,
    "sys.path cleared": EITHER,
    "modules cleared": DONE,
    "atexit raises": DONE,
    "excepthook raises": DONE,
    "print patched": EITHER,
    "json.dumps patched": EITHER,
    "time.sleep patched": EITHER,
    "np.zeros patched": EITHER,
    "os.fsync patched": EITHER,
    "1 GB kept": DONE,
    "10 TB wanted": EITHER,
    "recursion": EITHER,
    "GIL held 4 s": DONE,
    "sleep 4 s": DONE,
    "StopIteration": EITHER,
    "GeneratorExit": EITHER,
    "KeyboardInterrupt": (0, 3, 75),
    "MemoryError": EITHER,
    "BaseException": EITHER,
    "CancelledError": EITHER,
    "ExceptionGroup": EITHER,
    "unspeakable error": EITHER,
    "unsendable error": EITHER,
    "endless message": EITHER,
    "surrogates": EITHER,
    "BrokenPipeError": EITHER,
    "ConnectionResetError": EITHER,
    "EOFError": EITHER,
    "TimeoutError": EITHER,
    "ENOSPC": EITHER,
    "FileNotFoundError": EITHER,
    "AssertionError": EITHER,
    "BadInput": (0, 2, 3),
    "StoppedEarly": (0, 3, 75),
    "Warning": EITHER,
}
"""What happens once, in the 20th step of a process, and with which codes a run may end."""
KNOWN = {
    "fork, child waits": DONE,
    "subprocess waits": DONE,
    "own session waits": DONE,
    "thread that stays": DONE,
    "chdir": DONE,
    "SystemExit": EITHER,
    "os._exit(0)": FAILED,
    "os._exit(7)": FAILED,
    "torch float64": EITHER,
}
WORKERS = (
    *("fork, child ends", "fork, child raises", "SIGCHLD ignored", "all signals blocked", "alarm"),
    *("timer raises", "SIGTERM to itself", "SIGTERM to its parent", "SIGTERM to its group"),
    *("close 0-2", "close 3-10", "5 MB to stdout", "stdout closed", "16 files at most"),
    *("environ cleared", "warnings are errors", "numpy raises", "recursion limit 60"),
    *("GIL held 4 s", "sleep forever", "crash", "abort", "recursion", "10 TB wanted"),
    *("StopIteration", "GeneratorExit", "KeyboardInterrupt", "BaseException", "ExceptionGroup"),
    *("unspeakable error", "unsendable error", "endless message", "surrogates", "EOFError"),
    *("BrokenPipeError", "BadInput", "StoppedEarly", "time.sleep patched", "np.zeros patched"),
)
"""The same in a worker, which is replaced."""
ALWAYS = (
    *("StopIteration", "GeneratorExit", "KeyboardInterrupt", "BaseException", "recursion"),
    *("unspeakable error", "unsendable error", "endless message", "surrogates", "MemoryError"),
    *("ExceptionGroup", "BadInput", "StoppedEarly", "BrokenPipeError", "FileNotFoundError"),
)
"""The same at every call: the run fails for good."""
OUTCOMES = {
    "obs list": DONE,
    "reward array of one": EITHER,
    "reward Fraction": EITHER,
    "reward 1e308": (0, 3, 4),
    "reward Decimal": EITHER,
    "reward that can't be compared": EITHER,
    "reward text": EITHER,
    "reward huge int": (3, 4),
    "reward bool": DONE,
    "always terminated": DONE,
    "always truncated": DONE,
    "both": DONE,
    "info lambda": DONE,
    "info 1 MB": DONE,
    "info episode": DONE,
    "info list": EITHER,
    "info None": EITHER,
    "a list": EITHER,
    "a generator": EITHER,
    "terminated array": EITHER,
    "terminated 2": EITHER,
    "terminated NaN": EITHER,
    "terminated None": EITHER,
    "terminated text": EITHER,
    "obs float64": DONE,
    "obs int64": DONE,
    "obs read-only": DONE,
    "obs backwards": DONE,
    "obs masked": EITHER,
    "obs tensor": EITHER,
    "obs objects": EITHER,
    "obs (1, 4)": EITHER,
    "obs scalar": EITHER,
}
"""Codes of what steps return; else 3."""
WRONG_SPACES = {
    "one action": (0, 2, 3),
    "a billion actions": (0, 2, 3),
    "no actions": (0, 2, 3),
    "actions from -3": DONE,
    "float16": (0, 2, 3),
    "int8 Box": (0, 2, 3),
    "changing": (2, 3),
    "unseeded": DONE,
    "complex Box": (0, 2, 3),
    "empty Box": (0, 2, 3),
    "empty Dict": (2, 3),
}


def kwargs(**values: object) -> str:
    return f"--env.kwargs '{json.dumps(values)}'".replace("can't", "can\\u0027t")


def told(what: str) -> str:
    return kwargs(what=what, where="close", at=1, worker=True)


def _evaluated(case: Case) -> None:
    if case.code == 0 and not (case.run / "eval.json").exists():
        raise lost("exit code 0 without an evaluation")


def _train(name: str, flags: str, codes: tuple[int, ...], **more: object) -> Trial:
    return Trial(
        "environments",
        name,
        f"train {BASE} {flags}",
        codes,
        quotes=True,
        after=_evaluated,
        **more,  # type: ignore[arg-type]
    )


def trials() -> list[Trial]:
    workers = "--num-workers 2 --worker-timeout 3s --max-restarts 2"
    found = [
        _train(f"step: {w}", kwargs(what=w), codes, rough=w.endswith("patched"))
        for w, codes in STEP.items()
    ]
    found += [
        _train(f"{w} once", kwargs(what=w), codes, known=True, timeout=45.0)
        for w, codes in KNOWN.items()
    ]
    found += [
        _train(f"worker: {w}", f"{kwargs(what=w, worker=True)} {workers}", EITHER) for w in WORKERS
    ]
    found += [
        _train(f"every {where}: {w}", kwargs(what=w, where=where, at=0), (2, 3, 75))
        for where in ("step", "reset", "init")
        for w in ALWAYS
        if ALWAYS.index(w) % 3 == ("step", "reset", "init").index(where)
    ]
    found += [
        _train(f"close: {w}", kwargs(what=w, where="close", at=at), (0, 75))
        for w in ("StopIteration", "SystemExit", "KeyboardInterrupt", "sleep 4 s", "ENOSPC")
        for at in (0,)
    ]
    found += [
        _train(f"close in a worker: {w}", f"{told(w)} {workers}", DONE)
        for w in ("BaseException", "sleep forever", "os._exit(7)", "GIL held 4 s")
    ]
    found += [
        _train(f"del: {w}", kwargs(what=w, where="del", at=0), DONE)
        for w in ("AssertionError", "SystemExit", "KeyboardInterrupt")
    ]
    found += [_train(f"returns: {w}", kwargs(what=w), OUTCOMES.get(w, FAILED)) for w in RETURNS]
    found += [
        _train(f"reset returns: {w}", kwargs(what=w, where="reset", at=2), OUTCOMES.get(w, FAILED))
        for w in RETURNS
        if w in ("obs None", "obs NaN", "obs too long", "obs text", "None", "obs read-only")
    ]
    odd = BASE.replace("misbehaving:Misbehaves", "worlds:OddSpaces")
    found += [
        Trial(
            "environments",
            f"spaces: {w}",
            f"train {odd} {kwargs(kind=w)}",
            WRONG_SPACES.get(w, (2, 3)),
            quotes=True,
        )
        for w in SPACES
    ]
    return found + _elsewhere()


def _elsewhere() -> list[Trial]:
    """In `check`, ranks, A3C, a stream, and where a policy is evaluated."""
    world = "fault_trials.misbehaving:Misbehaves-v0"
    checked = (
        *("close 0-2", "close 3-10", "5 MB to stdout", "stdout closed", "own session waits"),
        *("KeyboardInterrupt", "SystemExit", "crash", "sleep forever", "unspeakable error"),
        *("unsendable error", "endless message", "surrogates", "fork, child raises"),
        *("obs a generator", "None", "reward that can't be compared", "SIGTERM to its group"),
    )
    check = "--seconds 0.3 --worker-timeout 2s"
    found = [
        Trial(
            "environments",
            f"check: {w}",
            f"check {world} {kwargs(what=w)} {check}",
            (0, 2, 3),
            quotes=True,
            timeout=150.0,
            known=w == "own session waits",
        )
        for w in checked
    ]
    found += [
        Trial(
            "environments",
            f"check spaces: {w}",
            f"check fault_trials.worlds:OddSpaces-v0 {kwargs(kind=w)} {check}",
            (0, 2, 3),
            quotes=True,
            timeout=150.0,
        )
        for w in ("text", "None", "not a space", "changing", "empty Box", "complex Box")
    ]
    ways = {
        "ranks": "--ranks 2 --max-restarts 2",
        "a3c": "--algo a3c --num-workers 2 --preset none",
        "stream": "--algo impala --num-workers 2 --worker-timeout 3s --preset none",
    }
    for way, flags in ways.items():
        for w in (
            *("BaseException", "KeyboardInterrupt", "unsendable error", "crash", "close 3-10"),
            *("fork, child raises", "environ cleared", "variables of a rank", "chdir"),
        ):
            codes = (0, 2, 3, 75)
            found.append(_train(f"{way}: {w}", f"{kwargs(what=w)} {flags}", codes, timeout=100.0))
    found += [
        Trial(
            "environments",
            f"eval: {w}",
            "eval run --episodes 3",
            (0, 2, 3),
            run="serial:done",
            quotes=True,
            prepare=lambda case, w=w: _as_world(case, w),
        )
        for w in ("BaseException", "KeyboardInterrupt", "SystemExit", "unspeakable error", "None")
    ]
    found.append(
        Trial(
            "environments",
            "eval: what the run trained in is gone",
            "eval run --episodes 2",
            (2, 3),
            run="serial:done",
            prepare=lambda case: _replace(case, "CartPole-v1", "Gone-v7"),
        )
    )
    return found


def _replace(case: Case, old: str, new: str) -> None:
    config = case.run / "config.yaml"
    config.write_text(config.read_text().replace(old, new))


def _as_world(case: Case, what: str) -> None:
    """--env-id drops the keyword arguments of the run, so the world is told by its file."""
    (case.here / "told.py").write_text(
        "import gymnasium as gym\n"
        "from fault_trials.misbehaving import Misbehaves\n"
        f"gym.register('Told-v0', lambda: Misbehaves({what!r}), max_episode_steps=500)\n"
    )
    _replace(case, "CartPole-v1", "told:Told-v0")
    _replace(case, "- fault_trials.worlds:Paced", "")
    _replace(case, "wrappers:\n", "wrappers: []\n")
