"""`listeners`: the sockets that each command listens on, and whether another user gets through."""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from .harness import QUICK, Case, Kept, Trial, words

SHORT = "--compile off --track none"
COMMANDS = {
    "train": f"train {QUICK}",
    "train --num-workers 2": f"train {QUICK} --num-workers 2 --total-iters 60",
    "train --ranks 2": f"train {QUICK} --ranks 2 --total-iters 60",
    "train --algo ddppo": f"train {QUICK} --algo ddppo --ranks 2 --total-iters 60",
    "train --ranks 2 --backend gloo": f"train {QUICK} --ranks 2 --backend gloo --total-iters 60",
    "train --algo a3c": f"train {QUICK} --algo a3c --num-workers 2 --total-iters 2000",
    "train --algo impala": f"train {QUICK} --algo impala --num-workers 2 --total-iters 200",
    "train --compile on": f"train {QUICK} --compile on",
    "train --ranks 2, workers": f"train {QUICK} --ranks 2 --num-workers 2 --total-iters 60",
    "scale": f"scale --ranks 1,2 --repeats 1 --iters 30 --output-dir s {SHORT}",
    "bench": "bench --algos ppo,a3c --modes parallel,ranks --seeds 1 --total-steps 20000 "
    f"--output-dir b {SHORT}",
    "tune": f"tune --time 25s --output t.yaml {SHORT}",
    "check": "check CartPole-v1 --seconds 1",
    "eval": "eval run --episodes 300",
    "compare": "compare run run --output-dir c",
    "doctor": "doctor",
}
LISTEN = "0A"
"""State of a TCP socket in /proc/net/tcp."""
NOBODY = 65534


def measure(options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    with tempfile.TemporaryDirectory(prefix="faults-kept-") as folder:
        kept = Kept(Path(folder))
        for name, args in COMMANDS.items():
            if not options.only or options.only in name:
                run = "serial:done" if name in ("eval", "compare") else ""
                rows[name] = _watched(Trial("listeners", name, args, run=run), kept)
                _show(name, rows[name])
    outside = [name for name, row in rows.items() if row["outside_loopback"]]
    reached = [name for name, row in rows.items() if row["another_user_wrote"]]
    print(f"{len(rows)} commands: {len(outside)} listen outside loopback: {', '.join(outside)}")
    print(f"another user gets through: {', '.join(reached) or 'nowhere'}")
    return {"commands": rows, "failures": outside, "another_user_gets_through": reached}


def _show(name: str, row: dict[str, Any]) -> None:
    parts = [
        f"{key}: {', '.join(row[key]) or '–'}"
        for key in ("outside_loopback", "loopback", "unix", "another_user_wrote")
    ]
    print(f"{name} ({row['samples']} samples, exit code {row['exit_code']})", flush=True)
    for part in parts:
        print(f"  {part}", flush=True)


def _watched(trial: Trial, kept: Kept) -> dict[str, Any]:
    """Run a command, and look at all its processes several times a second."""
    import shutil

    found: dict[str, dict[str, Any]] = {}
    samples = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        case = Case(trial, Path(folder), kept)
        if trial.run:
            shutil.copytree(kept.of("serial") / "whole", case.run, symlinks=True)
        case.start()
        deadline = time.monotonic() + 180
        while case.process.poll() is None and time.monotonic() < deadline:
            for one in _listening(case):
                if one["name"] not in found:
                    found[one["name"]] = one | {"other_user": _tried(one)}
            samples += 1
            time.sleep(0.1)
        code = case.process.poll()
        case.clean()
        if code is None:
            raise words(f"{trial.name} did not end")
    named = sorted(found.values(), key=lambda one: one["name"])
    return {
        "samples": samples,
        "exit_code": code,
        "outside_loopback": [_told(o) for o in named if o["kind"] == "outside"],
        "loopback": [_told(o) for o in named if o["kind"] == "loopback"],
        "unix": [_told(o) for o in named if o["kind"] == "unix"],
        "another_user_wrote": [_told(o) for o in named if o["other_user"] == "wrote"],
        "another_user": {one["name"]: one["other_user"] for one in named},
    }


def _told(one: dict[str, Any]) -> str:
    return f"{one['protocol']} {one['name']} ({one['process']})"


def _listening(case: Case) -> list[dict[str, Any]]:
    """Listening sockets of the processes of a case; datagram sockets count when bound."""
    owners: dict[str, psutil.Process] = {}
    try:
        tree = [case.process, *case.process.children(recursive=True)]
    except psutil.Error:
        return []
    for process in tree:
        for fd in _descriptors(process.pid):
            if fd.startswith("socket:["):
                owners[fd[8:-1]] = process
    return [
        one | {"process": _role(owners[inode])}
        for inode, one in _table(case.process.pid).items()
        if inode in owners
    ]


def _descriptors(pid: int) -> list[str]:
    found = []
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found.append(str(Path(entry.path).readlink()))
            except OSError:
                continue
    except OSError:
        pass
    return found


def _role(process: psutil.Process) -> str:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
    roles = {
        "paceline.ranks.elastic": "agent",
        "paceline.ranks.rank": "rank",
        "forkserver": "forkserver",
        "-m paceline": "command",
    }
    return next((role for word, role in roles.items() if word in line), line[:60])


def _table(pid: int) -> dict[str, dict[str, Any]]:
    """inode → what listens there."""
    found: dict[str, dict[str, Any]] = {}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in _lines(pid, protocol):
            fields = line.split()
            address, port = fields[1].split(":")
            bound = fields[3] == LISTEN if protocol.startswith("tcp") else fields[3] == "07"
            if bound and int(port, 16):
                host = _host(address)
                kind = "loopback" if _is_loopback(host) else "outside"
                name = f"{host}:{int(port, 16)}"
                found[fields[9]] = {"protocol": protocol, "name": name, "kind": kind}
    for line in _lines(pid, "unix"):
        fields = line.split()
        listens = int(fields[3], 16) & 0x10000  # __SO_ACCEPTCON
        if listens or (fields[4] == "0002" and len(fields) > 7):
            name = fields[7] if len(fields) > 7 else "(no name)"
            found[fields[6]] = {"protocol": "unix", "name": name, "kind": "unix"}
    return found


def _lines(pid: int, name: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    except OSError:
        return []


def _host(digits: str) -> str:
    raw = bytes.fromhex(digits)
    words_ = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words_))


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _tried(one: dict[str, Any]) -> str:
    """What comes of it when another user connects and writes: refused, connected or wrote."""
    if os.geteuid() != 0:
        return "not tried: only root can become another user"
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, _write_to(one).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(pid, 0)
    return said or "failed"


def _write_to(one: dict[str, Any]) -> str:
    try:
        if one["protocol"] == "unix":
            name = one["name"]
            address: Any = "\0" + name[1:] if name.startswith("@") else name
            family = socket.AF_UNIX
        else:
            host, _, port = one["name"].rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
            address = (host, int(port))
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = socket.SOCK_DGRAM if one["protocol"].startswith("udp") else socket.SOCK_STREAM
        with socket.socket(family, kind) as line:
            line.settimeout(2.0)
            line.connect(address)
            try:
                line.sendall(b"GET / HTTP/1.0\r\n\r\n")
                line.settimeout(0.5)
                line.recv(64)
            except TimeoutError:
                return "wrote"
            except OSError as error:
                return f"connected, then {error.strerror}"
            return "wrote"
    except OSError as error:
        return f"refused: {error.strerror or error}"
