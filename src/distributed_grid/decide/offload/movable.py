"""Whether a process can run on another node: what it is, whose it is, and every obstacle with its reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.offload import (
    Ancestor,
    Elsewhere,
    FileFacts,
    FileRole,
    FileThere,
    Obstacle,
    ObstacleCode,
    ProcessFacts,
    ProcessKind,
    Stream,
    StreamKind,
)
from distributed_grid.model.snapshots import GpuReading

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "tcsh", "csh"})
_LAUNCHERS: Final = frozenset(
    {"init", "systemd", "sshd", "sshd-session", "login", "cron", "crond", "atd", "tmux", "screen", "su", "sudo"}
    | {"tini", "dumb-init", "docker-init", "containerd-shim", "gnome-terminal-", "konsole", "xterm", "code"}
)
_BUILDS: Final = frozenset(
    {"make", "ninja", "cmake", "bazel", "cargo", "rustc", "gcc", "g++", "cc1", "cc1plus", "clang", "clang++"}
    | {"nvcc", "cicc", "ld", "mvn", "gradle", "go", "scons", "meson"}
)
_RAY_FILES: Final = ("/ray/core/src/ray/", "/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/_private/")
_GRID_FILES: Final = ("distributed_grid", "grid-keeper")


def kind_of_process(facts: ProcessFacts) -> ProcessKind:
    """The first kind that fits."""
    family = [(facts.name, facts.command), *((one.name, one.command) for one in facts.ancestors)]
    if facts.is_child_of_ray or _is_ray(facts.name, facts.command):
        return ProcessKind.RAY
    if any(_is_grid(command) for _, command in family):
        return ProcessKind.GRID
    if facts.service is not None:
        return ProcessKind.SERVICE
    if _is_launcher(facts.pid, facts.name, facts.command):
        return ProcessKind.LAUNCHER
    if facts.uses_ray:
        return ProcessKind.RAY_DRIVER
    if facts.name.startswith("python") or _program(facts.command).startswith("python"):
        return ProcessKind.PYTHON
    if facts.name in _SHELLS:
        return ProcessKind.SHELL
    return ProcessKind.BUILD if facts.name in _BUILDS else ProcessKind.OTHER


def part_of(facts: ProcessFacts) -> Ancestor | None:
    """The process at the top of the family that this one belongs to; None if it stands on its own.

    A process stands on its own if init, a login or an interactive shell started it, or if its parent belongs to another
    user. Every other process was started by a program that relies on it.
    """
    top: Ancestor | None = None
    for one in facts.ancestors:
        if one.uid != facts.uid or _is_launcher(one.pid, one.name, one.command):
            break
        top = one
    return top


def _is_ray(name: str, command: Sequence[str]) -> bool:
    return (
        name in ("raylet", "gcs_server")
        or name.startswith("ray::")
        or any(part.startswith("ray::") or any(file in part for file in _RAY_FILES) for part in command[:3])
        or (_program(command) == "ray" or [_base(part) for part in command[1:2]] == ["ray"])
    )


def _is_grid(command: Sequence[str]) -> bool:
    if any(file in part for part in command[:6] for file in _GRID_FILES):
        return True
    return "grid" in (_program(command), *(_base(part) for part in command[1:2]))


def _is_launcher(pid: int, name: str, command: Sequence[str]) -> bool:
    return pid <= 1 or name in _LAUNCHERS or (name in _SHELLS and _is_typed_into(command))


def _is_typed_into(command: Sequence[str]) -> bool:
    """Whether a shell is interactive: it has neither a script nor `-c`."""
    return not any(part == "-c" or not part.startswith("-") for part in command[1:])


def _program(command: Sequence[str]) -> str:
    return _base(command[0]) if command else ""


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def speakers(nodes: NodeTable) -> frozenset[NodeName]:
    """One node for each machine, to which processes outside every raylet are attributed.

    It is the head if the head runs on that machine, otherwise the first node by name. On an embedded cluster, where all
    nodes share one machine, what people run beside Ray therefore counts as the head's. Every other node has what its
    own raylet started.
    """
    found: dict[tuple[str, str], NodeName] = {}
    for node in sorted(nodes.alive, key=lambda one: (not one.is_head, one.name)):
        found.setdefault((node.host, node.ip), node.name)
    return frozenset(found.values())


def with_gpus(facts: ProcessFacts, devices: Sequence[GpuReading]) -> ProcessFacts:
    """Add GPU use as the driver reports it per process. If the driver reports none, the open devices count."""
    reporting = [device for device in devices if device.processes is not None]
    if not reporting:
        return facts
    used = [device for device in reporting if any(one.pid in facts.family for one in device.processes or ())]
    memory = [one.memory_bytes for device in used for one in device.processes or () if one.pid in facts.family]
    busy = [device.utilisation for device in used if device.utilisation is not None]
    return replace(
        facts,
        gpus=len(used),
        gpu_memory=None if None in memory else sum(part for part in memory if part is not None),
        gpu_utilisation=max(busy, default=None),
    )


_RUNNING: Final = "RSDI"
_STREAMS: Final = ("input", "output", "error output")
_SHOWN: Final = 3


def obstacles_here(facts: ProcessFacts) -> tuple[Obstacle, ...]:
    """The obstacles to moving the process to any node."""
    found = tuple(_of_its_kind(facts))
    # For processes of Ray, grid and the system, the other obstacles do not matter.
    return found or (*_of_its_family(facts), *_of_what_it_is(facts), *_of_its_connections(facts))


def obstacles_there(facts: ProcessFacts, there: Elsewhere) -> tuple[Obstacle, ...]:
    """The obstacles to moving the process to one other node."""
    if there.uid != facts.uid or there.user != facts.user:
        yours, theirs = f"{facts.user} ({facts.uid})", f"{there.user} ({there.uid})"
        detail = f"{there.node} runs work as user {theirs}, and it belongs to {yours}"
        return (Obstacle(ObstacleCode.NO_SUCH_USER, detail),)
    missing, different = [], []
    for file in facts.files:
        if file.role is FileRole.OUTPUT:
            continue
        found = there.files.get(file.path)
        if found is None:
            missing.append(file)
        elif not is_as_good(facts, file, there, found):
            different.append(file)
    obstacles = []
    if missing:
        obstacles.append(Obstacle(ObstacleCode.FILES_MISSING, f"{there.node} does not have {_listed(missing)}"))
    if different:
        obstacles.append(Obstacle(ObstacleCode.FILES_DIFFER, f"{there.node} has a different {_listed(different)}"))
    return tuple(obstacles)


def continues(facts: ProcessFacts, stream: Stream, there: Elsewhere) -> bool:
    """Whether the process can go on writing the stream to the same file on the other node."""
    if stream.kind is not StreamKind.FILE:
        return False
    files = [file for file in facts.files_of(FileRole.OUTPUT) if file.path == stream.path]
    found = there.files.get(stream.path)
    return bool(files) and found is not None and found.may_write and _is_the_same(facts, files[0], there, found)


def is_as_good(facts: ProcessFacts, file: FileFacts, there: Elsewhere, found: FileThere) -> bool:
    """Whether the file under the same path on the other node can replace the one here.

    A program only has to be executable: two installations are seldom identical. A file that is read must have the same
    size. A file that is written must be the very same file, or its content would be left behind.
    """
    if file.role is FileRole.PROGRAM:
        return found.may_execute and not found.is_folder
    if file.role is FileRole.FOLDER:
        return found.is_folder
    if file.role is FileRole.WRITTEN:
        return found.may_write and _is_the_same(facts, file, there, found)
    return found.is_folder or file.size == found.size or _is_the_same(facts, file, there, found)


def _is_the_same(facts: ProcessFacts, file: FileFacts, there: Elsewhere, found: FileThere) -> bool:
    """Whether both are one file: a shared file system shows the same inode on every machine."""
    if facts.machine == there.machine:
        return file.inode == found.inode
    return file.inode == found.inode and file.is_network and found.is_network


def _of_its_kind(facts: ProcessFacts) -> Iterator[Obstacle]:
    kind = kind_of_process(facts)
    match kind:
        case ProcessKind.RAY:
            yield Obstacle(ObstacleCode.RAYS_OWN, "it belongs to Ray: only Ray can move a task or an actor")
        case ProcessKind.GRID:
            yield Obstacle(ObstacleCode.GRIDS_OWN, "it belongs to grid")
        case ProcessKind.SERVICE:
            yield Obstacle(ObstacleCode.SERVICE, f"it is a service of its machine ({facts.service})")
        case ProcessKind.LAUNCHER:
            yield Obstacle(ObstacleCode.LAUNCHER, "other processes depend on it: it is a login, a shell, or init")
        case ProcessKind.RAY_DRIVER:
            detail = "it is a Ray driver: its work already runs in Ray; to run it in a lease, start it with grid run"
            yield Obstacle(ObstacleCode.RAY_DRIVER, detail)
        case _:
            pass
    if facts.holds_ray and kind is not ProcessKind.RAY:
        yield Obstacle(ObstacleCode.RAYS_OWN, "it is the parent of Ray nodes, which would end with it")
    if facts.uid != facts.worker_uid:
        detail = f"it belongs to {facts.user} ({facts.uid}), and Ray runs work as user {facts.worker_uid} there"
        yield Obstacle(ObstacleCode.OTHER_USER, detail)


def _of_its_family(facts: ProcessFacts) -> Iterator[Obstacle]:
    if (whole := part_of(facts)) is not None:
        detail = f"it is part of process {whole.pid} ({whole.name}); move that one, with all that it started"
        yield Obstacle(ObstacleCode.PART_OF_ANOTHER, detail)


def _of_what_it_is(facts: ProcessFacts) -> Iterator[Obstacle]:
    if not facts.command or not facts.can_be_started:
        detail = "it has no command line" if not facts.command else "its command line names no existing program"
        yield Obstacle(ObstacleCode.NO_COMMAND, f"{detail}, so it cannot be started again")
    if facts.state not in _RUNNING:
        what = {"Z": "it has ended", "T": "it is stopped", "t": "it is being debugged"}.get(facts.state, "it is ending")
        yield Obstacle(ObstacleCode.NOT_RUNNING, what)
    if facts.has_terminal:
        detail = f"it uses the terminal {facts.terminal}; without one: nohup COMMAND < /dev/null > LOG 2>&1 &"
        yield Obstacle(ObstacleCode.TERMINAL, detail)


def _of_its_connections(facts: ProcessFacts) -> Iterator[Obstacle]:
    for name, stream in zip(_STREAMS, facts.streams, strict=True):
        if stream.kind in (StreamKind.PIPE, StreamKind.SOCKET):
            yield Obstacle(ObstacleCode.PIPE, f"its {name} is a {stream.kind} to another process")
    if facts.listening or facts.established:
        parts = [
            *([f"{facts.listening} on which it listens"] if facts.listening else []),
            *([f"{facts.established} connected"] if facts.established else []),
        ]
        yield Obstacle(ObstacleCode.SOCKETS, f"it has sockets in use: {', '.join(parts)}")


def _listed(files: Iterable[FileFacts]) -> str:
    names = [f"{file.path} ({file.role})" for file in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
