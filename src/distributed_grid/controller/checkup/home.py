"""A look at `GRID_HOME` and the disk that it is on."""

import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from distributed_grid.controller.checkup.files import look_for_kept, look_for_secrets, owner_of
from distributed_grid.model.checkup_facts import HomeFacts, in_one_line
from distributed_grid.store.durable import json_of, text_of
from distributed_grid.store.home import GridHome


def look_at_home(home: GridHome) -> HomeFacts:
    """Nothing is created but, for a moment, one file in a home that is there."""
    path = home.path
    try:
        exists = path.exists()
        nearest = next(folder for folder in (path, *path.parents) if folder.exists())
        filesystem, mount_point = mounted_at(nearest.resolve(), _mounts())
        return HomeFacts(
            str(path),
            exists,
            error=_why_not_writable(path) if exists else _why_not_creatable(nearest),
            mode=stat.S_IMODE(path.stat().st_mode) if exists else 0o700,
            damaged=_damaged(home),
            filesystem=filesystem,
            mount_point=mount_point,
            free_bytes=shutil.disk_usage(nearest).free,
            owner=owner_of(nearest.stat()),
            secrets=look_for_secrets(home),
            kept=look_for_kept(home),
        )
    except OSError as error:
        return HomeFacts(str(path), False, in_one_line(error))


def _why_not_writable(folder: Path) -> str:
    """Writes, locks and syncs a file, which is all that the store does."""
    if not folder.is_dir():
        return "it is not a folder"
    trial = folder / f".doctor-{os.getpid()}"
    try:
        with trial.open("x") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write("trial")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    finally:
        with suppress(OSError):
            trial.unlink()
    return ""


def _why_not_creatable(nearest: Path) -> str:
    if not nearest.is_dir():
        return f"it cannot be created: {nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"it cannot be created: {nearest} is not writable"
    return ""


def embedded_address(home: GridHome) -> str:
    """Where the embedded cluster on record is; empty if there is none, or its record is damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _recorded_address(home)
    return ""


def _damaged(home: GridHome) -> tuple[str, ...]:
    try:
        _recorded_address(home)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (f"{home.cluster.name} cannot be read: {in_one_line(error)}",)
    return ()


def _recorded_address(home: GridHome) -> str:
    address = json_of(text_of(home.cluster))["ray_address"]
    if not isinstance(address, str):
        raise TypeError("ray_address is not text")
    return address


def _mounts() -> str:
    with suppress(OSError):
        return Path("/proc/self/mounts").read_text()
    return ""


def mounted_at(path: Path, mounts: str) -> tuple[str, str]:
    """The filesystem that a path is on and where that is mounted; the last mount hides those before it."""
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount_point = _unescaped(fields[1])
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best[1]):
            best = (fields[2], mount_point)
    return best


def _unescaped(mount_point: str) -> str:
    """Spaces and their like are written as octal numbers."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount_point = mount_point.replace(octal, character)
    return mount_point
