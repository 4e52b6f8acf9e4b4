"""A look at the files in `GRID_HOME` that are secret, or that were kept aside."""

import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from distributed_grid.decide.takeover import is_over
from distributed_grid.model.checkup_facts import KeptFile, SecretFile, SecretKind
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.home import GridHome
from distributed_grid.store.set_aside import SetAside

_BROKEN: Final = re.compile(r"(?P<kept_from>.+)\.broken-\d{8}T\d{6}Z(-\d+)?")
_TOKEN_BEGINS: Final = b"grid_"
_KEY: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_LONGEST: Final = 2**16
"""No key or token is longer."""


def look_for_secrets(home: GridHome) -> tuple[SecretFile, ...]:
    """Also what people put there themselves: a key for TLS, a token that is on its way to its user."""
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
    """Those that are there and can be looked at: files come and go while a controller is at work."""
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
