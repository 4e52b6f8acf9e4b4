"""The auditor's report, the audit log, and events."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import request


class AuditFinding(TypedDict):
    """The result of one check of `grid doctor`, or one deviation that an audit found."""

    code: str
    severity: Annotated[str, Field(description="ok, warn, fail, or skip: it could not be checked")]
    subject: str
    detail: str
    meaning: Annotated[str, Field(description="What the check ensures, or what the deviation means")]
    what_to_do: str
    fixable: Annotated[bool, Field(description="`grid audit --repair` may do something about it")]
    node: str | None
    boost_id: str | None
    resource_type: str | None
    off_by: float | int | None
    placement_group: str | None
    work: list[str]


class LeftFinding(AuditFinding):
    left_because: Annotated[str | None, Field(description="Why the repair left this finding")]


class AuditReport(TypedDict):
    sound: bool
    at: str
    nodes: int
    boosts: int
    groups: int
    findings: list[LeftFinding]
    settled: list[AuditFinding]
    repaired: list[AuditFinding]
    did: list[str]


@request
class RepairRequest(TypedDict):
    kill: NotRequired[bool]


Entry = dict[str, object]
"""A line of the audit log. Each kind of event has keys of its own beside `at`, `event` and `message`."""


class AuditEntries(TypedDict):
    entries: list[Entry]
    cut: Annotated[bool, Field(description="True if older entries match, but do not fit into one answer")]


class Event(TypedDict):
    number: int
    at: str
    event: str
    message: str
    boost_id: str | None
    node: str | None
    details: Annotated[dict[str, object], Field(description="Each kind of event has keys of its own")]


class EventList(TypedDict):
    events: list[Event]
