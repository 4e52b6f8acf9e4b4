"""What is known of runs of roles, and what is wished of them: JSON in Ray's own key-value store.

A run's record is written only by the process that owns the run. Whoever wants something of it leaves a wish, which the
owner takes. Every wish has a key of its own, so that none is lost when two write at once, or one while the owner takes.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from distributed_grid.errors import InvalidRequest, Unavailable
from distributed_grid.model.roles import checks
from distributed_grid.model.roles.runs import Record, Wish, is_over, merged

NAMESPACE: Final = "grid-roles"
_RUN, _WISH, _HEIR = "run:", "wish:", "heir:"
_ANSWER_S: Final = 5.0


class Shelf(Protocol):
    """Keys and values that all processes of a cluster share. Tests may bring another."""

    def put(self, key: str, value: bytes, *, replace: bool) -> bool:
        """Whether it is there now; without `replace` only if nothing was there before."""

    def get(self, key: str) -> bytes | None: ...
    def keys(self, prefix: str) -> list[str]: ...
    def remove(self, key: str) -> bool:
        """Whether it was there."""

    def dead_jobs(self, job_ids: Iterable[str]) -> frozenset[str]:
        """Those of these Ray jobs whose driver is gone, or that nobody knows."""


class RayShelf:
    """The control service of a Ray cluster. Works in drivers, in workers, and where only its address is known.

    Where it does not answer in time, `Unavailable` is raised.
    """

    def __init__(self, gcs_address: str) -> None:
        import ray._raylet

        self._gcs: Any = ray._raylet.GcsClient(address=gcs_address)
        self._silent: type[Exception] = ray.exceptions.RpcError
        self._namespace = NAMESPACE.encode()

    def put(self, key: str, value: bytes, *, replace: bool) -> bool:
        added = self._ask(self._gcs.internal_kv_put, key.encode(), value, replace, self._namespace)
        return replace or bool(added)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._ask(self._gcs.internal_kv_get, key.encode(), self._namespace)
        return found

    def keys(self, prefix: str) -> list[str]:
        found: list[bytes] = self._ask(self._gcs.internal_kv_keys, prefix.encode(), self._namespace)
        return [key.decode() for key in found]

    def remove(self, key: str) -> bool:
        return bool(self._ask(self._gcs.internal_kv_del, key.encode(), False, self._namespace))

    def dead_jobs(self, job_ids: Iterable[str]) -> frozenset[str]:
        asked = set(job_ids)
        if not asked:
            return frozenset()
        only_these = {"skip_submission_job_info_field": True, "skip_is_running_tasks_field": True}
        jobs = self._ask(self._gcs.get_all_job_info, **only_these)
        alive = {job_id.hex() for job_id, job in jobs.items() if not job.is_dead}
        return frozenset(asked - alive)

    def _ask(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, timeout=_ANSWER_S, **kwargs)
        except self._silent as error:
            raise Unavailable("Ray's control service does not answer", because=[str(error)]) from error


class RoleRecords:
    """Reads and writes them. All calls block for a moment; none is made from an event loop."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    @classmethod
    def at(cls, gcs_address: str) -> "RoleRecords":
        return cls(RayShelf(gcs_address))

    @classmethod
    def connected(cls) -> "RoleRecords":
        """Of the cluster that this process is connected to."""
        import ray

        return cls.at(ray.get_runtime_context().gcs_address)

    # -- records -------------------------------------------------------------------------------------------------

    def claim(self, record: Record) -> Record | None:
        """Write the first record of a run, and have its name; or the record of the run that has the name and lives.

        The name of a run that is over is free again. Two that want such a name at once cannot both have it.
        """
        key, value = _key(_RUN, record["name"]), _packed(record)
        if self._shelf.put(key, value, replace=False):
            return None
        there = self.read_record(record["name"])
        if there is None:  # it was removed just now
            return self.claim(record)
        if not is_over(there) and not self.owner_is_dead(there):
            return there
        heir = f"{_key(_HEIR, record['name'])}/{there['owner']['job_id']}/{there['began_at']}"
        if not self._shelf.put(heir, b"", replace=False):
            now_there = self.read_record(record["name"])
            return now_there or there
        self._sweep(_WISH, record["name"])  # what was wished of the one before
        self._shelf.put(key, value, replace=True)
        return None

    def write_record(self, record: Record) -> None:
        self._shelf.put(_key(_RUN, record["name"]), _packed(record), replace=True)

    def read_record(self, name: str) -> Record | None:
        found = self._shelf.get(_key(_RUN, name))
        return None if found is None else json.loads(found)

    def names(self) -> list[str]:
        return sorted(key.removeprefix(_RUN) for key in self._shelf.keys(_RUN))

    def remove_record(self, name: str) -> bool:
        """And what is wished of it; whether there was one."""
        was_there = self._shelf.remove(_key(_RUN, name))
        self._sweep(_WISH, name)
        self._sweep(_HEIR, name)
        return was_there

    def remove_mine(self, name: str) -> bool:
        """Only if this process's own Ray job has written it: another run may have the name."""
        import ray

        there, me = self.read_record(name), ray.get_runtime_context().get_job_id()
        return there is not None and there["owner"]["job_id"] == me and self.remove_record(name)

    def owner_is_dead(self, record: Record) -> bool:
        return bool(self.with_dead_owners([record]))

    def with_dead_owners(self, records: Iterable[Record]) -> frozenset[str]:
        """The names of those whose owner's Ray job is dead."""
        jobs = {record["name"]: str(record["owner"]["job_id"]) for record in records}
        dead = self._shelf.dead_jobs(jobs.values())
        return frozenset(name for name, job in jobs.items() if job in dead)

    # -- wishes --------------------------------------------------------------------------------------------------

    def wish(self, name: str, *, counts: Mapping[str, int] | None = None, down: bool = False) -> None:
        """Ask the owner of a run for something; added to what was wished before."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        wished = {"counts": dict(counts or {}), "down": down, "at": at}
        # Keys sort by time, so that of two counts for one role the later one holds.
        key = f"{_key(_WISH, name)}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        self._shelf.put(key, _packed(wished), replace=True)

    def wished(self, name: str) -> Wish | None:
        """What is wished and was not taken yet."""
        return merged([wish for _, wish in self._wishes(name)])

    def take_wish(self, name: str) -> Wish | None:
        """For the owner: all that is wished, as one; it is not there any more."""
        found = self._wishes(name)
        for key, _ in found:
            self._shelf.remove(key)
        return merged([wish for _, wish in found])

    def _wishes(self, name: str) -> list[tuple[str, Wish]]:
        keys = sorted(self._shelf.keys(f"{_key(_WISH, name)}/"))
        found = [(key, self._shelf.get(key)) for key in keys]
        return [(key, json.loads(value)) for key, value in found if value is not None]

    def _sweep(self, kind: str, name: str) -> None:
        for key in self._shelf.keys(f"{_key(kind, name)}/"):
            self._shelf.remove(key)


def checked_name(name: object) -> str:
    """The name of a run: part of keys and of actors' names."""
    try:
        return checks.name(name)
    except checks.Wrong as wrong:
        raise InvalidRequest("That is no name of a run", because=[str(wrong)]) from None


def _key(kind: str, name: object) -> str:
    return kind + checked_name(name)


def _packed(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
