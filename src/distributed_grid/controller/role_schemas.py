"""The JSON of runs of roles. docs/api.md has the meaning."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ScaleRole(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Annotated[str, Field(min_length=1, max_length=200)]
    count: Annotated[int, Field(ge=0, le=1_000_000, strict=True)]


class RunOwner(BaseModel):
    node: str
    pid: int
    job_id: str
    worker_id: str
    user: str = Field("", description="To whom the run belongs: the token's user, or that of the process")
    team: str = ""


class RoleRunShort(BaseModel):
    name: str
    workload: str
    state: str = Field(description="starting, running, degraded, stopping, ended, failed, or lost: its owner is gone")
    why: str = Field(description="Why it failed, is degraded or lost")
    progress: str = Field(description="How its start is getting on")
    owner: RunOwner = Field(description="The process that keeps it; the run ends with it")
    began_at: str
    updated_at: str
    up: int = Field(description="Members that answer")
    wanted: int


class RoleRunList(BaseModel):
    runs: list[RoleRunShort]


class RoleOfRun(BaseModel):
    role: str
    asked: list[int] = Field(description="The least and the most")
    wanted: int
    up: int
    pool: str | None
    colocation_group: str | None
    colocation: str | None
    needs: dict[str, float]
    failure_policy: str
    failures: int
    failure_budget: int | None
    scaling: str


class MemberOfRun(BaseModel):
    role: str
    rank: int
    node: str | None
    gpus: list[int | str]
    state: str = Field(description="starting, up, silent, restarting, leaving, gone")
    restarts: int
    queue: int = Field(description="Calls that wait")
    running: int = Field(description="Calls under way")
    pid: int | None
    actor: str
    methods: list[str]
    concurrency: int = Field(description="Calls that it works on at a time")
    why: str


class HoldingOfRun(BaseModel):
    node: str
    pool: str | None
    resources: dict[str, float]
    boost_id: str | None


class EventOfRun(BaseModel):
    at: str
    told: str


class PendingCommand(BaseModel):
    counts: dict[str, int]
    down: bool
    at: str


class RoleRun(BaseModel):
    name: str
    workload: str
    state: str
    why: str
    progress: str
    owner: RunOwner
    began_at: str
    updated_at: str
    roles: list[RoleOfRun]
    members: list[MemberOfRun]
    holdings: list[HoldingOfRun] = Field(description="What is reserved for it")
    events: list[EventOfRun]
    pending_command: PendingCommand | None = Field(description="What was asked of it, and its owner has not heard yet")


class RoleRunDown(BaseModel):
    name: str
    state: str = Field(description="Before it was asked")
    removed: bool = Field(description="It was over, and is forgotten; else it was asked to end")
