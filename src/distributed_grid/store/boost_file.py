"""The boost file: all leases of one cluster, and which cluster they belong to.

A crash at any moment leaves a good file. Changes since it was written are in the changes file beside it, and what is
loaded is both together.

    {
      "version": 1,
      "cluster": {"name": "lab", "nodes": ["gpu-master", "gpu1"]},
      "changes": "...",          the mark of this version, which lines of the changes file name
      "boosts": [
        {
          "id": "...",
          ...
        }
      ],
      "checksum": "sha256:..."
    }

The checksum covers the file's own bytes up to the comma before it, so checking needs no canonical form.
"""

import errno
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from distributed_grid.errors import StoreBroken
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.store.changes_file import ChangesFile, changes_of, new_mark
from distributed_grid.store.durable import (
    bytes_of,
    holds,
    json_of,
    keep_as,
    name_aside,
    rename_over,
    stamp,
    sync_folder,
    write_durably,
)
from distributed_grid.store.lease_codec import decode_lease, encode_lease


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """A cluster by its configured names, since Ray's own session id changes with every restart."""

    name: str
    nodes: frozenset[NodeName]

    def same_cluster(self, other: "ClusterIdentity") -> bool:
        """Same name and at least one node in common: nodes come and go, but not all of them at once."""
        return self.name == other.name and not self.nodes.isdisjoint(other.nodes)


def encode_identity(identity: ClusterIdentity) -> dict[str, object]:
    return {"name": identity.name, "nodes": sorted(identity.nodes)}


def decode_identity(data: object) -> ClusterIdentity:
    """The reverse of `encode_identity`; a `ValueError` says what is wrong."""
    if not isinstance(data, Mapping):
        raise ValueError(f"the cluster must be an object, not {data!r}")
    name, nodes = data.get("name"), data.get("nodes")
    if not isinstance(name, str):
        raise ValueError(f"the cluster's name must be text, not {name!r}")
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise ValueError(f"the cluster's nodes must be a list of names, not {nodes!r}")
    return ClusterIdentity(name, frozenset(nodes))


VERSION: Final = 1

# JSON text has no raw line break inside a string, so this can only be the key at the end of the file.
_BEFORE_CHECKSUM: Final = b',\n  "checksum": '


@dataclass(frozen=True, slots=True)
class Loaded:
    """The content of the file. `problems` are for people; if there are none, the file was good or missing."""

    leases: tuple[Lease, ...]
    cluster: ClusterIdentity | None
    problems: tuple[str, ...]
    came_from: Literal["file", "previous", "nothing"]
    mark: str | None = field(default=None, compare=False)
    """The version's mark, without the changes that continue it."""


class BoostFile:
    """One writer's view of the file; the process that saves holds the `WriterLock`.

    The file before the last save stays beside it as `.previous`. An unreadable file is kept as `.broken-<time>` when
    the next save replaces it: loading writes nothing. One thread may save while others call the query methods.
    """

    def __init__(self, path: Path, *, appends: bool = False) -> None:
        """`appends`: quick saves are allowed; they append to a changes file."""
        self.path = path
        self._appends = appends
        self._changes = ChangesFile(path)
        self._version: tuple[tuple[int, int, int] | None, ClusterIdentity | None] = (None, None)
        """The file as it was last saved, by its stamp, and the cluster in it: what the changes file continues."""
        self.previous = path.with_name(path.name + ".previous")
        self._new = path.with_name(path.name + ".new")
        self._entries: dict[str, tuple[Lease, bytes]] = {}
        self._saved = b""
        """The end of the file, with its checksum, as it was last saved or loaded."""
        self._mark: str | None = None
        """The mark of the file as it was last saved or loaded."""
        self._loaded = False
        self._there = False
        self._unreadable: dict[Path, Path] = {}
        """The unreadable ones of the two files, and the name under which each will be kept."""
        self._removed = False
        self._removal_known = False
        self._unread: StoreBroken | None = None
        """Why the last attempt to read failed: until one succeeds, nothing is written over the file."""

    @property
    def is_behind(self) -> bool:
        """Whether changes are in the changes file only."""
        return self._changes.has_lines

    def exists(self) -> bool:
        return self.path.exists()

    def was_removed(self) -> bool:
        """True if the file was removed after the last load or save: its boosts must end.

        A save that was under way puts the file back. So that the removal is not lost, the answer stays true until it
        has been given once and another save was made.
        """
        removed = self._removed or (self._there and _is_gone(self.path))
        self._removal_known = self._removal_known or removed
        return removed

    def look(self) -> Loaded:
        """The present content of the file, for comparison only: nothing is changed, noted or set aside."""
        try:
            data = bytes_of(self.path)
            if data is None:
                return Loaded((), None, (f"{self.path.name} is not there",), "nothing")
            return self._with_changes(data, self.path, "file")
        except ValueError as error:
            return Loaded((), None, (f"{self.path.name} is damaged ({error})",), "nothing")
        except StoreBroken as error:
            return Loaded((), None, ("; ".join((error.message, *error.because)),), "nothing")

    def mistrust(self) -> None:
        """Another program wrote the file: the next save keeps it aside, and not as `.previous`."""
        self._changes.end()
        if self._there and self.path.exists():
            self._unreadable = {self.path: name_aside(self.path)}

    def load(self) -> Loaded:
        """Read the file, or else `.previous`; a missing file is an empty store, whatever `.previous` holds.

        Raises `StoreBroken` if the file cannot be opened or a later grid wrote it: neither may be overwritten.
        """
        self._unreadable = {}
        self._changes.end()
        try:
            loaded = self._read()
        except StoreBroken as error:
            self._unread = error
            raise
        self._loaded, self._unread = True, None
        self._there = loaded.came_from != "nothing"
        self._removed = self._removal_known = False
        return loaded

    def leave_alone(self, why: StoreBroken) -> None:
        """Write nothing over the file until it has been loaded again."""
        self._unread = why

    def load_previous(self) -> Loaded:
        """The content of the file before its last change, for when the file itself cannot be read.

        Raises `StoreBroken` if `.previous` cannot be read either.
        """
        try:
            older = bytes_of(self.previous)
            if older is None:
                return Loaded((), None, (f"there is no {self.previous.name}",), "nothing")
            return self._with_changes(older, self.previous, "previous")
        except ValueError as error:
            return Loaded((), None, (f"{self.previous.name} is damaged ({error})",), "nothing")

    def save(self, leases: Sequence[Lease], cluster: ClusterIdentity | None, *, quickly: bool = False) -> None:
        """Put the leases on disk; on return they survive a power cut.

        `quickly`: in the changes file, if that is possible. A later save then writes the file itself.

        Raises `StoreBroken`, with the old file unchanged, if the disk does not take them, and `ValueError` for a lease
        that could not be read back, which is a bug in the code that made it.
        """
        if self._unread is not None:
            raise StoreBroken(
                self._unread.message,
                because=[*self._unread.because, "grid does not overwrite what it could not read"],
                try_next=self._unread.try_next,
            )
        if not self._loaded:
            self.load()  # so that a damaged file never becomes `.previous`, and a later grid's is left alone
        if quickly and self._append(leases, cluster):
            return
        self._changes.end()
        mark = new_mark() if self._appends else None
        text = self._text(leases, cluster, mark)
        removal_known = self._removal_known
        try:
            write_durably(self._new, text, before_sync=lambda: fault_point(Point.STORE_WRITTEN))
            fault_point(Point.STORE_SYNCED)
            self._keep_old(removal_known=removal_known)
            fault_point(Point.STORE_PREVIOUS_KEPT)
            rename_over(self._new, self.path, text)
            self._there, self._unreadable = True, {}
            fault_point(Point.STORE_RENAMED)
            if mark is not None:
                with suppress(OSError):  # without it, every save writes the file
                    self._changes.begin(mark, self._mark)
            sync_folder(self.path.parent)
            fault_point(Point.STORE_DURABLE)
        except OSError as error:
            self._changes.end()
            # If nothing has changed since the last save, the file's content is not the change that the caller wants.
            is_there = False if text[1] == self._saved else holds(self.path, text)
            raise _unwritable(self.path, error, is_there=is_there) from error
        finally:
            with suppress(OSError):
                self._new.unlink(missing_ok=True)
        self._saved, self._version, self._mark = text[1], (stamp(self.path), cluster), mark
        if removal_known:
            self._removed = self._removal_known = False

    def _append(self, leases: Sequence[Lease], cluster: ClusterIdentity | None) -> bool:
        """Save only what has changed since the last save. False: the file itself must be written."""
        if not self._changes.takes_lines or self._unreadable or self._version != (stamp(self.path), cluster):
            return False
        before, now = self._entries, self._encoded(leases)
        changed = [entry[1] for entry in now.values() if before.get(entry[0].id) is not entry]
        ended = [lease_id for lease_id in before if lease_id not in now]
        # Without a change, the caller wants to know whether the disk takes the file.
        return bool(changed or ended) and self._changes.append(changed, ended)

    def _encoded(self, leases: Sequence[Lease]) -> dict[str, tuple[Lease, bytes]]:
        """The leases' entries in the file. A lease is immutable, so only a new one needs encoding."""
        known = self._entries
        entries: dict[str, tuple[Lease, bytes]] = {}
        for lease in leases:
            entry = known.get(lease.id)
            entries[lease.id] = entry if entry is not None and entry[0] is lease else (lease, _entry(lease))
        if len(entries) != len(leases):
            raise ValueError("two boosts have the same id")
        self._entries = entries
        return entries

    def _text(self, leases: Sequence[Lease], cluster: ClusterIdentity | None, mark: str | None) -> tuple[bytes, bytes]:
        """The file up to its checksum, and the rest."""
        entries = self._encoded(leases)
        identity = json.dumps(None if cluster is None else encode_identity(cluster))
        marked = "" if mark is None else f'\n  "changes": "{mark}",'
        head = f'{{\n  "version": {VERSION},\n  "cluster": {identity},{marked}\n  "boosts": ['.encode()
        body = _joined(head, [text for _, text in entries.values()])
        return body, _BEFORE_CHECKSUM + json.dumps(_checksum(body)).encode() + b"\n}\n"

    def _keep_old(self, *, removal_known: bool) -> None:
        """Give the present file a second name; it keeps its own until the new one replaces it."""
        try:
            for path, aside in self._unreadable.items():
                keep_as(aside, path)
            if self.previous in self._unreadable:
                self.previous.unlink()
            if not self._unreadable and not self.previous.is_dir():  # else `.previous` is the good one, or in the way
                keep_as(self.previous, self.path)
        except FileNotFoundError:
            # `.previous` is older than the removal: it must never bring those boosts back.
            self.previous.unlink(missing_ok=True)
            if self._there and not removal_known:
                self._removed = True

    def _read(self) -> Loaded:
        if (data := bytes_of(self.path)) is None:
            return Loaded((), None, (), "nothing")
        try:
            loaded = self._with_changes(data, self.path, "file")
            self._mark, self._saved = loaded.mark, b"".join(data.rpartition(_BEFORE_CHECKSUM)[1:])
            if loaded.problems:
                self._unreadable[self._changes.path] = name_aside(self._changes.path)
            return loaded
        except ValueError as error:
            damage = f"{self.path} is damaged ({error})"
            self._unreadable[self.path] = aside = name_aside(self.path)

        older = self.load_previous()
        if older.came_from == "previous":
            problem = f"{damage}; used {self.previous.name} instead, which may lack the last change"
            return Loaded(older.leases, older.cluster, (problem, *older.problems), "previous")
        why_not_older = older.problems[0].replace("is damaged", "is damaged too")
        if "is damaged" in why_not_older:
            self._unreadable[self.previous] = name_aside(self.previous)

        problem = f"{damage} and {why_not_older}: no boosts are known. The damaged file is kept as {aside}"
        return Loaded((), None, (problem,), "nothing")

    def _with_changes(self, data: bytes, path: Path, came_from: Literal["file", "previous"]) -> Loaded:
        """The content of one of the two files, with the changes that continue it.

        `.previous` stands in for the file, so what continues the file continues it, too.
        """
        leases, cluster, mark = _parse(data, path)
        if mark is None:
            return Loaded(leases, cluster, (), came_from)
        if came_from == "file":
            changes, damage = changes_of(mark, (self._changes.path,))
        else:  # a crash may have come before its changes file had its final name
            files = (self._changes.path, self._changes.previous)
            changes, damage = changes_of(mark, files, strict=False)
            later, damage_later = changes_of(mark, files[:1], by="after", strict=False)
            changes, damage = (*changes, *later), damage or damage_later
        known = {lease.id: lease for lease in leases}
        for change in changes:
            known = {id_: lease for id_, lease in known.items() if id_ not in change.ended}
            known |= {lease.id: lease for lease in map(decode_lease, change.boosts)}
        return Loaded(tuple(known.values()), cluster, () if damage is None else (damage,), came_from, mark)


def _entry(lease: Lease) -> bytes:
    """A lease's text, one key per line. A lease that would not load again is refused, so that its maker sees the
    error."""
    encoded = encode_lease(lease)
    text = f"{{\n      {_json(encoded)[1:-1]}\n    }}"
    if encode_lease(decode_lease(json.loads(text))) != encoded:
        raise ValueError(f"boost {lease.id!r} would not survive a round trip through the file")
    return f"\n    {text}".encode()


def _joined(head: bytes, boosts: list[bytes]) -> bytes:
    """Built in one go: with 1,000 boosts each further copy costs as much as hashing it."""
    if not boosts:
        return head + b"]"
    boosts[0] = head + boosts[0]
    boosts[-1] += b"\n  ]"
    return b",".join(boosts)


_json: Final = json.JSONEncoder(allow_nan=False, separators=(",\n      ", ": ")).encode


def _parse(data: bytes, path: Path) -> tuple[tuple[Lease, ...], ClusterIdentity | None, str | None]:
    """The content of a file, and its version's mark; `ValueError` if it is damaged, `StoreBroken` if only a later grid
    can read it."""
    if not data.strip():
        raise ValueError("it is empty")
    try:
        content = json_of(data)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    version = content.get("version")
    if type(version) is not int or version < VERSION:
        raise ValueError(f"unknown version {version!r}")
    if version > VERSION:  # checked before the checksum, which a later grid may compute differently
        raise StoreBroken(
            f"{path} was written by a later version of grid",
            because=[f"it has format {version}; this grid reads up to {VERSION}"],
            try_next="Upgrade grid, or move the file and its .previous elsewhere: the boosts in it then end.",
        )
    if content.get("checksum") != _checksum(data.rpartition(_BEFORE_CHECKSUM)[0]):
        raise ValueError("its checksum does not match")
    boosts, cluster = content.get("boosts"), content.get("cluster")
    if not isinstance(boosts, list):
        raise ValueError("boosts is not a list")
    leases = tuple(decode_lease(boost) for boost in boosts)
    if len({lease.id for lease in leases}) != len(leases):
        raise ValueError("two boosts have the same id")
    mark = content.get("changes")
    return leases, None if cluster is None else decode_identity(cluster), mark if isinstance(mark, str) else None


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _is_gone(path: Path) -> bool:
    """True only if it is certain: a folder that is briefly unreadable must not end all boosts."""
    try:
        path.stat()
    except FileNotFoundError:
        return path.parent.exists() or not path.parent.is_symlink()  # otherwise the link leads to a disk that is away
    except OSError:
        return False
    return False


_WHAT_IS_THERE: Final = {
    False: "the boosts as they were last saved are still there; this change is not",
    True: "this change is in the file, but the disk has not confirmed it: a power cut may undo it",
    None: "the file cannot be read now, so it is unknown whether this change is in it",
}


def _unwritable(path: Path, error: OSError, *, is_there: bool | None) -> StoreBroken:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            advice = f"Free some space for {path.parent}."
        case errno.EIO | errno.ESTALE | errno.EBUSY:
            advice = f"Check the disk or the file server behind {path.parent}."
        case _:
            advice = f"Make {path.parent} writable for your user, or set GRID_HOME to another folder."
    return StoreBroken(f"Cannot write {path}: {error.strerror}", because=[_WHAT_IS_THERE[is_there]], try_next=advice)
