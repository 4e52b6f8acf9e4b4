"""Runs of roles. docs/api.md explains the fields."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import request


@request
class ScaleRole(TypedDict):
    role: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=0, le=1_000_000, strict=True)]


class RunOwner(TypedDict):
    node: str
    pid: int
    job_id: str
    worker_id: str
    user: Annotated[str, Field(description="The owner of the run: the token's user, or the process's user")]
    team: str


class RunHeader(TypedDict):
    name: str
    workload: str
    state: Annotated[
        str, Field(description="starting, running, degraded, stopping, ended, failed, or lost: its owner is gone")
    ]
    why: Annotated[str, Field(description="Why it failed, or is degraded or lost")]
    progress: Annotated[str, Field(description="The progress of its start")]
    owner: Annotated[RunOwner, Field(description="The process that owns it; the run ends with it")]
    began_at: str
    updated_at: str


class RoleRunShort(RunHeader):
    up: Annotated[int, Field(description="How many members are up")]
    wanted: int


class RoleRunList(TypedDict):
    runs: list[RoleRunShort]


class RoleOfRun(TypedDict):
    role: str
    asked: Annotated[list[int], Field(description="The minimum and the maximum number of members")]
    wanted: int
    up: int
    pool: str | None
    colocation_group: str | None
    colocation: str | None
    needs: dict[str, float]
    call_deadline_seconds: float | None
    failure_policy: str
    failures: int
    failure_budget: int | None
    scaling: str


class MemberOfRun(TypedDict):
    role: str
    rank: int
    node: str
    gpus: list[int | str]
    state: Annotated[str, Field(description="starting, up, silent, restarting, leaving, gone")]
    restarts: int
    queue: Annotated[int, Field(description="Calls that wait")]
    running: Annotated[int, Field(description="Calls in progress")]
    pid: int | None
    actor: str
    methods: list[str]
    concurrency: Annotated[int, Field(description="How many calls it handles at a time")]
    why: str


class HoldingOfRun(TypedDict):
    node: str
    pool: str | None
    resources: dict[str, float]
    boost_id: str | None


class EventOfRun(TypedDict):
    at: str
    message: str


class PendingCommand(TypedDict):
    counts: dict[str, int]
    down: bool
    at: str


class RunRecord(RunHeader):
    """What the owner of a run writes about it."""

    roles: list[RoleOfRun]
    members: list[MemberOfRun]
    holdings: Annotated[list[HoldingOfRun], Field(description="What is reserved for it")]
    events: list[EventOfRun]


class RoleRun(RunRecord):
    pending_command: Annotated[PendingCommand | None, Field(description="A command that its owner has not read yet")]


class RoleRunDown(TypedDict):
    name: str
    state: Annotated[str, Field(description="The run's state before this request")]
    removed: Annotated[
        bool, Field(description="True: the run was over, and its record is removed; false: its end was requested")
    ]
