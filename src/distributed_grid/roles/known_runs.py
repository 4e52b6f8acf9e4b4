"""The runs of a cluster as anybody sees them, and what anybody may ask of them; their owners do it."""

from typing import Any

from distributed_grid.decide.roles.runs import counts_for, down_answer, short_run
from distributed_grid.errors import RoleRunNotFound
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import as_seen, is_over


class KnownRuns:
    """Reads records and leaves wishes. Calls block for a moment."""

    def __init__(self, records: RoleRecords) -> None:
        self._records = records

    def all(self) -> list[dict[str, Any]]:
        """Each in short, the youngest first."""
        read = map(self._records.read_record, self._records.names())
        found = [record for record in read if record is not None]  # None: it was removed meanwhile
        dead = self._records.with_dead_owners(record for record in found if not is_over(record))
        seen = [as_seen(record, owner_is_dead=record["name"] in dead) for record in found]
        return sorted(map(short_run, seen), key=lambda run: (run["began_at"], run["name"]), reverse=True)

    def one(self, name: str) -> dict[str, Any]:
        """Its record, and what is wished of it that its owner has not heard yet."""
        record = self._records.read_record(name)
        if record is None:
            raise RoleRunNotFound(f"No run of roles has the name {name!r:.120}", try_next="grid roles status")
        dead = not is_over(record) and self._records.owner_is_dead(record)
        return {**as_seen(record, owner_is_dead=dead), "wished": self._records.wished(name)}

    def scale(self, name: str, role: str, count: int) -> dict[str, Any]:
        """Ask for another count of a role, and of those that share its place."""
        self._records.wish(name, counts=counts_for(self.one(name), role, count))
        return self.one(name)

    def down(self, name: str) -> dict[str, Any]:
        """Ask a run to end; of one that is over, forget what is known."""
        seen = self.one(name)
        if is_over(seen):
            return down_answer(seen, removed=self._records.remove_record(name))
        self._records.wish(name, down=True)
        return down_answer(seen, removed=False)
