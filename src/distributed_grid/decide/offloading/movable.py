"""Can this process run on another node: everything that is in the way, each with its reason."""

from collections.abc import Iterable, Iterator
from typing import Final

from distributed_grid.decide.offloading.kinds import kind_of_process, part_of
from distributed_grid.model.offloading import (
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

_RUNNING: Final = "RSDI"
_STREAMS: Final = ("input", "output", "error output")
_SHOWN: Final = 3


def obstacles_here(facts: ProcessFacts) -> tuple[Obstacle, ...]:
    """What keeps it where it is, wherever it would go."""
    found = tuple(_of_its_kind(facts))
    # Of Ray's, grid's and the system's own processes nobody need know what else is in the way.
    return found or (*_of_its_family(facts), *_of_what_it_is(facts), *_of_its_connections(facts))


def obstacles_there(facts: ProcessFacts, there: Elsewhere) -> tuple[Obstacle, ...]:
    """What keeps it from one other node."""
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
    told = []
    if missing:
        told.append(Obstacle(ObstacleCode.FILES_MISSING, f"{there.node} does not have {_listed(missing)}"))
    if different:
        told.append(Obstacle(ObstacleCode.FILES_DIFFER, f"{there.node} has another {_listed(different)}"))
    return tuple(told)


def continues(facts: ProcessFacts, stream: Stream, there: Elsewhere) -> bool:
    """Whether what it writes to a stream can go on in the same file on the other node."""
    if stream.kind is not StreamKind.FILE:
        return False
    files = [file for file in facts.files_of(FileRole.OUTPUT) if file.path == stream.path]
    found = there.files.get(stream.path)
    return bool(files) and found is not None and found.may_write and _is_the_same(facts, files[0], there, found)


def is_as_good(facts: ProcessFacts, file: FileFacts, there: Elsewhere, found: FileThere) -> bool:
    """Whether what is there under the same path serves as well as the file here.

    A program has only to be one: the same is seldom installed in the same way twice. What is read must be as long. What
    is written must be the very same file, or its content would be left behind.
    """
    if file.role is FileRole.PROGRAM:
        return found.may_execute and not found.is_folder
    if file.role is FileRole.FOLDER:
        return found.is_folder
    if file.role is FileRole.WRITTEN:
        return found.may_write and _is_the_same(facts, file, there, found)
    return found.is_folder or file.size == found.size or _is_the_same(facts, file, there, found)


def _is_the_same(facts: ProcessFacts, file: FileFacts, there: Elsewhere, found: FileThere) -> bool:
    """A shared file system shows a file under the same number everywhere."""
    if facts.machine == there.machine:
        return file.inode == found.inode
    return file.inode == found.inode and file.is_network and found.is_network


def _of_its_kind(facts: ProcessFacts) -> Iterator[Obstacle]:
    match kind_of_process(facts):
        case ProcessKind.RAY:
            yield Obstacle(ObstacleCode.RAYS_OWN, "it belongs to Ray: a task or actor is moved by Ray alone")
        case ProcessKind.GRID:
            yield Obstacle(ObstacleCode.GRIDS_OWN, "it belongs to grid")
        case ProcessKind.SERVICE:
            yield Obstacle(ObstacleCode.SERVICE, f"it is a service of its machine ({facts.service})")
        case ProcessKind.LAUNCHER:
            yield Obstacle(ObstacleCode.LAUNCHER, "others run because of it: a login, a shell, or init")
        case ProcessKind.RAY_DRIVER:
            detail = "it is a Ray driver: its work can run elsewhere, it need not; start it with grid run"
            yield Obstacle(ObstacleCode.RAY_DRIVER, detail)
        case _:
            pass
    if facts.uid != facts.worker_uid:
        detail = f"it belongs to {facts.user} ({facts.uid}), and Ray runs work as user {facts.worker_uid} there"
        yield Obstacle(ObstacleCode.OTHER_USER, detail)


def _of_its_family(facts: ProcessFacts) -> Iterator[Obstacle]:
    if (whole := part_of(facts)) is not None:
        detail = f"it is part of process {whole.pid} ({whole.name}): that one can move with all that it started"
        yield Obstacle(ObstacleCode.PART_OF_ANOTHER, detail)


def _of_what_it_is(facts: ProcessFacts) -> Iterator[Obstacle]:
    if not facts.command or not facts.can_be_started:
        detail = "it has no command line" if not facts.command else "its command line names no program that is there"
        yield Obstacle(ObstacleCode.NO_COMMAND, f"{detail}, so nobody knows how to start it again")
    if facts.state not in _RUNNING:
        what = {"Z": "it has ended", "T": "it is stopped", "t": "a debugger holds it"}.get(facts.state, "it is ending")
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
    told = [f"{file.path} ({file.role})" for file in files]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return ", ".join(told[:_SHOWN]) + more
