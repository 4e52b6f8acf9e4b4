"""What a process is, by its name, its command line and who started it."""

from collections.abc import Sequence
from typing import Final

from distributed_grid.model.offloading import Ancestor, ProcessFacts, ProcessKind

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
    """The first of these that fits."""
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
    """The process that this one works for, at the top of its family; None if it stands for itself.

    Whoever was started by init, a login or by somebody who typed it stands for itself, and so does one whose parent is
    another user's. All others were started by a program that counts on them.
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
    """A shell with neither a script nor `-c`: somebody sits in front of it."""
    return not any(part == "-c" or not part.startswith("-") for part in command[1:])


def _program(command: Sequence[str]) -> str:
    return _base(command[0]) if command else ""


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]
