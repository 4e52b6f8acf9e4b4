"""Facts about `GRID_HOME`: its disk, its secret files, and files that were set aside."""

import fcntl
import os
import pwd
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from distributed_grid.decide.leases.adoption import is_over
from distributed_grid.model.checkup_facts import HomeFacts, KeptFile, SecretFile, SecretKind, in_one_line
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.durable import record_of, text_in, text_of
from distributed_grid.store.home import GridHome
from distributed_grid.store.set_aside import SetAside

_BROKEN: Final = re.compile(r"(?P<kept_from>.+)\.broken-\d{8}T\d{6}Z(-\d+)?")
_TOKEN_BEGINS: Final = b"grid_"
_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_LONGEST: Final = 2**16
"""No key or token is longer."""


def look_for_secrets(home: GridHome) -> tuple[SecretFile, ...]:
    """Includes files that people put there: a key for TLS, a token that is to be handed to its user."""
    found = []
    for path, status in _files(home.path):
        if kind := _kind(path, home):
            found.append(SecretFile(path.name, kind, stat.S_IMODE(status.st_mode), owner_of(status)))
    return tuple(found)


def _kind(path: Path, home: GridHome) -> SecretKind | None:
    for known, kind in (
        (home.token, SecretKind.OWN_TOKEN),
        (home.tokens, SecretKind.USERS_TOKENS),
        (home.login, SecretKind.LOGIN),
    ):
        if path.name == known.name or path.name.startswith(f"{known.name}."):  # also what a crash or damage left
            return kind
    text = _beginning(path)
    if text.startswith(_TOKEN_BEGINS):
        return SecretKind.USER_TOKEN
    return SecretKind.TLS_KEY if _KEY.search(text) else None


def _beginning(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_LONGEST)
    return b""


def look_for_kept(home: GridHome, now: float | None = None) -> tuple[KeptFile, ...]:
    """Boosts of other clusters, and what was damaged. Nothing is changed."""
    now = time.time() if now is None else now
    of_others = SetAside(home.boosts).paths()
    return (
        *(
            _of_another_cluster(path, now - status.st_mtime, now)
            for path, status in _files(home.path)
            if path in of_others
        ),
        *(
            KeptFile(path.name, now - status.st_mtime, kept_from=broken["kept_from"])
            for path, status in _files(home.path)
            if (broken := _BROKEN.fullmatch(path.name))
        ),
    )


def _of_another_cluster(path: Path, age_s: float, now: float) -> KeptFile:
    seen = BoostFile(path).look()
    if seen.cluster is None:
        return KeptFile(path.name, age_s, kept_from="file with boosts of another cluster")
    live = [lease for lease in seen.leases if not is_over(lease, datetime.fromtimestamp(now, UTC))]
    return KeptFile(path.name, age_s, cluster=seen.cluster.name, boosts=len(live))


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files that can be read: files come and go while a controller runs."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def owner_of(status: os.stat_result) -> str:
    """By name where it has one."""
    try:
        return pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return str(status.st_uid)


def look_at_home(home: GridHome) -> HomeFacts:
    """Creates nothing but, for a moment, one file in an existing home."""
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
    return text_in(record_of(text_of(home.cluster)), "ray_address")


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
