"""Giving up a part of a boost: one lease becomes two, and the second goes home by the usual way."""

import uuid
from dataclasses import replace
from typing import Final

from distributed_grid.errors import InvalidAmount, Refused
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.resources import amount_of, describe, units_of
from distributed_grid.orchestration import granting
from distributed_grid.orchestration.parts import Parts

_PARTS: Final = uuid.UUID("5b0ff39e-5f0c-4c0e-8a52-8f6b0f0f2c51")


def part_id(idempotency_key: str | None) -> str:
    """The id of a part that is given up. One who asks again with the same key means the same part."""
    return granting.new_id() if idempotency_key is None else str(uuid.uuid5(_PARTS, idempotency_key))


def units_to_give(p: Parts, boost_id: str, amount: object) -> int | None:
    """How much of a boost somebody wants to give up, who writes it as people do; None: all of it."""
    return None if amount is None else units_of(p.ledger.find(boost_id).kind, amount)


def part_to_give(p: Parts, lease: Lease, units: int, given_id: str, *, who: str) -> Lease:
    """The lease that goes home when `units` of this one are given up: a new one, or this one if that is all of it.

    Raises `InvalidAmount` if it has less, and `Refused` if it cannot be divided.
    """
    if units > lease.units:
        raise InvalidAmount(
            f"Boost {lease.id[:8]} is {describe(lease.kind, lease.units)}: {describe(lease.kind, units)} is more",
            try_next=f"To give all of it back: grid boost release {lease.id[:8]}",
        )
    if units == lease.units:
        return lease
    if lease.delivery is not Delivery.TRANSFER:
        left = amount_of(lease.kind, lease.units - units)
        raise Refused(
            f"Boost {lease.id[:8]} is reserved, and cannot be given back in part",
            because=["Ray cannot make a placement group smaller"],
            try_next=f"Give all of it back (grid boost release {lease.id[:8]}), and ask for less: "
            f"grid boost request {lease.target} {lease.kind} {left} --delivery reserve --source {lease.source}",
        )
    return split_off(p, lease, units, given_id, who=who)


def split_off(p: Parts, lease: Lease, units: int, given_id: str, *, who: str) -> Lease:
    """A new lease with `units` of this one, which answers for that much of its notice; the caller lets it wind down.

    From here to the next write there is no lease of which nobody knows on disk: until then it is one, then it is two.
    """
    kept, given = p.ledger.split(lease, units, given_id)
    if (notice := lease.notice) is not None:
        left = notice.units - units
        p.ledger.put(
            replace(
                kept,
                notice=replace(notice, units=left) if left > 0 else None,
                ending=lease.ending if left > 0 else None,
            )
        )
        given = p.ledger.put(replace(given, notice=replace(notice, units=min(units, notice.units))))
    fault_point(Point.RELEASE_SPLIT)
    p.journal.note(
        "split",
        f"{describe(lease.kind, units)} of {lease.describe()} are boost {given.id[:8]} now",
        lease=given,
        node=lease.target,
        who=who,
        part_of=lease.id,
    )
    return given
