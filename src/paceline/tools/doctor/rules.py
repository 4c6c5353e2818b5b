"""What `doctor` says: the findings' levels, topics and texts by their codes."""

from __future__ import annotations

from ..findings import Rule, Rules

NOT_COMPILED = "long runs are not compiled, and update more slowly"
INSTALL_COMPILER = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
FREE_MEMORY = "end what else uses memory"
GROUP_MEMORY = (
    f"{FREE_MEMORY}, or raise docker's --memory, Kubernetes' limits.memory or systemd's MemoryMax"
)
OTHER_PLACE = "name another place with --output-dir"
OTHER_TEMP = "set TMPDIR to a writable directory with room"
SHM_USERS = "torch's DataLoader, NCCL and Ray do"

RULES = Rules(
    {
        "failed": Rule("note", "", "this could not be examined: {error}"),
        # software
        "versions-ok": Rule("ok", "versions", "all required packages are installed and new enough"),
        "versions-wrong": Rule("problem", "versions", "{wrong}", fix="{install}"),
        "compiler-ok": Rule("ok", "compiler", "long runs can be compiled"),
        "compiler-missing": Rule(
            "note", "compiler", f"there is no C++ compiler: {NOT_COMPILED}", fix=INSTALL_COMPILER
        ),
        "compiler-other": Rule(
            *("note", "compiler"),
            f"there is {{other}}, but torch looks for {{wanted}} alone: {NOT_COMPILED}",
            fix="export CXX={other}",
        ),
        "compiler-cxx": Rule(
            *("note", "compiler"),
            f"CXX names {{wanted}}, which is no command here, and torch tries no other: "
            f"{NOT_COMPILED}",
            fix="{install}",
        ),
        "compiler-headers": Rule(
            *("note", "compiler", f"Python's C headers are missing: {NOT_COMPILED}"),
            fix="install them (Debian, Ubuntu: apt install python3-dev; Fedora: dnf install "
            "python3-devel)",
        ),
        "gpu-ok": Rule("ok", "gpu", "there is an NVIDIA GPU, and torch is built for it"),
        "gpu-none": Rule("ok", "gpu", "there is no NVIDIA GPU, and torch is a build for CPUs"),
        "gpu-no-device": Rule(
            *("note", "gpu", "there is an NVIDIA driver, but no device this process may use"),
            fix="start the container with docker's --gpus all, or ask the batch system for a GPU",
        ),
        "gpu-torch-for-cpu": Rule(
            *("note", "gpu"),
            "there is an NVIDIA GPU, but torch is a build for CPUs: --device cuda is refused",
            fix="only if networks are large: install a build of torch for CUDA",
        ),
        "gpu-torch-for-cuda": Rule(
            *("note", "gpu"),
            "torch is a build for CUDA, and there is no GPU: it works, but takes gigabytes of disk",
            fix="install torch's build for CPUs, whose version ends in +cpu",
        ),
        "suites": Rule("ok", "suites", "{summary}", fix="{install}"),
        "tools": Rule("ok", "tools", "{summary}", fix="{install}"),
        # CPUs
        "cpus-ok": Rule("ok", "cpus", "all {total} CPUs of the machine may be used"),
        "cpus-one": Rule("ok", "cpus", "the machine has one CPU: more workers gain nothing here"),
        "cpus-quota": Rule(
            *("note", "cpus"),
            "the control group grants the time of {quota:g} of the machine's {total} CPUs: a "
            "process that takes more is halted until the next period",
            fix="Paceline counts on {usable}; for more, raise docker's --cpus, Kubernetes' "
            "limits.cpu or systemd's CPUQuota",
        ),
        "cpus-affinity": Rule(
            *("note", "cpus"),
            "{allowed} of the machine's {total} CPUs may be used: this process is bound by "
            "taskset, a batch system or a container",
            fix="ask for more CPUs where the process is started (taskset -c, docker's "
            "--cpuset-cpus)",
        ),
        "load-ok": Rule(
            "ok", "load", "the load of the last minute, {load:.1f}, leaves the usable CPUs idle"
        ),
        "load-high": Rule(
            *("problem", "load"),
            "the load of the last minute is {load:.1f} on {total} CPUs: runs share the CPUs with "
            "others, and measurements will be noisy",
            fix="see with top what is running; measure when the machine is idle",
        ),
        "bf16-ok": Rule("ok", "bf16", "the CPU computes in bf16 ({flags})"),
        "bf16-missing": Rule(
            *("note", "bf16"),
            "the CPU has no instructions for bf16: precision bf16 is not available here",
            fix="stay with precision fp32, the default",
        ),
        "frequency-powersave": Rule(
            *("note", "frequency"),
            "the governor powersave of {driver} keeps the CPU at its lowest frequency",
            fix="as root: cpupower frequency-set -g performance",
        ),
        "emulation": Rule(
            *("problem", "emulation"),
            "x86 code is translated for an ARM processor: everything takes several times as long",
            fix="use a Python, or a container image, that was built for arm64",
        ),
        # variables
        "threads-unset": Rule("ok", "threads", "no variable sets a number of threads"),
        "threads-one": Rule("ok", "threads", "{variables}: what Paceline sets for itself too"),
        "threads-many": Rule(
            *("note", "threads"),
            "set: {variables}. The paceline command replaces this by 1, and paceline.train uses "
            "its own option threads while it runs; other code in a Python program uses it",
            fix="leave it unset, and choose the learner's threads with --threads",
        ),
        "binding": Rule(
            *("problem", "binding"),
            "with {variables} torch binds the process that imports it to its first CPU or core, "
            "and all of a run's workers with it",
            fix="unset {names}",
        ),
        "binding-intel": Rule(
            *("note", "binding"),
            "{variables} is set: where torch was built with Intel's OpenMP, it binds the process "
            "that imports it, and all of a run's workers with it",
            fix="unset {names}",
        ),
        # memory
        "memory-ok": Rule("ok", "memory", "{free} of the {whole} {limit} are free"),
        "memory-workers": Rule(
            *("note", "memory"),
            "{free} of the {whole} {limit} are free: a learner and {workers} workers take about "
            "{needed}",
            fix="use fewer workers, or {more}",
        ),
        "memory-learner": Rule(
            *("problem", "memory"),
            "{free} of the {whole} {limit} are free: a learner takes about {needed}, and is killed "
            "where it finds less",
            fix="{more}",
        ),
        "swap-used": Rule(
            *("note", "swap"),
            "{used} of memory are swapped out to disk: what is needed again comes back slowly",
            fix=f"{FREE_MEMORY}, and start the run when swap is empty",
        ),
        "shm-ok": Rule("ok", "/dev/shm", "{free} of {total} are free"),
        "shm-missing": Rule(
            *("note", "/dev/shm"),
            f"there is no /dev/shm: Paceline does not use it, but {SHM_USERS}, and so do Python's "
            "own locks between processes, which an environment may use",
            fix="mount a tmpfs there",
        ),
        "shm-little": Rule(
            *("note", "/dev/shm"),
            "{free} of {total} are free: Paceline's workers and ranks do not use it (their memory "
            f"has no name), but {SHM_USERS}, and die of a bus error where it is full",
            fix="only if you use those: docker run --shm-size=1g, or empty it",
        ),
        # disks
        "disk-ok": Rule("ok", "disk", "{free} are free"),
        "disk-little": Rule(
            *("note", "disk", "only {free} are free: on a full disk a run can't be saved"),
            fix=f"make room, or {OTHER_PLACE}",
        ),
        "disk-gone": Rule(
            *("note", "disk", "the current directory is gone, and runs are kept in runs/ in it"),
            fix=f"change to another directory, or {OTHER_PLACE}",
        ),
        "disk-read-only": Rule(
            *("note", "disk"),
            "the current directory can't be written to, and runs are kept in runs/ in it",
            fix=f"change to another directory, or {OTHER_PLACE}",
        ),
        "temporary-ok": Rule("ok", "temporary", "{free} are free"),
        "temporary-little": Rule(
            *("note", "temporary"),
            "only {free} are free: torch and environments keep files there while they run",
            fix=f"make room, or {OTHER_TEMP}",
        ),
        "temporary-none": Rule(
            *("problem", "temporary"),
            "no directory for temporary files can be written to, and what needs one fails",
            fix=OTHER_TEMP,
        ),
        "cache-ok": Rule("ok", "cache", "compiled steps are kept in {folder}"),
        "cache-unusable": Rule(
            *("note", "cache"),
            "compiled steps can't be kept in {folder}, because {place} is not {lacks}: runs are "
            "not compiled",
            fix="set XDG_CACHE_HOME to a writable directory",
        ),
        # limits
        "files-ok": Rule("ok", "files", "a process may have {limit} files open"),
        "files-few": Rule(
            *("note", "files"),
            "a process may have only {limit} files open: the learner opens two for each worker, "
            "and environments open their own",
            fix="ulimit -n {enough}{first}",
        ),
        "processes-ok": Rule(
            "ok", "processes", "{left} processes and threads may be started, {limit}"
        ),
        "processes-few": Rule(
            *("note", "processes"),
            "only {left:,} processes and threads may be started, {limit}: a run takes two for each "
            "worker",
            fix="{more}, or use fewer workers",
        ),
    }
)
