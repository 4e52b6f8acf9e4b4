"""The JSON of processes that could move, and of those that did."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from distributed_grid.controller.schemas import Amount, Name

EnvironmentEntry = Annotated[str, Field(max_length=4096)]


class OffloadRequest(BaseModel):
    """What `grid offload execute` sends."""

    model_config = ConfigDict(extra="forbid")

    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    node: Annotated[Name | None, Field(description="Where it is; needed if several nodes have such a process")] = None
    created_at: Annotated[
        float | None, Field(ge=0, le=1e12, description="As a scan told it, so that no other is meant")
    ] = None
    to: Annotated[Name, Field(description="A node, or auto")] = "auto"
    keep: Annotated[bool, Field(description="Leave the old process as it is")] = False
    grace_seconds: Annotated[Amount, Field(description="How long it has to end before it is killed")] = 10.0
    env: Annotated[
        list[EnvironmentEntry],
        Field(max_length=200, description="NAME: copy it, though it is not on the list; NAME=VALUE: set it"),
    ] = []
    cpus: Annotated[Amount | None, Field(description="Instead of what was measured")] = None
    memory: Annotated[Amount | None, Field(description="GB, instead of what was measured")] = None
    gpus: Annotated[Amount | None, Field(description="Instead of what was measured")] = None
    dry_run: Annotated[bool, Field(description="Check everything, and change nothing")] = False


class CancelOffload(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grace_seconds: Annotated[Amount, Field(description="How long it has to end before it is killed")] = 10.0


class OffloadObstacle(BaseModel):
    code: str
    detail: str


class OffloadNeeds(BaseModel):
    cpu: float
    memory: float
    gpu: float


class OffloadCandidate(BaseModel):
    pid: int
    created_at: float = Field(
        description="Seconds after its machine's boot: with the pid it names one process for good"
    )
    node: str
    name: str
    kind: str
    command: list[str] = Field(description="Without what looks like a secret")
    cwd: str
    user: str
    age_seconds: float
    cpu: float = Field(description="Cores in use, with all that it started")
    cpu_wanted: float = Field(description="Cores that it would use if none were busy")
    memory: float = Field(description="GB, likewise")
    gpus: int
    gpu_memory: float | None
    gpu_utilisation: float | None
    children: int
    destination: str | None = Field(description="Where it would go")
    needs: OffloadNeeds
    confidence: float
    reason: str
    obstacles: list[OffloadObstacle]


class OffloadCandidates(BaseModel):
    candidates: list[OffloadCandidate]
    others: list[OffloadCandidate] = Field(description="Heavy, too, but something is in the way")
    silent: list[str] = Field(description="Nodes that did not answer")


class OffloadEnvironment(BaseModel):
    """Names only: only the process itself sees the values."""

    copied: list[str]
    given: list[str]
    left_behind: list[str]


class OffloadPlan(OffloadCandidate):
    keep: bool
    grace_seconds: float
    environment: OffloadEnvironment
    output: str | None = Field(description="The file in which its output goes on; none: a log on the other node")


class OffloadedProcess(BaseModel):
    offload_id: str = Field(description="Also the id of the lease that it runs in")
    label: str
    state: str
    from_node: str
    from_pid: int
    to_node: str
    pid: int | None
    exit_code: int | None
    why: str | None
    requester: str
    kept: bool
    began_at: str
    ended_at: str | None
    output: str


class OffloadAnswer(BaseModel):
    plan: OffloadPlan | None = Field(description="What was or would be done; none for a repeated request")
    offload: OffloadedProcess | None = Field(description="What runs now; none for a dry run")


class OffloadStatus(BaseModel):
    offloads: list[OffloadedProcess]


class OffloadLog(BaseModel):
    text: str
    next: int = Field(description="Where the next piece begins")
    more: bool = Field(description="Whether more was there already when this piece was read")
    is_over: bool
    path: str
    node: str
