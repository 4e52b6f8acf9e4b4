"""Sharing by policy: the policy in force, every node's limits, every team's part, and cooldowns."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.boosts import Boost
from distributed_grid.wire.nodes import ClusterSeen
from distributed_grid.wire.queue import QueueHead
from distributed_grid.wire.values import Amount, Amounts, Word, request


@request
class PolicyChange(TypedDict):
    policy: NotRequired[
        Annotated[
            Word | None, Field(description="conservative, balanced, aggressive or predictive; configured: the file's")
        ]
    ]
    mode: NotRequired[
        Annotated[
            Word | None,
            Field(description="offload_only, share_and_offload or dynamic_balancing; configured: the file's"),
        ]
    ]


class PolicyStatus(TypedDict):
    policy: str
    mode: str
    configured_policy: str
    configured_mode: str
    numbers: Annotated[
        dict[str, float | int | bool | None], Field(description="How readily capacity moves: the policy's row")
    ]


class SharingNode(TypedDict):
    name: str
    alive: bool
    can_share: bool
    cordoned: bool
    limits: Annotated[dict[str, float | int | None], Field(description="null: no limit")]
    lent: Amounts
    borrowed: Amounts
    free: Amounts


class TeamStatus(TypedDict):
    name: str
    guaranteed: Amounts
    borrowing_limit: Amounts
    lending_limit: Amounts
    weight: float
    held: Amounts
    recent_use: Annotated[float, Field(description="Share of the cluster times hours; older usage counts less")]


class SharingStatus(PolicyStatus, QueueHead):
    enabled: bool
    delivery: str
    nodes: list[SharingNode]
    teams: list[TeamStatus]
    cordoned: list[str]


class ResourceStatus(SharingStatus):
    """What Python's `get_resource_status` returns."""

    allocations: list[Boost]


class SharedCluster(ClusterSeen):
    """What Python's `get_cluster_status` returns."""

    resource_sharing: SharingStatus


@request
class CooldownRequest(TypedDict):
    on: NotRequired[Annotated[bool, Field(description="Default true")]]
    grace_seconds: NotRequired[Amount | None]


class Cooldown(TypedDict):
    node: str
    cordoned: bool
    returning: Annotated[list[str], Field(description="Boosts that are being returned")]
