"""Area `resources`: limits, streams, variables and options of the interpreter."""

from __future__ import annotations

from typing import Any

from .harness import QUICK, WAYS, Trial

DONE = (0,)
PIPED = '(ulimit -f 0; exec "$@" 2>&1) | cat; exit ${PIPESTATUS[0]}'

LIMITS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    # name: (bash before the command, way or arguments, exit codes)
    "SIGCHLD ignored, workers": ('exec env --ignore-signal=CHLD "$@"', "workers", DONE),
    "SIGCHLD ignored, ranks": ('exec env --ignore-signal=CHLD "$@"', "ranks", DONE),
    "all signals ignored": ('exec env --ignore-signal "$@"', "workers", DONE),
    "all signals blocked": ('exec env --block-signal "$@"', "workers", DONE),
    "all signals blocked, ranks": ('exec env --block-signal "$@"', "ranks", DONE),
    "8 files": ('ulimit -n 8; exec "$@"', "serial", (0, 1, 2, 3, 75)),
    "20 files": ('ulimit -n 20; exec "$@"', "serial", (0, 2, 3, 75)),
    "20 files, workers": ('ulimit -n 20; exec "$@"', "workers", (0, 2, 3, 75)),
    "20 files, ranks": ('ulimit -n 20; exec "$@"', "ranks", (0, 2, 3, 75)),
    "40 files, a3c": ('ulimit -n 40; exec "$@"', "a3c", (0, 2, 3, 75)),
    "files of 1 MB": ('ulimit -f 1024; exec "$@"', "serial", DONE),
    "files of 8 KB": ('ulimit -f 8; exec "$@"', "serial", (2, 75)),
    "files of 8 KB, ranks": ('ulimit -f 8; exec "$@"', "ranks", (2, 75)),
    "files of 40 KB, workers": ('ulimit -f 40; exec "$@"', "workers", (0, 2, 75)),
    "memory 600 MB": ('ulimit -v 600000; exec "$@"', "serial", (0, 2, 3, 75)),
    "memory 2 GB": ('ulimit -v 2000000; exec "$@"', "serial", (0, 2, 3, 75)),
    "memory 4 GB, ranks": ('ulimit -v 4000000; exec "$@"', "ranks", (0, 2, 3, 75)),
    "memory 3 GB, workers": ('ulimit -v 3000000; exec "$@"', "workers", (0, 2, 3, 75)),
    "stack 256 KB": ('ulimit -s 256; exec "$@"', "serial", (0, 2, 3, -11)),
    "stack unlimited": ('ulimit -s unlimited; exec "$@"', "workers", DONE),
    "no core": ('ulimit -c 0; exec "$@"', "ranks", DONE),
    "2 s of CPU": ('ulimit -t 2; exec "$@"', "long", (75, 0, -24, -9)),
    "2 s of CPU, soft only": ('ulimit -St 2; exec "$@"', "long", (75, 0, -24)),
    "2 s of CPU, workers": ('ulimit -St 2; exec "$@"', "long workers", (75, 0, 3, -24)),
    "nothing locked": ('ulimit -l 0; exec "$@"', "ranks", DONE),
    "10 pending signals": ('ulimit -i 0; exec "$@"', "ranks", DONE),
    "nice 19": ('exec nice -n 19 "$@"', "workers", DONE),
    "one CPU": ('exec taskset -c 0 "$@"', "workers", DONE),
    "one CPU, ranks": ('exec taskset -c 1 "$@"', "ranks", DONE),
    "one CPU, pinned": ('exec taskset -c 1 "$@" --pin true', "workers", DONE),
    "idle class": ('exec chrt -i 0 "$@"', "serial", DONE),
    "umask 0777": ('umask 0777; exec "$@"', "serial", (0, 2, 75)),
    "umask 0777, ranks": ('umask 0777; exec "$@"', "ranks", (0, 2, 75)),
    "umask 0777, no privileges": (
        'umask 0777; exec setpriv --inh-caps=-all --bounding-set=-all -- "$@"',
        "serial",
        (0, 2, 75),
    ),
    "own pid namespace": ('exec unshare -fp --mount-proc "$@"', "workers", DONE),
    "own pid namespace, ranks": ('exec unshare -fp --mount-proc "$@"', "ranks", DONE),
    "own network without lo, ranks": ('exec unshare -n "$@"', "ranks", (0, 2, 3, 75)),
    "own network without lo, a3c": ('exec unshare -n "$@"', "a3c", (0, 2, 3, 75)),
    "own network without lo": ('exec unshare -n "$@"', "workers", DONE),
    "host name unknown, ranks": (
        'exec unshare -u bash -c \'hostname no.such.host.invalid; exec "$@"\' - "$@"',
        "ranks",
        DONE,
    ),
    "no /proc": (
        'exec unshare -m bash -c \'mount -t tmpfs none /proc; exec "$@"\' - "$@"',
        "serial",
        (0, 2, 3, 75),
    ),
    "no /dev/shm, ranks": (
        'exec unshare -m bash -c \'mount -t tmpfs -o ro none /dev/shm; exec "$@"\' - "$@"',
        "ranks",
        DONE,
    ),
    "read-only temporary folder": (
        'exec unshare -m bash -c \'mount -t tmpfs -o ro none "$TMPDIR"; exec "$@"\' - "$@"',
        "ranks",
        DONE,
    ),
    "read-only home": (
        'exec unshare -m bash -c \'mount -t tmpfs -o ro none /mnt; HOME=/mnt exec "$@"\' - "$@"',
        "serial",
        DONE,
    ),
    "/sys not there": (
        'exec unshare -m bash -c \'mount -t tmpfs none /sys; exec "$@"\' - "$@"',
        "workers",
        DONE,
    ),
    "small disk": (
        "exec unshare -m bash -c 'mkdir -p run; mount -t tmpfs -o size=200k none run; exec \"$@\"' "
        '- "$@"',
        "serial",
        (0, 2, 75),
    ),
    "temporary folder missing": ('TMPDIR=/nowhere exec "$@"', "ranks", DONE),
    "working directory removed": (
        'mkdir gone; cd gone; rmdir ../gone; exec "$@" --output-dir {here}/run',
        "serial",
        (0, 2),
    ),
    "working directory removed, ranks": (
        'mkdir gone; cd gone; rmdir ../gone; exec "$@" --output-dir {here}/run',
        "ranks",
        (0, 2),
    ),
}

STREAMS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "stdin closed": ('exec "$@" <&-', "serial", DONE),
    "stdin closed, ranks": ('exec "$@" <&-', "ranks", DONE),
    "stdin closed, workers": ('exec "$@" <&-', "workers", DONE),
    "stdin a pipe": ('yes | "$@"', "serial", DONE),
    "stdin endless": ('exec "$@" </dev/zero', "workers", DONE),
    "stderr closed": ('exec "$@" 2>&-', "serial", DONE),
    "stderr closed, workers": ('exec "$@" 2>&-', "workers", DONE),
    "stderr closed, ranks": ('exec "$@" 2>&-', "ranks", DONE),
    "all closed": ('exec "$@" <&- >&- 2>&-', "serial", DONE),
    "all closed, workers": ('exec "$@" <&- >&- 2>&-', "workers", DONE),
    "all closed, ranks": ('exec "$@" <&- >&- 2>&-', "ranks", DONE),
    "all closed, a3c": ('exec "$@" <&- >&- 2>&-', "a3c", DONE),
    "stderr full": ('exec "$@" 2>/dev/full', "serial", DONE),
    "both full, workers": ('exec "$@" >/dev/full 2>&1', "workers", DONE),
    "both full, ranks": ('exec "$@" >/dev/full 2>&1', "ranks", DONE),
    "stdout a pipe that is closed": (
        '"$@" | head -c 10 >/dev/null; exit ${PIPESTATUS[0]}',
        "serial",
        (0, 75),
    ),
    "stdout a pipe that is closed, ranks": (
        '"$@" | head -c 10 >/dev/null; exit ${PIPESTATUS[0]}',
        "ranks",
        (0, 75),
    ),
    "stdout a pipe nobody reads": ('"$@" | sleep 6; exit ${PIPESTATUS[0]}', "serial", (0, 75)),
    "stderr a pipe that is closed": (
        '"$@" 2>&1 >/dev/null | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}',
        "ranks",
        DONE,
    ),
    "stdout a socket": ('exec "$@" > >(cat >/dev/null)', "serial", DONE),
    "read-only stdout": ('exec "$@" 1</dev/null', "serial", DONE),
    "many open files": (
        'for i in {20..200}; do eval "exec $i</dev/null"; done; exec "$@"',
        "ranks",
        DONE,
    ),
}

VARIABLES: dict[str, tuple[dict[str, str | None], str, tuple[int, ...]]] = {
    "PYTHONOPTIMIZE=2": ({"PYTHONOPTIMIZE": "2"}, "workers", DONE),
    "PYTHONOPTIMIZE=2, ranks": ({"PYTHONOPTIMIZE": "2"}, "ranks", DONE),
    "PYTHONDONTWRITEBYTECODE": ({"PYTHONDONTWRITEBYTECODE": "1"}, "workers", DONE),
    "PYTHONHASHSEED=0": ({"PYTHONHASHSEED": "0"}, "serial", DONE),
    "PYTHONHASHSEED=12345": ({"PYTHONHASHSEED": "12345"}, "ranks", DONE),
    "PYTHONWARNINGS=error": ({"PYTHONWARNINGS": "error"}, "serial", DONE),
    "PYTHONWARNINGS=error, workers": ({"PYTHONWARNINGS": "error"}, "workers", DONE),
    "PYTHONWARNINGS=error, ranks": ({"PYTHONWARNINGS": "error"}, "ranks", DONE),
    "PYTHONWARNINGS=always": ({"PYTHONWARNINGS": "always"}, "ranks", DONE),
    "PYTHONSAFEPATH": ({"PYTHONSAFEPATH": "1"}, "ranks", DONE),
    "PYTHONUNBUFFERED": ({"PYTHONUNBUFFERED": "1"}, "serial", DONE),
    "PYTHONDEVMODE": ({"PYTHONDEVMODE": "1"}, "workers", DONE),
    "PYTHONDEVMODE, ranks": ({"PYTHONDEVMODE": "1"}, "ranks", DONE),
    "PYTHONFAULTHANDLER": ({"PYTHONFAULTHANDLER": "1"}, "workers", DONE),
    "PYTHONMALLOC=debug": ({"PYTHONMALLOC": "debug"}, "serial", DONE),
    "PYTHONIOENCODING=ascii": ({"PYTHONIOENCODING": "ascii"}, "ranks", DONE),
    "PYTHONUTF8=0, POSIX": ({"PYTHONUTF8": "0", "LC_ALL": "POSIX"}, "workers", DONE),
    "PYTHONTRACEMALLOC": ({"PYTHONTRACEMALLOC": "5"}, "serial", DONE),
    "PYTHONSTARTUP": ({"PYTHONSTARTUP": "/nowhere"}, "serial", DONE),
    "PYTHONNOUSERSITE": ({"PYTHONNOUSERSITE": "1"}, "workers", DONE),
    "PYTHONPYCACHEPREFIX": ({"PYTHONPYCACHEPREFIX": "/nowhere/x"}, "serial", DONE),
    "LANG=tr_TR": ({"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"}, "serial", DONE),
    "TZ": ({"TZ": "Pacific/Kiritimati"}, "serial", DONE),
    "TZ nonsense": ({"TZ": ":/etc/passwd"}, "serial", DONE),
    "TERM=dumb": ({"TERM": "dumb"}, "serial", DONE),
    "TERM unset": ({"TERM": None}, "serial", DONE),
    "TERM nonsense": ({"TERM": "\x1b[31m"}, "serial", DONE),
    "COLUMNS=0": ({"COLUMNS": "0", "LINES": "0"}, "serial", DONE),
    "COLUMNS=1": ({"COLUMNS": "1"}, "serial", DONE),
    "COLUMNS=text": ({"COLUMNS": "wide"}, "serial", DONE),
    "NO_COLOR, FORCE_COLOR": ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "serial", DONE),
    "huge environment": ({f"FILL{i}": "x" * 100_000 for i in range(15)}, "ranks", DONE),
    "many variables": ({f"FILL{i}": "x" for i in range(8000)}, "workers", DONE),
    "no HOME": ({"HOME": None}, "serial", DONE),
    "HOME a file": ({"HOME": "/etc/passwd"}, "serial", DONE),
    "no HOME, no name": ({"HOME": None, "USER": None, "LOGNAME": None}, "ranks", DONE),
    "no PATH": ({"PATH": None}, "serial", DONE),
    "no PATH, ranks": ({"PATH": None}, "ranks", DONE),
    "PATH empty, compile on": ({"PATH": ""}, "compiled", (0, 2)),
    "CXX nonsense, compile on": ({"CXX": "/nowhere/g++"}, "compiled", (0, 2)),
    "CXX false, compile on": ({"CXX": "/bin/false"}, "compiled", (0, 2)),
    "cache a file, compile on": (
        {"TORCHINDUCTOR_CACHE_DIR": "/etc/passwd"},
        "compiled",
        (0, 2),
    ),
    "cache not writable, compile on": (
        {"TORCHINDUCTOR_CACHE_DIR": "/proc/x"},
        "compiled",
        (0, 2),
    ),
    "OMP_NUM_THREADS=0": ({"OMP_NUM_THREADS": "0"}, "serial", DONE),
    "OMP_NUM_THREADS=many": ({"OMP_NUM_THREADS": "many"}, "workers", DONE),
    "RANK alone": ({"RANK": "0"}, "serial", DONE),
    "RANK and WORLD_SIZE": ({"RANK": "0", "WORLD_SIZE": "1"}, "serial", DONE),
    "RANK nonsense": (
        {"RANK": "x", "WORLD_SIZE": "y", "MASTER_ADDR": "z", "MASTER_PORT": "w"},
        "serial",
        (0, 2),
    ),
    "RANK 5 of 2": (
        {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        "serial",
        (0, 2),
    ),
    "inherited rank, ranks": (
        {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
        "ranks",
        DONE,
    ),
    "TORCHELASTIC_RUN_ID": ({"TORCHELASTIC_RUN_ID": "x"}, "ranks", DONE),
    "PACELINE_CHANNEL": ({"PACELINE_CHANNEL": "zz:zz"}, "ranks", DONE),
    "PACELINE_LAUNCH": ({"PACELINE_LAUNCH": "x"}, "serial", DONE),
    "http_proxy": ({"http_proxy": "http://10.255.255.1:1", "ALL_PROXY": "x"}, "ranks", DONE),
    "GLOO_SOCKET_IFNAME": ({"GLOO_SOCKET_IFNAME": "nowhere0"}, "ranks", DONE),
    "TORCH_LOGS": ({"TORCH_LOGS": "nonsense"}, "serial", (0, 2)),
    "TORCHDYNAMO_DISABLE, compile on": ({"TORCHDYNAMO_DISABLE": "1"}, "compiled", (0, 2)),
    "TORCH_DISTRIBUTED_DEBUG": ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "ranks", DONE),
    "CUDA_VISIBLE_DEVICES": ({"CUDA_VISIBLE_DEVICES": "0,1"}, "serial", DONE),
    "MALLOC_PERTURB_": ({"MALLOC_PERTURB_": "165"}, "workers", DONE),
    "LD_PRELOAD missing": ({"LD_PRELOAD": "/nowhere/lib.so"}, "serial", DONE),
    "SLURM": (
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_LOCALID": "1"},
        "serial",
        DONE,
    ),
}


def way(name: str) -> str:
    if name.startswith("long"):
        more = " --num-workers 2" if "workers" in name else ""
        return f"{QUICK}{more} --total-iters 100000"
    return WAYS[name]


def row(name: str, how: str, codes: tuple[int, ...], **more: Any) -> Trial:
    """The run may be resumed wherever it did not end for want of something."""
    resume = "" if how.startswith("long") or 2 in codes or 3 in codes else how
    more.setdefault("resume", resume)
    return Trial("resources", name, f"train {way(how)}", codes, timeout=90.0, **more)


def trials() -> list[Trial]:
    found = [
        row(name, how, codes, shell=shell, dies="CPU" in name)
        for name, (shell, how, codes) in {**LIMITS, **STREAMS}.items()
    ]
    found += [
        row(f"variable: {name}", how, codes, variables=values, known=name == "no HOME")
        for name, (values, how, codes) in VARIABLES.items()
    ]
    for name, flags in (
        ("-I", "-I"),
        ("-E", "-E"),
        ("-O", "-OO"),
        ("-W error", "-Werror"),
        ("-X dev", "-Xdev"),
        ("-B", "-B"),
        ("-s", "-s"),
    ):
        found.append(
            Trial("resources", f"python {name}", f"train {QUICK}", DONE, interpreter=(flags,))
        )
        found.append(
            Trial(
                "resources",
                f"python {name}, ranks",
                f"train {QUICK} --ranks 2",
                DONE,
                interpreter=(flags,),
            )
        )
    return found + _groups()


def _groups() -> list[Trial]:
    def limited(controller: str, file: str, value: str) -> str:
        return (
            f"g=/sys/fs/cgroup/{controller}/faults-$$; mkdir -p $g || exit 0; "
            f"trap 'rmdir $g' EXIT; echo {value} > $g/{file}; "
            '(echo $BASHPID > $g/tasks; exec "$@"); code=$?; sleep 0.5; exit $code'
        )

    rows = {
        "cgroup: 8 processes": ("pids", "pids.max", "8", "workers", (0, 2, 3, 75)),
        "cgroup: 12 processes, ranks": ("pids", "pids.max", "12", "ranks", (0, 2, 3, 75)),
        "cgroup: tenth of a CPU": ("cpu", "cpu.cfs_quota_us", "20000", "serial", DONE),
        "cgroup: 300 MB, serial": (
            "memory",
            "memory.limit_in_bytes",
            "150M",
            "serial",
            (0, 2, 3, 75, -9, 137),
        ),
        "cgroup: 400 MB, ranks": (
            "memory",
            "memory.limit_in_bytes",
            "400M",
            "ranks",
            (0, 2, 3, 75, -9, 137),
        ),
    }
    return [
        row(
            name,
            how,
            codes,
            shell=limited(controller, file, value),
            dies=True,
            resume="",
            known="MB" in name,
        )
        for name, (controller, file, value, how, codes) in rows.items()
    ]
