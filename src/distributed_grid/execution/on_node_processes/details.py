"""The facts about one process that decide whether it can run on another node."""

import contextlib
import os
import re
import shutil
from typing import Final

from distributed_grid.execution.on_node_processes.proc import (
    RAY_NODE,
    Stat,
    command_of,
    environment_of,
    family_of,
    file_facts,
    link,
    read,
    tree,
    uid_of,
    uptime,
    user_name,
)

_MOST_FILES: Final = 200
_MOST_WALKED: Final = 8 * 2**30
_TERMINAL: Final = re.compile(r"/dev/(pts/\d+|tty\w*|console)")
_GPU: Final = re.compile(r"/dev/nvidia\d+")
_OF_THE_KERNEL: Final = ("/dev/", "/proc/", "/sys/", "/memfd:", "/anon_hugepage")
_DELETED: Final = " (deleted)"
_LONGEST_PATH: Final = 4096
_WRITABLE: Final = os.O_WRONLY | os.O_RDWR
_LISTEN, _UNCONNECTED = "0A", "07"
_UNIX_ACCEPTS: Final = 0x10000


def describe(
    stat: Stat,
    stats: dict[int, Stat],
    cores: dict[int, float],
    wanted: dict[int, float],
    mounts: dict[str, bool],
    texts: dict[str, str],
) -> dict[str, object] | None:
    """As plain data, by the names of `ProcessFacts`; None if it ended meanwhile.

    `cores`: what each process was seen to use; `wanted`: what it would use. `texts`: what was read already for other
    processes of the same look.
    """
    family = family_of(stat.pid, stats)
    holds_ray = stat.name not in RAY_NODE and any(below.name in RAY_NODE for below in tree(stat.pid, stats))
    command, cwd, uid = command_of(stat.pid), link(f"/proc/{stat.pid}/cwd"), uid_of(stat.pid)
    environment = environment_of(stat.pid)
    uses_ray = "/_raylet.so" in read(f"/proc/{stat.pid}/maps")
    # Such a process cannot move, so its memory and files are only estimated: reading all of them is slow.
    stays = uses_ray or holds_ray or stat.pid == 1 or stat.name in RAY_NODE
    opened = [one for member in ([stat] if stays else family) for one in _open_files(member.pid)]
    sockets = _sockets(stat.pid, {target for _, _, target, _ in opened if target.startswith("socket:")}, texts)
    program = _program(command, cwd, environment)
    if uid < 0:
        return None
    return {
        "pid": stat.pid,
        "created_at": stat.created_at,
        "name": stat.name,
        "command": command,
        "cwd": cwd,
        "uid": uid,
        "user": user_name(uid),
        "worker_uid": os.getuid(),
        "age_s": max(0.0, uptime() - stat.created_at),
        "cpu": sum(cores.get(member.pid, 0.0) for member in family),
        "cpu_wanted": sum(wanted.get(member.pid, 0.0) for member in family),
        "memory": _resident(family) if stays else _memory(family, texts),
        "gpus": len({target for _, _, target, _ in opened if _GPU.fullmatch(target)}),
        "pids": [member.pid for member in family],
        "state": stat.state,
        "can_be_started": program is not None,
        "terminal": next(
            (target for pid, _, target, _ in opened if pid == stat.pid and _TERMINAL.fullmatch(target)), None
        ),
        "streams": [_stream(stat.pid, number) for number in range(3)],
        "listening": sockets[0],
        "established": sockets[1],
        "files": _files(stat.pid, opened, command, cwd, program, mounts),
        "ancestors": _ancestors(stat, stats),
        "children": len(family) - 1,
        "uses_ray": uses_ray,
        "holds_ray": holds_ray,
        "service": _service(stat.pid),
        "environment": sorted(environment),
    }


def _resident(family: list[Stat]) -> int:
    return sum(member.memory for member in family)


def _read_once(path: str, texts: dict[str, str], key: str = "") -> str:
    """A file that the kernel generates anew, at some cost, for every reader."""
    if (key or path) not in texts:
        texts[key or path] = read(path)
    return texts[key or path]


def _memory(family: list[Stat], texts: dict[str, str]) -> int:
    """Pages shared by forks count once: the kernel knows each one's share, but walks all pages to compute it."""
    resident = _resident(family)
    if len(family) == 1 or resident > _MOST_WALKED:
        return resident
    rollups = [_read_once(f"/proc/{one.pid}/smaps_rollup", texts) for one in family]
    parts = [re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE) for text in rollups]
    return sum(int(part[1]) * 1024 if part else one.memory for part, one in zip(parts, family, strict=True))


def _open_files(pid: int) -> list[tuple[int, int, str, bool]]:
    """For each open file: process, descriptor, target, and whether it is writable."""
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            target = link(f"/proc/{pid}/fd/{number}")
            flags = re.search(r"^flags:\s+([0-7]+)", read(f"/proc/{pid}/fdinfo/{number}"), re.MULTILINE)
            if target:
                found.append((pid, int(number), target, bool(flags and int(flags[1], 8) & _WRITABLE)))
    return found


def _stream(pid: int, number: int) -> dict[str, str]:
    target = link(f"/proc/{pid}/fd/{number}")
    if target.startswith("pipe:"):
        return {"kind": "pipe", "path": ""}
    if target.startswith("socket:"):
        return {"kind": "socket", "path": ""}
    if _TERMINAL.fullmatch(target):
        return {"kind": "terminal", "path": target}
    if not target.startswith("/") or target.startswith(_OF_THE_KERNEL) or target.endswith(_DELETED):
        return {"kind": "nothing", "path": ""}
    return {"kind": "file", "path": target}


def _files(
    root: int,
    opened: list[tuple[int, int, str, bool]],
    command: list[str],
    cwd: str,
    program: str | None,
    mounts: dict[str, bool],
) -> list[dict[str, object]]:
    """Every file that must exist on the other node, with the role that it plays."""
    outputs = {target for pid, number, target, is_written in opened if pid == root and number in (1, 2) and is_written}
    roles: dict[str, str] = {}
    for path in _named(command, cwd):
        roles[path] = "named by its command"
    for pid, number, target, is_written in opened:
        if not target.startswith("/") or target.startswith(_OF_THE_KERNEL) or target.endswith(_DELETED):
            continue
        if target in outputs:
            roles[target] = "its output"
        elif is_written:
            roles[target] = "written by it"
        elif pid == root and number == 0:
            roles[target] = "its input"
        else:
            roles.setdefault(target, "read by it")
    if cwd:
        roles[cwd] = "its working directory"
    if program is not None:
        roles[program] = "its program"
    found = [(file_facts(path, mounts), role) for path, role in list(roles.items())[-_MOST_FILES:]]
    kept = ("path", "size", "inode", "is_network")
    return [{key: facts[key] for key in kept} | {"role": role} for facts, role in found if facts is not None]


def _named(command: list[str], cwd: str) -> list[str]:
    """The existing files that its arguments name, including `--option=file`."""
    parts = [part for argument in command[1:] for part in (argument, argument.partition("=")[2]) if part]
    paths = [os.path.join(cwd, part) for part in parts if len(part) < _LONGEST_PATH and "\n" not in part]
    return [os.path.normpath(path) for path in paths if os.path.exists(path)]


def _program(command: list[str], cwd: str, environment: dict[str, str]) -> str | None:
    """The file that its command line names; None where a process has written something else over it."""
    if not command or not command[0]:
        return None
    name = command[0]
    path = os.path.join(cwd, name) if "/" in name else shutil.which(name, path=environment.get("PATH", os.defpath))
    if path is None or not os.path.isfile(path) or not os.access(path, os.X_OK):
        return None
    return os.path.normpath(path)


def _ancestors(stat: Stat, stats: dict[int, Stat]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    seen = {stat.pid}
    while (parent := stats.get(stat.parent)) is not None and parent.pid not in seen:
        seen.add(parent.pid)
        command = command_of(parent.pid)[:8]
        found.append({"pid": parent.pid, "name": parent.name, "command": command, "uid": uid_of(parent.pid)})
        stat = parent
    return found


def _service(pid: int) -> str | None:
    """The unit of a service, not of a user's session."""
    for line in read(f"/proc/{pid}/cgroup").splitlines():
        last = line.rpartition("/")[2]
        if last.endswith(".service") and not last.startswith("user@"):
            return last
    return None


def _sockets(pid: int, opened: set[str], texts: dict[str, str]) -> tuple[int, int]:
    """How many of these sockets listen, and how many are connected to other programs.

    A pair of nameless Unix sockets is how a program talks to its own children, and is not counted. All processes of a
    network namespace have the same tables.
    """
    inodes = {target[len("socket:[") : -1] for target in opened}
    if not inodes:
        return 0, 0
    listening = established = 0
    network = link(f"/proc/{pid}/ns/net") or str(pid)

    def table(kind: str) -> list[str]:
        return _read_once(f"/proc/{pid}/net/{kind}", texts, f"{network} {kind}").splitlines()[1:]

    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in table(kind):
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if inode not in inodes:
                continue
            if state == _UNCONNECTED:
                listening += kind.startswith("udp") and not local.endswith(":0000")
            elif state == _LISTEN:
                listening += 1
            else:
                established += 1
    for line in table("unix"):
        fields = line.split()
        if fields[6] in inodes and int(fields[3], 16) & _UNIX_ACCEPTS:
            listening += 1
    return listening, established
