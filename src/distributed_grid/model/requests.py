"""User requests, validated once at the edge; and requests in the queue."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from distributed_grid.errors import InvalidAmount, InvalidDuration, InvalidRequest, SameNode
from distributed_grid.model.leases import Cause, Delivery, Lease, OnGraceEnd, Purpose
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plain_text import plain
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import GPU, describe, kind_of, units_of, whole
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.model.times import LENGTHS, length

DEFAULT_DURATION_S: Final = 3600.0
LONGEST_S: Final = 366 * 24 * 3600.0
_LONGEST_LABEL: Final = 200
_RAY_PROCESS: Final = re.compile(r"[0-9a-fA-F]{56}")
DELIVERIES: Final = (*map(str, Delivery), "auto")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request whose fields are each valid on their own."""

    target: NodeName
    kind: str
    units: int
    priority: AllocationPriority = AllocationPriority.NORMAL
    duration_s: float = DEFAULT_DURATION_S
    source: NodeName | None = None
    delivery: str | None = None
    grace_s: float | None = None
    on_grace_end: OnGraceEnd | None = None
    requester: str = ""
    idempotency_key: str | None = None
    team: str = DEFAULT_TEAM
    cause: Cause = Cause.ASKED
    reclaim_hook: str | None = None
    along: tuple[tuple[str, int], ...] = ()
    """What the same lender gives along with it, by kind; such a lease is always reserved."""
    purpose: Purpose = Purpose.BOOST
    label: str = ""
    own_too: bool = False
    """If no other node lends it, the target may set it aside from its own capacity; that is reserved, too."""
    ends_with: str | None = None
    """The Ray process with which the lease ends."""
    nodes: tuple[NodeName, ...] | None = None
    """The only nodes that may lend it, the preferred ones first; None: any. With `own_too`, also limits the target."""

    @property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Everything that was requested, by kind; companions of a reservation are not included."""
        return ((self.kind, self.units), *self.along)

    @classmethod
    def again(cls, lease: Lease) -> "Ask":
        """The request for the same lease from any lender: everything that a request says and a lease keeps."""
        return cls(**{name: getattr(lease, name) for name in _KEPT_BY_A_LEASE})

    @property
    def terms(self) -> dict[str, Any]:
        """What the lease that meets it takes from it, by field."""
        return {name: getattr(self, name) for name in (*_KEPT_BY_A_LEASE, "idempotency_key")}

    def describe(self) -> str:
        what = ", ".join(describe(kind, units) for kind, units in self.asked)
        return f"{what} for {self.target}"


_KEPT_BY_A_LEASE: Final = sorted(
    {field.name for field in fields(Ask)}
    & {field.name for field in fields(Lease)} - {"source", "delivery", "idempotency_key"}
)


def make_ask(
    target: str,
    resource_type: str,
    amount: object,
    *,
    priority: str = AllocationPriority.NORMAL,
    duration_s: object = None,
    source: str | None = None,
    delivery: str | None = None,
    grace_s: object = None,
    on_grace_end: str | None = None,
    requester: str = "",
    idempotency_key: str | None = None,
    fractional_gpus: bool = False,
    team: str = "",
    reclaim_hook: str | None = None,
    along: Mapping[str, object] | None = None,
    purpose: str = Purpose.BOOST,
    label: str = "",
    own_too: bool = False,
    ends_with: str | None = None,
    longest_grace_s: float = LONGEST_S,
) -> Ask:
    """Validate a request's fields, or raise the `InvalidRequest` that names the wrong one."""
    kind = kind_of(resource_type)
    units = units_of(kind, amount)
    is_own = own_too and source == target  # a node's own part of a device is not lent to another node
    if kind == GPU and not fractional_gpus and not is_own and not whole(kind, units):
        raise InvalidAmount(
            f"{amount} GPUs: a GPU is lent whole",
            try_next="Ask for 1, or allow parts with resource_sharing.fractional_gpus: true.",
        )
    more = _along(kind, along or {})
    moves_totals = any(delivery == each and each.moves_totals for each in Delivery)
    if more and moves_totals:
        raise InvalidRequest(
            "Several kinds together cannot be transferred",
            try_next="Use --delivery reserve, or ask for one kind after the other.",
        )
    if source is not None and source == target and not own_too:
        raise SameNode(f"{target} cannot lend to itself", try_next="Leave --source out, or name another node.")
    if delivery is not None and delivery not in DELIVERIES:
        raise InvalidRequest(f"Unknown delivery: {delivery!r}", try_next=f"Use one of: {', '.join(DELIVERIES)}.")
    if moves_totals and kind == GPU:
        raise InvalidRequest(
            "Ray cannot transfer GPUs between nodes",
            because=["a running raylet's GPUs are fixed: Ray refuses to resize them"],
            try_next="Use --delivery reserve (the default for GPUs): the work then runs on the lender.",
        )
    return Ask(
        target=target,
        kind=kind,
        units=units,
        priority=AllocationPriority.parse(priority),
        duration_s=DEFAULT_DURATION_S if duration_s is None else seconds("duration", duration_s),
        source=source,
        delivery=delivery,
        grace_s=None if grace_s is None else grace_period(grace_s, longest_grace_s),
        on_grace_end=None if on_grace_end is None else _on_grace_end(on_grace_end),
        requester=requester,
        idempotency_key=idempotency_key,
        team=team or DEFAULT_TEAM,
        reclaim_hook=reclaim_hook,
        along=more,
        purpose=_purpose(purpose),
        label=plain(label)[:_LONGEST_LABEL],
        own_too=own_too,
        ends_with=None if ends_with is None else _ray_process(ends_with),
    )


def _ray_process(worker_id: str) -> str:
    if not _RAY_PROCESS.fullmatch(worker_id):
        raise InvalidRequest(
            f"{worker_id[:80]!r} is no id of a Ray process",
            try_next="Give what ray.get_runtime_context().get_worker_id() says in the process that holds the boost.",
        )
    return worker_id.lower()


def _along(kind: str, given: Mapping[str, object]) -> tuple[tuple[str, int], ...]:
    found = {kind_of(name): amount for name, amount in given.items()}
    if kind in found or len(found) < len(given):
        raise InvalidRequest(f"One kind of resource is asked for twice: {', '.join((kind, *given))}")
    return tuple(sorted((other, units_of(other, amount)) for other, amount in found.items()))


def _purpose(value: str) -> Purpose:
    try:
        return Purpose(value)
    except ValueError:
        raise InvalidRequest(f"Unknown purpose: {value!r}", try_next=f"Use one of: {', '.join(Purpose)}.") from None


def seconds(what: str, value: object, *, zero_allowed: bool = False) -> float:
    """A length of time in seconds: a number, or text such as "90", "30m", "1h30m", "2d"; else `InvalidDuration`."""
    try:
        with_units = length(value) if isinstance(value, str) else None
        number = float(str(value)) if with_units is None else with_units
    except ValueError:
        raise InvalidDuration(f"The {what} must be a length of time such as {LENGTHS}, not {value!r}") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise InvalidDuration(f"The {what} must be a finite number of seconds, not {value}")
    if number < 0 or (number == 0 and not zero_allowed):
        raise InvalidDuration(f"The {what} must be above zero, not {value}")
    if number > LONGEST_S:
        raise InvalidDuration(f"The {what} must be at most a year ({LONGEST_S:.0f} s), not {value}")
    return number


def grace_period(value: object, longest_s: float) -> float:
    """A grace period in seconds, or `InvalidDuration`: other teams may have to wait until it ends."""
    grace_s = seconds("grace period", value, zero_allowed=True)
    if grace_s > longest_s:
        raise InvalidDuration(
            f"The grace period must be at most {longest_s:g} s, not {grace_s:g} s",
            because=["a team waits for what is guaranteed to it until the grace periods of others are over"],
            try_next="Ask for less; resource_sharing.max_grace_seconds in the configuration is the limit.",
        )
    return grace_s


def _on_grace_end(value: str) -> OnGraceEnd:
    try:
        return OnGraceEnd(value)
    except ValueError:
        raise InvalidRequest(
            f"Unknown --on-grace-end: {value!r}", try_next=f"Use one of: {', '.join(OnGraceEnd)}."
        ) from None


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. The lease that it becomes has the same id."""

    id: str
    ask: Ask
    since: datetime
    until: datetime | None = None
    """When it gives up; None: it waits until it is met or cancelled."""
    is_durable: bool = False
    """It waits across restarts, without a connected caller."""

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and now >= self.until

    @property
    def is_for_a_task(self) -> bool:
        """Whether it waits for a task rather than a caller: the scheduler then holds the lease."""
        return self.is_durable and self.ask.cause is Cause.SCHEDULED
