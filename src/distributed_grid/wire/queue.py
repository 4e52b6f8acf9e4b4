"""Requests that wait, plans of requests, and reasons."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.boosts import Boost, BoostPart, PlannedRequest, RequestedBoost
from distributed_grid.wire.values import Amount, request


@request
class AllocationRequest(RequestedBoost):
    """What `grid resource-sharing request` sends: a boost's request that waits without an open connection."""

    wait_seconds: NotRequired[
        Annotated[Amount | None, Field(description="Withdraw the request after this long; null, the default: never")]
    ]


@request
class PlanRequest(PlannedRequest):
    """What `grid plan` sends."""


class QueuedRequest(TypedDict):
    request_id: str
    position: Annotated[int | None, Field(description="1 is next; null: not planned yet")]
    target_node: str
    resource_type: str
    amount: float | int
    priority: str
    duration_seconds: float
    team: str
    requester: str
    since: str
    waited_seconds: float
    until: str | None
    reason: Annotated[str, Field(description="What it waits for")]
    expected_start: Annotated[str | None, Field(description="By the known ends of boosts; null: no estimate")]
    expected_source: str | None


class QueueStatus(TypedDict):
    cut: Annotated[bool, Field(description="True if there are more requests than fit into one answer")]
    requests: list[QueuedRequest]


class QueueHead(TypedDict):
    """Part of every status."""

    waiting: Annotated[int, Field(description="How many requests wait in grid's own queue")]
    queue: Annotated[list[QueuedRequest], Field(description="The first of these requests, as in `GET /requests`")]


class Allocation(TypedDict):
    request_id: Annotated[str, Field(description="The id of the request, and of the boost that it becomes")]
    state: Annotated[str, Field(description="waiting, cancelled, or the boost's state")]
    waiting: QueuedRequest | None
    boost: Boost | None


class NodeVerdict(TypedDict):
    node: str
    verdict: Annotated[str, Field(description="chosen, could lend, or the refusal code")]
    detail: str
    could_lend: float | int


class Victim(TypedDict):
    boost_id: str
    target_node: str
    resource_type: str
    amount: float | int
    takes: Annotated[float | int, Field(description="How much of the boost would be reclaimed")]
    priority: str
    team: str


class PlannedPreemption(TypedDict):
    source_node: str
    parts: Annotated[list[BoostPart], Field(description="What each lender would lend; empty if there is only one")]
    reason: str
    takes_own: Annotated[bool, Field(description="True if the request is within its team's guarantee")]
    delivery: str
    at: Annotated[str, Field(description="When the reclaim begins: now, or after the last minimum hold")]
    back_by: Annotated[str, Field(description="When all of it is returned at the latest")]
    victims: list[Victim]


class LargestNow(TypedDict):
    amount: float | int
    source_node: str | None


class Plan(TypedDict):
    target_node: str
    resource_type: str
    amount: float | int
    priority: str
    team: str
    at: str
    fits: Annotated[bool, Field(description="Whether it would be granted now, without preemption")]
    summary: str
    source_node: str | None
    parts: Annotated[list[BoostPart], Field(description="What each lender would lend; empty if there is only one")]
    delivery: str | None
    delivery_reason: str | None
    warnings: list[str]
    preemption: Annotated[
        PlannedPreemption | None,
        Field(description="The boosts that yield, if no node can lend it now and preemption gives an earlier start"),
    ]
    ahead: Annotated[int, Field(description="Waiting requests that are ahead of it")]
    expected_start: Annotated[str | None, Field(description="When it would be granted if it waited; null: no estimate")]
    expected_wait_s: float | None
    largest_now: LargestNow
    team_limit: str | None
    nodes: list[NodeVerdict]


class Why(TypedDict):
    id: str
    kind: Annotated[str, Field(description="request or boost")]
    state: str
    summary: str
    facts: list[str]
    nodes: list[NodeVerdict]
    expected_start: Annotated[str | None, Field(description="For a waiting request, as in the queue")]
    ended_at: Annotated[str | None, Field(description="When it ended, by the audit log; null: it has not ended")]
