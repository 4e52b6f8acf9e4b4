"""All leases of the cluster, in memory: one ledger, so nothing can be lent twice."""

from collections.abc import Callable, Iterator

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.errors import AmbiguousBoost, BoostNotFound
from distributed_grid.model.leases import Lease, LeaseState


class Ledger:
    """The leases by id. A lease is dropped once its capacity has returned."""

    def __init__(self, leases: tuple[Lease, ...] = ()) -> None:
        self._leases = {lease.id: lease for lease in leases}
        self.usage = Usage.of(leases)
        """The usage of all leases, updated with every change."""

    def __iter__(self) -> Iterator[Lease]:
        return iter(tuple(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def snapshot(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    def get(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    def put(self, lease: Lease) -> Lease:
        """Add a lease or its next state; released ones are dropped."""
        self.forget(lease)
        if lease.state is not LeaseState.RELEASED:
            self._leases[lease.id] = lease
            self.usage.count(lease)
        return lease

    def forget(self, lease: Lease) -> None:
        """Remove a lease that was never carried out."""
        if (known := self._leases.pop(lease.id, None)) is not None:
            self.usage.count(known, -1)

    def split(self, lease: Lease, units: int, given_id: str) -> tuple[Lease, Lease]:
        """Split a lease into the part that is kept and the part that is given up. The usage stays the same."""
        kept, given = lease.split(units, given_id)
        return self.put(kept), self.put(given)

    def with_key(self, idempotency_key: str | None) -> Lease | None:
        """The lease that an earlier try of the same request created."""
        if idempotency_key is None:
            return None
        return next((lease for lease in self if lease.idempotency_key == idempotency_key), None)

    def find(self, prefix: str, shows: Callable[[Lease], bool] = lambda _: True) -> Lease:
        """The lease with this id, or the only one whose id starts with `prefix`.

        `shows`: which leases the caller may see; the error for an ambiguous prefix names only these.
        """
        wanted = prefix.strip().lower()
        if wanted in self._leases:
            return self._leases[wanted]
        found = [lease for lease in self if wanted and lease.id.startswith(wanted)]
        if not found:
            raise BoostNotFound(
                f"No boost with the id {prefix!r}", try_next="See the ids of all boosts: grid boost status"
            )
        if len(found) > 1:
            raise AmbiguousBoost(
                f"{len(found)} boosts have an id that begins with {prefix!r}",
                because=[
                    f"{lease.id}  {lease.describe()}"
                    for lease in sorted(filter(shows, found), key=lambda lease: lease.id)[:8]
                ],
                try_next="Give more characters of the id.",
            )
        return found[0]
