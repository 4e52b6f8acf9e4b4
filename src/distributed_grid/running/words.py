"""What the words behind `grid run --` mean: a Python script, a module, or any command."""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributed_grid.errors import InvalidRequest


def command_of(words: Sequence[str], environ: Mapping[str, str], own_python: str) -> list[str]:
    """`script.py args`, `-m module args` and `-c code` are Python's; anything else is a command."""
    if not words:
        raise InvalidRequest(
            "There is nothing to run",
            try_next="grid run --cpus 4 -- script.py args... (or -m module, or any command)",
        )
    first = words[0]
    if first in ("-m", "-c"):
        if len(words) == 1:
            raise InvalidRequest(f"{first} needs a word behind it")
        return [python(environ, own_python), *words]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise InvalidRequest(f"There is no script {first!r} here", because=[f"looked in {Path.cwd()}"])
        return [python(environ, own_python), *words]
    _check_command(first, environ)
    return list(words)


def _check_command(first: str, environ: Mapping[str, str]) -> None:
    if first.startswith("-"):
        raise InvalidRequest(f"grid run has no option {first!r}", try_next="See all of them: grid run --help")
    if shutil.which(first, path=environ.get("PATH")) is not None:
        return
    if Path(first).is_file():
        raise InvalidRequest(f"{first!r} cannot be executed", try_next=f"chmod +x {first}, or: bash {first}")
    if " " in first:
        raise InvalidRequest(
            f"There is no command {first!r}",
            because=["it is one word, spaces and all"],
            try_next=f"Leave out the quotes, or let a shell read it: grid run -- sh -c {shlex.quote(first)}",
        )
    raise InvalidRequest(f"There is no command {first!r}", because=["looked in PATH"] if "/" not in first else [])


def python(environ: Mapping[str, str], own_python: str) -> str:
    """That of the environment which the user has activated; else the one that grid runs with."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        found = Path(environ[name]) / "bin" / "python" if environ.get(name) else None
        if found is not None and os.access(found, os.X_OK):
            return str(found)
    return own_python


def label_of(words: Sequence[str]) -> str:
    """What is shown to others: never the arguments, in which there may be secrets."""
    if words[0] == "-m":
        return f"-m {words[1]}"
    return "-c ..." if words[0] == "-c" else Path(words[0]).name
