"""The JSON of scheduling: tasks, their placements, and the accuracy of predictions."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from distributed_grid.controller.schemas import Amount, Amounts, Name, Word


class TaskAffinity(BaseModel):
    """Near to these, or far from them; each part that is given counts."""

    model_config = ConfigDict(extra="forbid")

    nodes: list[Name] = Field([], max_length=1000)
    labels: dict[Name, Name] = Field({}, max_length=100)
    tasks: list[Name] = Field([], max_length=1000, description="Tasks that have a place, by id or tag")
    required: bool = Field(True, description="false: only where it can be had")


class TaskRequest(BaseModel):
    """One task, or a gang of equal ones. Its meaning is checked in one place, below the API."""

    model_config = ConfigDict(extra="forbid")

    task_id: Name = Field("", description="Made if it is not given; who asks again with the same gets the same answer")
    cpu: Amount = 1.0
    memory: Amount = Field(0.0, description="GB")
    gpu: Amount = 0.0
    custom: dict[Name, Amount] = Field({}, max_length=16, description="Custom Ray resources")
    target: Name | None = Field(None, description="Whose task it is; the head, if not given")
    node: Name | None = Field(None, description="The only node that will do")
    strategy: Word = Field("", description="local_first, unless a node is given")
    priority: Word = "normal"
    affinity: TaskAffinity | None = None
    anti_affinity: TaskAffinity | None = None
    tags: list[Name] = Field([], max_length=100)
    deadline_seconds: Amount | None = Field(None, description="It must have started by then")
    duration_seconds: Amount | None = Field(None, description="How long it is expected to take")
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    wait: bool = Field(False, description="Where there is no place now, it waits for one")


class TaskPlacement(BaseModel):
    node: str = Field(description="Where it counts as placed: work in a boost is its target's")
    delivery: str = Field(description="reserve: a lease made for it; boost: part of one that there was")
    runs_on: str = Field(description="Whose hardware it is")
    lease_id: str | None
    boost_id: str | None
    placement_group: str | None


class TaskAlternative(BaseModel):
    node: str
    score: float
    why: str


class TaskDecision(BaseModel):
    """What is shown beside `members` is the first one's."""

    task_id: str
    accepted: bool
    node: str | None
    delivery: str | None
    lease_id: str | None
    boost_id: str | None
    placement_group: str | None
    confidence: float = Field(
        description="0 to 1 that it starts in time and that its node then stays below the high threshold"
    )
    reasons: list[str] = Field(description="Why there; or, for every node, why not")
    alternatives: list[TaskAlternative]
    members: list[TaskPlacement]
    queued: bool
    position: int | None


class TaskStatus(BaseModel):
    task_id: str
    state: str = Field(description="placed or waiting")
    position: int | None
    target: str
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


class ReliabilityBin(BaseModel):
    """All placements of which about the same was said."""

    model_config = ConfigDict(populate_by_name=True)

    from_: float = Field(alias="from")
    to: float
    count: int
    said: float
    happened: float


class Calibration(BaseModel):
    """null while nothing has happened yet."""

    count: int
    base_rate: float | None
    brier_score: float | None = Field(description="Mean squared distance of what was said from what happened")
    base_rate_brier_score: float | None = Field(description="The same for always saying the base rate")
    reliability: list[ReliabilityBin]


class TaskList(BaseModel):
    placed: int
    waiting: int
    cut: bool = Field(False, description="There are more tasks, and they would have been too much for one answer")
    tasks: list[TaskStatus]
    decisions: dict[str, int]
    strategies: dict[str, str]
    calibration: Calibration


class TaskDone(BaseModel):
    task_id: str
    completed: bool
