"""The JSON of sharing by policy: requests that wait, plans, reasons, policies."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from distributed_grid.controller.schemas import Amount, Amounts, Boost, BoostRequest, Name, QueuedRequest, Word


class AllocationRequest(BoostRequest):
    """What `grid resource-sharing request` sends: a boost's request that waits without an open connection."""

    wait_seconds: Annotated[float, Field(ge=0, le=366 * 24 * 3600)] | None = Field(  # type: ignore[assignment]
        None, description="Give up after this long; null: wait until it is met or released"
    )


class QueueStatus(BaseModel):
    requests: list[QueuedRequest]
    cut: bool = Field(False, description="There are more requests, and they would have been too much for one answer")


class Allocation(BaseModel):
    request_id: str = Field(description="Of the request, and of the boost that it becomes")
    state: str = Field(description="waiting, or the boost's state")
    waiting: QueuedRequest | None
    boost: Boost | None


class PlanRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target_node: Name
    resource_type: Name
    amount: Amount
    priority: Word = "normal"
    duration_seconds: Amount | None = None
    source_node: Name | None = None
    delivery: Word | None = None


class NodeReason(BaseModel):
    node: str
    verdict: str = Field(description="chosen, could lend, or the word for why not")
    detail: str
    could_lend: float | int


class Victim(BaseModel):
    boost_id: str
    target_node: str
    resource_type: str
    amount: float | int
    takes: float | int = Field(description="How much of it would be taken back")
    priority: str
    team: str


class Preemption(BaseModel):
    source_node: str
    reason: str
    takes_own: bool = Field(description="The request is within what is guaranteed to its team")
    delivery: str
    at: str = Field(description="When they are asked: now, or when the last of their minimum holds is over")
    back_by: str = Field(description="When the last of it is home, whatever its work does")
    victims: list[Victim]


class LargestNow(BaseModel):
    amount: float | int
    source_node: str | None


class Plan(BaseModel):
    target_node: str
    resource_type: str
    amount: float | int
    priority: str
    team: str
    at: str
    fits: bool = Field(description="Whether it would be granted now, without preemption")
    summary: str
    source_node: str | None
    delivery: str | None
    delivery_reason: str | None
    warnings: list[str]
    preemption: Preemption | None = Field(
        description="Which boosts yield, if no node can lend it now and preemption brings it forward"
    )
    ahead: int = Field(description="Requests that wait in front of it")
    expected_start: str | None = Field(description="When it would be granted if it waited; null: no estimate")
    expected_wait_s: float | None
    largest_now: LargestNow
    team_limit: str | None
    nodes: list[NodeReason]


class Why(BaseModel):
    id: str
    kind: str = Field(description="request or boost")
    state: str
    summary: str
    facts: list[str]
    nodes: list[NodeReason]
    expected_start: str | None = Field(description="Of a request that waits: as in the queue")


class PolicyChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    policy: Word | None = Field(None, description="conservative, balanced, aggressive, predictive; or configured")
    mode: Word | None = Field(None, description="offload_only, share_and_offload, dynamic_balancing; or configured")


class PolicyStatus(BaseModel):
    policy: str
    mode: str
    configured_policy: str
    configured_mode: str
    numbers: dict[str, Any]


class TeamStatus(BaseModel):
    name: str
    guaranteed: Amounts
    borrowing_limit: Amounts
    lending_limit: Amounts
    weight: float
    held: Amounts
    recent_use: float = Field(description="Part of the cluster in hours, older use counting less")


class SharingStatus(PolicyStatus):
    enabled: bool
    delivery: str
    nodes: list[dict[str, Any]]
    teams: list[TeamStatus]
    waiting: int = Field(description="How many requests wait in the queue")
    queue: list[QueuedRequest] = Field(description="The first of them, as `GET /requests` has them")
    cooling: list[str]


class CooldownRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    on: bool = True
    grace_seconds: Amount | None = None


class Cooldown(BaseModel):
    node: str
    cooling: bool
    asked_back: list[str] = Field(description="Boosts that are on their way home")
