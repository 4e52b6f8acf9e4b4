"""The API's JSON, as OpenAPI describes it. The same shapes come out of every `--json`."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class BoostRequest(BaseModel):
    """What `grid boost request` sends. Its meaning is checked in one place, below the API."""

    model_config = ConfigDict(extra="forbid")

    target_node: str
    resource_type: str
    amount: float | str = Field(description="Cores, devices or GB")
    priority: str = "normal"
    duration_seconds: float | str | None = Field(None, description="Default 3600")
    source_node: str | None = None
    delivery: str | None = Field(None, description="transfer, reserve or auto")
    grace_seconds: float | str | None = None
    on_grace_end: str | None = Field(None, description="hold, drain or kill")
    wait_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0


class ReleaseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    grace_seconds: float | str | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 1.0


class RenewRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    duration_seconds: float | str | None = None


class StopRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    force: bool = False
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 30.0


class Boost(BaseModel):
    boost_id: str
    source_node: str
    target_node: str
    resource_type: str
    amount: float | int
    priority: str
    delivery: str
    delivery_reason: str
    state: str
    allocated_at: str
    expires_at: str
    placement_group: str | None
    warnings: list[str]


class BoostStatus(BaseModel):
    total_active: int
    resources: dict[str, float | int]
    boosts: list[Boost]


class NodeStatus(BaseModel):
    name: str
    node_id: str
    alive: bool
    is_head: bool
    base: dict[str, float | int]
    total: dict[str, float | int]
    free: dict[str, float | int]
    lent: dict[str, float | int]
    borrowed: dict[str, float | int]


class ControllerStatus(BaseModel):
    state: str
    url: str
    pid: int


class ClusterStatus(BaseModel):
    ray_address: str
    controller: ControllerStatus
    nodes: list[NodeStatus]
    boosts: BoostStatus
    problems: list[str] = []


class SharingStatus(BaseModel):
    enabled: bool
    mode: str
    policy: str
    delivery: str
    nodes: list[dict[str, Any]]


class EventList(BaseModel):
    events: list[dict[str, Any]]


class RunningConfig(BaseModel):
    digest: str
    source: str
    config: dict[str, Any]


class Stopped(BaseModel):
    released: int


class TokenRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="Whose it is; every line of the audit log has this name")
    team: str = ""
    scopes: list[str] = Field(["view"], max_length=16, description="view, lend, run, admin")
    expires_seconds: float | str | None = None


class Token(BaseModel):
    id: str
    name: str
    team: str
    scopes: list[str]
    created_at: str
    created_by: str
    expires_at: str | None


class NewToken(Token):
    token: str


class TokenList(BaseModel):
    tokens: list[Token]


class RevokedTokens(BaseModel):
    revoked: list[Token]


class Me(BaseModel):
    name: str
    team: str
    scopes: list[str]
    token_id: str | None
    expires_at: str | None


class ErrorBody(BaseModel):
    code: str
    message: str
    because: list[str]
    try_next: str | None
    exit_code: int


class ErrorAnswer(BaseModel):
    error: ErrorBody
