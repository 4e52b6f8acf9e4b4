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
    own_cpu: Annotated[float | None, Field(description="by its own processes; null where it has its machine to itself")]
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
        int, Field(description="of the file system to which its Ray spills objects; 0: it was not measured")
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
    labels: Annotated[dict[str, str], Field(description="the Ray labels of the node")]
    base: Amounts
    total: Amounts
    used: Amounts
    free: Amounts
    lent: Amounts
    borrowed: Amounts
    withheld: Annotated[Amounts, Field(description="free for Ray, and not lent since programs outside Ray use it")]
    warnings: Annotated[list[str], Field(description="what was measured in use on it that Ray does not count")]


class NodeLending(TypedDict):
    """Facts for planners of roles, as the next request would be decided."""

    lendable: Annotated[Amounts, Field(description="what it could lend to others now, headroom and limits included")]
    closed: Annotated[str | None, Field(description="why none of its capacity is available now, even to its own work")]
    gpu_parts: Annotated[
        list[float | int], Field(description="parts of GPUs that placement groups hold; each is on one device")
    ]


class NodeStatus(LogicalNode, NodeLending, MeasuredNode):
    state: Annotated[
        str, Field(description="ok; starting, until its first measurement; stale, if its probe stopped answering; down")
    ]


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
    history: NotRequired[Annotated[RecentHistory, Field(description="only with ?history=N")]]


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
    confidence: Annotated[float, Field(description="0 to 1: that the node is, or will be, short of it")]
    how_sure: str
    in_seconds: Annotated[float | None, Field(description="when; null: it is so now")]
    amount: Annotated[float | int | None, Field(description="what can be lent; null where no node can")]
    source_node: str | None
    command: str | None
    by_itself: Annotated[bool, Field(description="whether the policy does this by itself, if it lasts")]


class SuggestionList(TypedDict):
    suggestions: list[SuggestionStatus]


class History(TypedDict):
    interval_seconds: float
    times: list[str]
    series: Annotated[dict[str, list[float | None]], Field(description="null: a gap")]


class NodeTrend(TypedDict):
    per_minute: float | None
    samples: int
    covered: Annotated[float, Field(description="the part of the window that was measured")]


class ForecastAccuracy(TypedDict):
    """How good such forecasts were."""

    horizon_s: float
    checked: Annotated[int, Field(description="How many were compared with the outcome")]
    error: float
    error_of_now: Annotated[float, Field(description='The error of "it stays as it is now"')]
    covered: Annotated[float | None, Field(description="The part whose interval contained the outcome")]


class NodeForecast(TypedDict):
    horizon_seconds: float
    value: float
    low: float
    high: float
    confidence: float
    enough_history: Annotated[
        bool, Field(description="whether enough such forecasts have come due for an interval; else it is 0 to 1")
    ]
    accuracy: ForecastAccuracy | None


class NodeOutlook(TypedDict):
    """One node's last hour, its trends, its forecast, and the demand for it."""

    history: History
    trends: Annotated[
        dict[str, dict[str, NodeTrend]],
        Field(description="per kind and window: slope per minute, and how much it rests on"),
    ]
    forecast: Annotated[
        dict[str, NodeForecast | None],
        Field(description="per kind: value, interval, and how good such forecasts were; or null"),
    ]
    pressed: list[str]
    demand: list[DemandStatus]


class OneNode(NodeStatus, NodeOutlook, ListedBoosts):
    """One node with all that is known of it, and its boosts."""


class NodesSeen(TypedDict):
    nodes: list[NodeStatus]
    demand: Annotated[list[DemandStatus], Field(description="What waits in Ray's queues")]
    suggestions: list[SuggestionStatus]


class ClusterSeen(NodesSeen, QueueHead):
    """The cluster, without the controller's location."""

    cluster: Annotated[str, Field(description="its name in the configuration")]
    boosts: BoostList
    problems: list[str]
    cordoned: Annotated[list[str], Field(description="Nodes that are cordoned: they lend and borrow nothing")]


class ControllerPlace(TypedDict):
    state: str
    url: str
    pid: int


class ClusterStatus(ClusterSeen):
    ray_address: str
    ray_auth_mode: Annotated[str, Field(description="`token` if Ray asks for one, else `disabled`")]
    controller: ControllerPlace
