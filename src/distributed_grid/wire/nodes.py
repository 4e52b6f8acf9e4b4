"""Nodes and the cluster: what Ray counts, what was measured, what waits, and what would help."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.boosts import BoostList, ListedBoosts
from distributed_grid.wire.queue import QueueHead
from distributed_grid.wire.values import Amounts


class NodePressure(TypedDict):
    """0 to 1; null where it is not measured."""

    overall: float
    cpu: float
    memory: float
    gpu: float | None
    own_cpu: Annotated[float | None, Field(description="Of its own processes; null if its machine has no other node")]
    own_memory: float | None


class MeasuredHost(TypedDict):
    """The machine, or the container that the node runs in: cores and bytes."""

    cpus: float
    cpu_used: float
    memory_total: int
    memory_used: int
    swap_total: int
    swap_used: int
    load: list[float]
    disk_total: Annotated[
        int, Field(description="The size of the file system to which its Ray spills objects; 0: not measured")
    ]
    disk_used: int


class MeasuredOwn(TypedDict):
    """Use by the node's own raylet and everything below it."""

    cpu_used: float
    memory_used: int
    processes: int


class MeasuredGpuProcess(TypedDict):
    pid: int
    memory_bytes: int | None
    ours: bool | None


class MeasuredGpu(TypedDict):
    """One device; null where its driver does not report a value."""

    index: int | None
    uuid: str | None
    name: str | None
    utilisation: float | None
    memory_total: int | None
    memory_used: int | None
    temperature_c: float | None
    processes: list[MeasuredGpuProcess] | None
    silent_because: str | None


class Measured(TypedDict):
    host: MeasuredHost
    own: MeasuredOwn
    gpus: list[MeasuredGpu]
    no_gpus_because: str | None


class MeasuredNode(TypedDict):
    """What was measured of a node: nulls while it is not connected, or was not measured yet."""

    stale_because: str | None
    shares_its_host: bool | None
    taken_at: str | None
    seen_since: str | None
    measured_at: str | None
    age_seconds: float | None
    pressure: NodePressure | None
    measured: Measured | None


class LogicalNode(TypedDict):
    """A node as Ray counts it, and what it lends and borrows."""

    name: str
    node_id: str
    alive: bool
    is_head: bool
    labels: Annotated[dict[str, str], Field(description="The Ray labels of the node")]
    base: Amounts
    total: Amounts
    used: Amounts
    free: Amounts
    lent: Amounts
    borrowed: Amounts
    withheld: Annotated[Amounts, Field(description="Free for Ray, but not lent, since programs outside Ray use it")]
    warnings: Annotated[list[str], Field(description="Measured use that Ray does not count")]


class NodeLending(TypedDict):
    """What the node can lend, by the same rules as the decision about the next request."""

    lendable: Annotated[Amounts, Field(description="What it could lend to others now, after headroom and limits")]
    closed: Annotated[str | None, Field(description="Why none of its capacity is available now, even to its own work")]
    gpu_parts: Annotated[
        list[float | int], Field(description="Parts of GPUs that placement groups hold; each is on one device")
    ]


class NodeStatus(LogicalNode, NodeLending, MeasuredNode):
    state: Annotated[
        str, Field(description="ok; starting: not measured yet; stale: its probe is silent; down: not in the cluster")
    ]
    pressed: Annotated[list[str], Field(description="The kinds that it is under pressure for, by their thresholds")]


class DemandStatus(TypedDict):
    shape: str
    resources: list[Amounts]
    labels: list[str]
    strategy: str | None
    placement_group: str | None
    count: int
    queued_on: dict[str, int]
    reason: Annotated[str, Field(description="infeasible or waiting_for_capacity")]
    detail: str
    could_run_on: list[str]
    wanted_on: list[str]
    since: str
    waited_seconds: float


class RecentHistory(TypedDict):
    """The mean pressure in each of so many equal parts of the last hour, oldest first; null where none is known."""

    window_seconds: float
    until: str
    series: Annotated[dict[str, list[float | None]], Field(description="overall, cpu, memory, gpu")]


class ListedNode(NodeStatus):
    history: NotRequired[Annotated[RecentHistory, Field(description="Only with ?history=N")]]


class NodeList(TypedDict):
    nodes: list[ListedNode]


class DemandList(TypedDict):
    demand: list[DemandStatus]


class SuggestionStatus(TypedDict):
    node: str
    resource_type: str
    cause: Annotated[str, Field(description="pressure, demand or forecast")]
    what: str
    reason: str
    confidence: Annotated[float, Field(description="The probability, 0 to 1, that the node is or will be short of it")]
    how_sure: str
    in_seconds: Annotated[float | None, Field(description="When the node will be short of it; null: it is now")]
    amount: Annotated[float | int | None, Field(description="The amount that can be lent; null if no node can lend")]
    source_node: str | None
    command: str | None
    by_itself: Annotated[bool, Field(description="Whether grid does this without a request if the condition lasts")]


class SuggestionList(TypedDict):
    suggestions: list[SuggestionStatus]


class History(TypedDict):
    interval_seconds: float
    times: list[str]
    series: Annotated[dict[str, list[float | None]], Field(description="null: a gap")]


class NodeTrend(TypedDict):
    per_minute: float | None
    samples: int
    covered: Annotated[float, Field(description="The part of the window that was measured")]


class ForecastAccuracy(TypedDict):
    """The accuracy of past forecasts for this horizon."""

    horizon_s: float
    checked: Annotated[int, Field(description="How many forecasts were compared with the outcome")]
    error: float
    error_of_now: Annotated[float, Field(description='The error of the forecast "same as now"')]
    covered: Annotated[
        float | None, Field(description="The part of the forecasts whose interval contained the outcome")
    ]


class NodeForecast(TypedDict):
    horizon_seconds: float
    value: float
    low: float
    high: float
    confidence: float
    enough_history: Annotated[
        bool, Field(description="False: too few forecasts have come due for an interval, so it is 0 to 1")
    ]
    accuracy: ForecastAccuracy | None


class NodeOutlook(TypedDict):
    """One node's last hour, its trends, its forecast, and the demand for it."""

    history: History
    trends: Annotated[
        dict[str, dict[str, NodeTrend]],
        Field(description="Per kind and window: the slope per minute, and how much data it uses"),
    ]
    forecast: Annotated[
        dict[str, NodeForecast | None],
        Field(description="Per kind: value, interval and past accuracy; or null"),
    ]
    demand: list[DemandStatus]


class OneNode(NodeStatus, NodeOutlook, QueueHead, ListedBoosts):
    """Everything that grid knows about one node, its boosts, and the queue's requests that have it as target."""


class NodesSeen(TypedDict):
    nodes: list[NodeStatus]
    demand: Annotated[list[DemandStatus], Field(description="What waits in Ray's queues")]
    suggestions: list[SuggestionStatus]


class ClusterSeen(NodesSeen, QueueHead):
    """The cluster, without the controller's location."""

    cluster: Annotated[str, Field(description="The cluster's name in the configuration")]
    boosts: BoostList
    problems: list[str]
    cordoned: Annotated[list[str], Field(description="Nodes that are cordoned: they lend and borrow nothing")]


class ControllerPlace(TypedDict):
    state: str
    url: str
    pid: int


class ClusterStatus(ClusterSeen):
    ray_address: str
    ray_auth_mode: Annotated[str, Field(description="`token` if Ray requires a token, else `disabled`")]
    controller: ControllerPlace
