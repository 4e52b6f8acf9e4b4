"""Decisions about sharing, beside the leases: on disk, so that a restart does not forget waiting requests.

The file is small and seldom changes; the boosts have their own file. If the two disagree, the boosts are right: a
request that is in both was granted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from distributed_grid.decide.queue.claims import Account
from distributed_grid.errors import StoreBroken
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.model.requests import Waiting
from distributed_grid.model.scheduling import SchedulingRecord
from distributed_grid.model.windows import Window
from distributed_grid.store.boost_file import ClusterIdentity, decode_identity, encode_identity
from distributed_grid.store.durable import bytes_of, free_name, json_of, keep_as, replace_durably, set_aside

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SharingRecord:
    policy: SharingPolicy | None = None
    """As set by command; None: as the configuration says."""
    mode: SharingMode | None = None
    cooling: tuple[NodeName, ...] = ()
    """The cordoned nodes, under the key that the file has always had."""
    waiting: tuple[Waiting, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """Each team's recent usage, for its fair share."""
    scheduling: SchedulingRecord = field(default_factory=SchedulingRecord)
    windows: tuple[Window, ...] = ()


_RECORDS: Final = TypeAdapter(SharingRecord)


class SharingFile:
    """One cluster's record; the process that saves holds the `WriterLock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unread: StoreBroken | None = None
        """Why the last attempt to read failed: until one succeeds, nothing is written over the file."""

    def load(self, cluster: ClusterIdentity) -> tuple[SharingRecord, tuple[str, ...]]:
        """The record of this cluster, and what a person should know about the file.

        A file that cannot be understood, or is another cluster's, is kept under another name and not used. Raises
        `StoreBroken` if the file cannot be read or kept: then it is not written either.
        """
        try:
            found = self._load(cluster)
        except StoreBroken as error:
            self._unread = error
            raise
        except OSError as error:
            self._unread = StoreBroken(f"Cannot keep {self.path} under another name: {error.strerror}")
            raise self._unread from error
        self._unread = None
        return found

    def _load(self, cluster: ClusterIdentity) -> tuple[SharingRecord, tuple[str, ...]]:
        data = bytes_of(self.path)
        if data is None:
            return SharingRecord(), ()
        try:
            found = json_of(data)
            if not isinstance(found, dict) or found.get("version") != VERSION:
                raise ValueError("it was written by another version of grid")
            owner = decode_identity(found.get("cluster"))
            record = _RECORDS.validate_python(found.get("sharing"))
        except (ValueError, ValidationError) as error:
            problem = f"{self.path.name} cannot be understood ({str(error).splitlines()[0]})"
            return SharingRecord(), (f"{problem}: the queue is empty. It is kept as {set_aside(self.path).name}",)
        if not owner.same_cluster(cluster):
            keep_as(free_name(self.path, ".other-cluster"), self.path)
            return SharingRecord(), ()
        return record, ()

    def save(self, record: SharingRecord, cluster: ClusterIdentity) -> None:
        """On return the record survives a power cut; on `StoreBroken` the old one is unchanged."""
        if self._unread is not None:
            raise self._unread
        found = {
            "version": VERSION,
            "cluster": encode_identity(cluster),
            "sharing": _RECORDS.dump_python(record, mode="json"),
        }
        try:
            replace_durably(self.path, json.dumps(found, indent=2).encode() + b"\n")
        except OSError as error:
            raise StoreBroken(
                f"Cannot write {self.path}: {error.strerror}",
                try_next=f"Make {self.path.parent} writable for your user, and check its free space.",
            ) from error
