"""Processes that could move, and those that did."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import Amount, Name, request

EnvironmentEntry = Annotated[str, Field(max_length=4096)]


@request
class OffloadRequest(TypedDict):
    """What `grid offload execute` sends."""

    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    node: NotRequired[
        Annotated[Name | None, Field(description="The process's node; needed if several nodes have such a pid")]
    ]
    created_at: NotRequired[
        Annotated[
            float | None,
            Field(ge=0, le=1e12, description="As a scan reported it, so that the id cannot mean another process"),
        ]
    ]
    to: NotRequired[Annotated[Name, Field(description="A node, or auto (the default)")]]
    keep: NotRequired[Annotated[bool, Field(description="Leave the old process running")]]
    grace_seconds: NotRequired[
        Annotated[Amount, Field(description="Seconds that the process has to end before it is killed; default 10")]
    ]
    env: NotRequired[
        Annotated[
            list[EnvironmentEntry],
            Field(max_length=200, description="NAME: also copy this variable; NAME=VALUE: set it"),
        ]
    ]
    cpus: NotRequired[Annotated[Amount | None, Field(description="Instead of what was measured")]]
    memory: NotRequired[Annotated[Amount | None, Field(description="GB, instead of what was measured")]]
    gpus: NotRequired[Annotated[Amount | None, Field(description="Instead of what was measured")]]
    dry_run: NotRequired[Annotated[bool, Field(description="Check everything, and change nothing")]]


@request
class CancelOffload(TypedDict):
    grace_seconds: NotRequired[
        Annotated[Amount, Field(description="Seconds that the process has to end before it is killed; default 10")]
    ]


class OffloadObstacle(TypedDict):
    code: str
    detail: str


class OffloadNeeds(TypedDict):
    cpu: float
    memory: float
    gpu: float


class OffloadProcess(TypedDict):
    """A process as a scan finds it."""

    pid: int
    created_at: Annotated[
        float, Field(description="Seconds since its machine booted; with the pid, it identifies one process")
    ]
    node: str
    name: str
    kind: str
    command: Annotated[list[str], Field(description="The command line; arguments that look like secrets are hidden")]
    cwd: str
    user: str
    age_seconds: float
    cpu: Annotated[float, Field(description="Cores that it and the processes that it started use")]
    cpu_wanted: Annotated[float, Field(description="Cores that they would use if enough were idle")]
    memory: Annotated[float, Field(description="GB that they use")]
    gpus: int
    gpu_memory: float | None
    gpu_utilisation: float | None
    children: int


class OffloadCandidate(OffloadProcess):
    destination: Annotated[str | None, Field(description="The node to which it would move; null: it cannot move")]
    needs: OffloadNeeds
    confidence: float
    reason: str
    obstacles: list[OffloadObstacle]


class OffloadCandidates(TypedDict):
    candidates: list[OffloadCandidate]
    others: Annotated[list[OffloadCandidate], Field(description="Heavy processes that cannot move")]
    silent: Annotated[list[str], Field(description="Nodes that did not answer")]


class OffloadEnvironment(TypedDict):
    """Names only: only the process itself sees the values."""

    copied: list[str]
    given: list[str]
    left_behind: list[str]


class OffloadPlan(OffloadCandidate):
    keep: bool
    grace_seconds: float
    environment: OffloadEnvironment
    output: Annotated[
        str | None, Field(description="The file in which its output continues; null: a log on the other node")
    ]


class OffloadedProcess(TypedDict):
    offload_id: Annotated[str, Field(description="Also the id of the lease that it runs in")]
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


class OffloadAnswer(TypedDict):
    plan: Annotated[OffloadPlan | None, Field(description="What was or would be done; null for a repeated request")]
    offload: Annotated[OffloadedProcess | None, Field(description="The moved process; null for a dry run")]


class OffloadStatus(TypedDict):
    offloads: list[OffloadedProcess]


class LogPiece(TypedDict):
    text: str
    next: Annotated[int, Field(description="The offset at which the next piece begins")]
    more: Annotated[bool, Field(description="Whether the log was longer when this piece was read")]


class OffloadLog(LogPiece):
    is_over: bool
    path: str
    node: str
