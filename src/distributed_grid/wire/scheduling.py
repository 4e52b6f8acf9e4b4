"""Scheduling: tasks, their placements, and the accuracy of predictions."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import Amount, Amounts, Name, Word, request


@request
class TaskAffinity(TypedDict):
    """What a task must be near to, or far from; every part that is given applies."""

    nodes: NotRequired[Annotated[list[Name], Field(max_length=1000)]]
    labels: NotRequired[Annotated[dict[Name, Name], Field(max_length=100)]]
    tasks: NotRequired[Annotated[list[Name], Field(max_length=1000, description="Tasks that have a place: id or tag")]]
    required: NotRequired[Annotated[bool, Field(description="Default true; false: only a preference")]]


@request
class TaskRequest(TypedDict):
    """One task, or a gang of equal ones. Its meaning is checked in one place, below the API."""

    task_id: NotRequired[
        Annotated[Name, Field(description="Generated if left out; a retry with the same id gets the same answer")]
    ]
    cpu: NotRequired[Annotated[Amount, Field(description="Default 1")]]
    memory: NotRequired[Annotated[Amount, Field(description="GB; default 0")]]
    gpu: NotRequired[Annotated[Amount, Field(description="Default 0")]]
    custom: NotRequired[Annotated[dict[Name, Amount], Field(max_length=16, description="Custom Ray resources")]]
    target: NotRequired[
        Annotated[Name | None, Field(description="The node to which the task belongs; the head if left out")]
    ]
    node: NotRequired[Annotated[Name | None, Field(description="The only node that may be chosen")]]
    strategy: NotRequired[Annotated[Word, Field(description="local_first, unless a node is given")]]
    priority: NotRequired[Annotated[Word, Field(description="Default normal")]]
    affinity: NotRequired[TaskAffinity | None]
    anti_affinity: NotRequired[TaskAffinity | None]
    tags: NotRequired[Annotated[list[Name], Field(max_length=100)]]
    deadline_seconds: NotRequired[
        Annotated[Amount | None, Field(description="The time within which the task must have started")]
    ]
    duration_seconds: NotRequired[Annotated[Amount | None, Field(description="How long the task is expected to take")]]
    count: NotRequired[Annotated[int, Field(ge=1, le=1000, description="Default 1")]]
    wait: NotRequired[Annotated[bool, Field(description="If there is no place now, the task waits for one")]]
    own_lease: NotRequired[
        Annotated[bool, Field(description="All members are in one lease of their own, never in a boost")]
    ]


class TaskPlacement(TypedDict):
    node: Annotated[str, Field(description="The node that the work counts for: for work in a boost, its target")]
    delivery: Annotated[str, Field(description="reserve: a lease of its own; boost: room in an existing boost")]
    runs_on: Annotated[str, Field(description="The node whose hardware the work uses")]
    lease_id: str | None
    boost_id: str | None
    placement_group: str | None
    bundle: Annotated[int, Field(description="The number of its bundle in that placement group, from 1 on")]


class TaskAlternative(TypedDict):
    node: str
    score: float
    why: str


class TaskDecision(TypedDict):
    """The decision; the place outside `members` is that of the first member."""

    task_id: str
    accepted: bool
    node: str | None
    delivery: str | None
    lease_id: str | None
    boost_id: str | None
    placement_group: str | None
    confidence: Annotated[
        float,
        Field(description="probability (0 to 1) of a start in time on a node that then stays below the high threshold"),
    ]
    reasons: Annotated[list[str], Field(description="Why this node was chosen; or, for every node, why it was not")]
    alternatives: list[TaskAlternative]
    members: list[TaskPlacement]
    queued: bool
    position: int | None


class TaskStatus(TypedDict):
    task_id: str
    state: Annotated[str, Field(description="placed or waiting")]
    position: int | None
    target: str | None
    strategy: str
    priority: str
    count: int
    tags: list[str]
    resources: Amounts
    who: str
    team: str
    asked_at: str
    placed_at: str | None
    started_at: str | None
    confidence: float
    members: list[TaskPlacement]


ReliabilityBin = TypedDict(
    "ReliabilityBin", {"from": float, "to": float, "count": int, "said": float, "happened": float}
)
"""All placements with about the same predicted confidence."""


class Calibration(TypedDict):
    """How accurate the confidence was; null while there are no outcomes."""

    count: int
    base_rate: float | None
    brier_score: Annotated[float | None, Field(description="Mean squared distance between confidence and outcome")]
    base_rate_brier_score: Annotated[float | None, Field(description="The same for always predicting the base rate")]
    reliability: list[ReliabilityBin]


class ListedTasks(TypedDict):
    cut: Annotated[bool, Field(description="True if there are more tasks than fit into one answer")]
    tasks: list[TaskStatus]


class TaskList(ListedTasks):
    placed: int
    waiting: int
    decisions: dict[str, int]
    strategies: dict[str, str]
    calibration: Calibration


class TaskDone(TypedDict):
    task_id: str
    completed: bool
