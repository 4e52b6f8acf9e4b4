"""All leases of the cluster, in memory: one ledger, so nothing can be lent twice."""

from collections.abc import Callable, Iterator
from itertools import chain

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.errors import AmbiguousBoost, BoostNotFound
from distributed_grid.model.lease_changes import Change, IllegalTransition, changed, joined_by, split
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName


class Ledger:
    """The leases by id. A lease is dropped once its capacity has returned."""

    def __init__(self, leases: tuple[Lease, ...] = ()) -> None:
        self._leases = {lease.id: lease for lease in leases}
        self._parts = {lease.id: lease.parts for lease in leases}
        self.usage = Usage.of(leases)
        """The usage of all leases, updated with every change."""

    def __iter__(self) -> Iterator[Lease]:
        return iter(tuple(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def snapshot(self) -> tuple[Lease, ...]:
        return tuple(self._leases.values())

    def parts(self) -> tuple[Lease, ...]:
        """All leases, as one lease for each lender: for decisions about capacity."""
        return tuple(chain.from_iterable(self._parts.values()))

    def get(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    def add(self, lease: Lease) -> Lease:
        """Add a new lease. A known one changes only by `apply`."""
        if lease.id in self._leases:
            raise IllegalTransition(f"boost {lease.id} is in the ledger already")
        return self._set(lease)

    def restore(self, lease: Lease) -> Lease:
        """Put in a lease from disk. It replaces what an older file said, but undoes no release."""
        known = self._leases.get(lease.id)
        if known is not None and known.is_winding_down and not lease.is_winding_down:
            raise IllegalTransition(f"boost {lease.id} is {known.state}, and the file says {lease.state}")
        return self._set(lease)

    def apply(self, lease: Lease, change: Change) -> Lease:
        """Change the entry of this lease; an ended one is dropped.

        The change applies to the entry as it is now, whatever the caller's copy says: an old copy cannot undo what has
        happened since. Raises `IllegalTransition` if the change is not legal any more.
        """
        return self._set(changed(self._entry(lease), change))

    def forget(self, lease: Lease) -> None:
        """Remove a lease that was never carried out."""
        if (known := self._leases.pop(lease.id, None)) is not None:
            self._parts.pop(lease.id)
            self.usage.count(known, -1)

    def split(self, lease: Lease, units: int, given_id: str, *, source: NodeName | None = None) -> tuple[Lease, Lease]:
        """Split a lease into the part that is kept and the part that is given up. The usage stays the same."""
        kept, given = split(self._entry(lease), units, given_id, source=source)
        return self._set(kept), self.add(given)

    def join(self, lease: Lease, into: Lease) -> Lease:
        """Make an active lease a part of another one. The usage stays the same."""
        joined = joined_by(self._entry(into), self._entry(lease))
        self.forget(lease)
        return self._set(joined)

    def _entry(self, lease: Lease) -> Lease:
        if (current := self._leases.get(lease.id)) is None:
            raise IllegalTransition(f"boost {lease.id} has ended")
        return current

    def _set(self, lease: Lease) -> Lease:
        self.forget(lease)
        if lease.state is not LeaseState.RELEASED:
            self._leases[lease.id] = lease
            self._parts[lease.id] = lease.parts
            self.usage.count(lease)
        return lease

    def is_being_granted(self, lease_id: str) -> bool:
        """Whether a request is completing this grant now."""
        return (lease := self._leases.get(lease_id)) is not None and lease.state is LeaseState.GRANTING

    def active(self, lease: Lease) -> Lease | None:
        """The entry of this lease, or of the lease that it is a part of, as it is now, if it is active."""
        current = self._leases.get(lease.whole_id)
        return current if current is not None and current.state is LeaseState.ACTIVE else None

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
