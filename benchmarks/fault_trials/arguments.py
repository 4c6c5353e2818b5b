"""Area `arguments`: every command with arguments that nobody should give."""

from __future__ import annotations

from .harness import QUICK, Trial

BAD = (2,)
LONG = "x" * 5000
COMMANDS = {
    # command: what makes it short where its arguments are good, and an option of it with a value
    "train": (QUICK, "--seed", "3"),
    "resume": ("run", "--total-iters", "3"),
    "eval": ("run --episodes 2", "--episodes", "2"),
    "compare": ("run other --output-dir compared", "--at", "500"),
    "scale": (
        "--ranks 1 --repeats 1 --iters 3 --warmup-iters 1 --compile off --output-dir s",
        "--repeats",
        "1",
    ),
    "bench": (
        "--algos ppo --modes sequential --seeds 1 --total-steps 600 --compile off --output-dir b",
        "--seeds",
        "1",
    ),
    "tune": ("--time 5s --compile off --output t.yaml", "--time", "5s"),
    "check": ("CartPole-v1 --seconds 0.2", "--seconds", "0.2"),
    "doctor": ("", "", ""),
    "list": ("", "", ""),
}


def _copy(case: object) -> None:
    import shutil

    here = case.here  # type: ignore[attr-defined]
    shutil.copytree(here / "run", here / "other", symlinks=True)


def _row(command: str, name: str, args: list[str], codes: tuple[int, ...], **more: object) -> Trial:
    run = "serial:done" if command in ("resume", "eval", "compare") else ""
    prepare = _copy if command == "compare" else None
    return Trial(
        "arguments",
        f"{command}: {name}",
        [command, *args],
        codes,
        run=run,
        prepare=prepare,  # type: ignore[arg-type]
        timeout=90.0,
        **more,  # type: ignore[arg-type]
    )


def trials() -> list[Trial]:
    found = []
    for command, (good, option, value) in COMMANDS.items():
        whole = good.split()
        anything = command in ("doctor", "list")

        def add(name: str, args: list[str], codes: tuple[int, ...] = BAD, c: str = command) -> None:
            found.append(_row(c, name, args, codes))

        add("unknown flag", [*whole, "--no-such-flag", "1"])
        add("one dash", [*whole, "-z"])
        add("unicode", [*whole, "--größe", "∞"])
        add("very long", [*whole, LONG])
        add("empty", [*whole, ""])
        add("control characters", [*whole, "\x1b[31m\r\n"])
        add("not UTF-8", [*whole, "\udcff"])
        add("two dashes", [*whole, "--"], (0, 2))
        add("help among others", [*whole, "--help"], (0,))
        if anything:
            continue
        add("flag twice", [*whole, option, value, option, value], (0, 2))
        add("flag without value", [*whole, option])
        add("=value", [*whole, f"{option}={value}"], (0,))
        add("= without value", [*whole, f"{option}="])
        add("abbreviated", [*whole, option[:-1], value])
        add("negative", [*whole, option, "-1"])
        add("wrong type", [*whole, option, "three"])
        add("not a number", [*whole, option, "nan"])
        add("infinite", [*whole, option, "inf"])
        add("huge", [*whole, option, "9" * 400])
        add("Arabic digits", [*whole, option, "٣"], (0, 2))
        if command not in ("train", "scale", "bench", "tune"):
            add("no arguments", [])
    found += [
        Trial("arguments", f"none: {name}", args, codes)
        for name, args, codes in (
            ("no command", [], (0,)),
            ("empty command", [""], BAD),
            ("unknown command", ["fly"], BAD),
            ("abbreviated command", ["tra"], BAD),
            ("flag before the command", ["--seed", "1", "train"], BAD),
            ("long command", [LONG], BAD),
            ("version", ["--version"], (0,)),
        )
    ]
    return found + _more()


def _more() -> list[Trial]:
    rows: tuple[tuple[str, str, tuple[int, ...]], ...] = (
        ("env_id empty", "train {Q} --env-id ''", BAD),
        ("env_id a path", "train {Q} --env-id /etc/passwd", BAD),
        ("env_id with ..", "train {Q} --env-id ../../x:Y-v0", BAD),
        ("env_id a colon", "train {Q} --env-id :", BAD),
        ("env_id many colons", "train {Q} --env-id a:b:c:d", BAD),
        ("env_id a module that exits", "train {Q} --env-id antigravity_none:X-v0", BAD),
        ("env_id this", "train {Q} --env-id this:X-v0", BAD),
        ("env_id __main__", "train {Q} --env-id __main__:X-v0", BAD),
        ("env_id -1", "train {Q} --env-id CartPole-v-1", BAD),
        ("env_id newest missing", "train {Q} --env-id CartPole-v999", BAD),
        ("kwargs not JSON", "train {Q} --env.kwargs {{a}", BAD),
        ("kwargs a list", "train {Q} --env.kwargs [1]", BAD),
        ("kwargs NaN", "train {Q} --env.kwargs '{\"x\": NaN}'", BAD),
        ("kwargs unknown", "train {Q} --env.kwargs '{\"x\": 1}'", (*BAD, 3)),
        ("kwargs deep", "train {Q} --env.kwargs '" + "[" * 5000 + "'", BAD),
        ("wrappers unknown", "train {Q} --env.wrappers no.such:Thing", BAD),
        ("wrappers no class", "train {Q} --env.wrappers os:path", (2, 3)),
        ("wrappers a function", "train {Q} --env.wrappers os:getcwd", (2, 3)),
        ("output_dir a file", "train {Q} --output-dir output", BAD),
        ("output_dir /dev/null", "train {Q} --output-dir /dev/null", BAD),
        ("output_dir below a file", "train {Q} --output-dir output/x", BAD),
        ("output_dir /proc", "train {Q} --output-dir /proc/x", BAD),
        ("output_dir with NUL escape", "train {Q} --output-dir 'a\\0b'", (0, 2)),
        ("output_dir 300 letters", "train {Q} --output-dir " + "d" * 300, BAD),
        ("output_dir newline", "train {Q} --output-dir 'a\nb'", (0, 2)),
        ("output_dir -", "train {Q} --output-dir -", (0, 2)),
        ("output_dir spaces", "train {Q} --output-dir '  '", (0, 2)),
        ("output_dir .", "train {Q} --output-dir .", (0, 2)),
        ("log_jsonl /dev/full", "train {Q} --log-jsonl /dev/full", (0, 2)),
        ("log_jsonl /dev/null", "train {Q} --log-jsonl /dev/null", (0,)),
        ("log_jsonl /dev/stdout", "train {Q} --log-jsonl /dev/stdout", (0, 2)),
        ("log_jsonl a directory", "train {Q} --log-jsonl tmp", BAD),
        ("log_jsonl config.yaml", "train {Q} --log-jsonl run/config.yaml", BAD),
        ("log_jsonl the lock", "train {Q} --log-jsonl run/.lock", BAD),
        ("num_envs 0", "train {Q} --num-envs 0", BAD),
        ("num_envs 10^12", "train {Q} --num-envs 1000000000000", BAD),
        ("num_workers 100000", "train {Q} --num-workers 100000 --num-envs 100000", BAD),
        ("ranks 0", "train {Q} --ranks 0", BAD),
        ("ranks 10000", "train {Q} --ranks 10000 --num-envs 10000", BAD),
        ("threads 10^9", "train {Q} --threads 1000000000", BAD),
        ("hidden 0", "train {Q} --hidden 0", BAD),
        ("hidden huge", "train {Q} --hidden 1000000000", BAD),
        ("hidden many", "train {Q} --hidden " + ",".join(["8"] * 2000), (0, 2)),
        ("rollout_steps 0", "train {Q} --rollout-steps 0", BAD),
        ("gamma 2", "train {Q} --gamma 2", BAD),
        ("lr 1e-400", "train {Q} --lr 1e-400", (0, 2)),
        ("lr 1e400", "train {Q} --lr 1e400", BAD),
        ("seed -1", "train {Q} --seed -1", BAD),
        ("seed 2^64", "train {Q} --seed 18446744073709551616", (0, 2)),
        ("seed 2^63", "train {Q} --seed 9223372036854775808", (0, 2)),
        ("duration 0s", "train {Q} --duration 0s", BAD),
        ("duration bare", "train {Q} --duration 3", BAD),
        ("duration 1e9h", "train {Q} --duration 1e9h", (0, 2)),
        ("total_steps 0", "train {Q} --total-steps 0", BAD),
        ("total_steps 1e30", "train {Q} --total-steps 1e30", (0, 2)),
        ("device gpu", "train {Q} --device gpu", BAD),
        ("device cuda", "train {Q} --device cuda", BAD),
        ("init_method http", "train {Q} --ranks 2 --init-method http://x", BAD),
        ("init_from itself", "train {Q} --init-from run", BAD),
        ("init_from /", "train {Q} --init-from /", BAD),
        ("config twice", "train --config a.yaml --config b.yaml", BAD),
        ("config a directory", "train --config tmp", BAD),
        ("config /dev/zero", "train --config /dev/zero", BAD),
        ("config -", "train --config -", BAD),
        ("config no suffix", "train --config output", BAD),
        ("resume a file", "resume output", BAD),
        ("resume /", "resume /", BAD),
        ("eval both", "eval run --checkpoint run", BAD),
        ("eval episodes 0", "eval run --episodes 0", BAD),
        ("compare the same", "compare / / --output-dir c", BAD),
        ("compare nothing in it", "compare tmp phases --output-dir c", BAD),
        ("list unknown", "list everything", BAD),
        ("list suite unknown", "list envs nowhere", BAD),
        ("check nothing there", "check NoSuchEnv-v0", BAD),
        ("check seconds 0", "check CartPole-v1 --seconds 0", BAD),
        ("scale ranks empty", "scale --ranks ,", BAD),
        ("scale ranks twice", "scale --ranks 1,1 --repeats 1 --iters 3 --output-dir s", (0, 2)),
        ("scale ranks 0", "scale --ranks 0", BAD),
        ("bench algos unknown", "bench --algos dqn", BAD),
        ("bench modes unknown", "bench --modes flying", BAD),
        ("bench resume nothing", "bench --resume tmp", BAD),
        ("tune for-cpus 0", "tune --for-cpus 0", BAD),
        ("tune constants missing", "tune --for-cpus 8 --constants nowhere.json", BAD),
        ("tune output a directory", "tune --time 5s --output tmp", BAD),
    )
    return [Trial("arguments", name, args, codes, timeout=90.0) for name, args, codes in rows]
