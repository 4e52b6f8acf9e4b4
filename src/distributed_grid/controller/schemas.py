"""The API's JSON, as OpenAPI describes it. Every `--json` has the same shapes."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# Every string, list and table of a request has a limit; `tests/attacks` checks the OpenAPI document for that.
Word = Annotated[str, Field(max_length=64)]
"""One of a few: a priority, a policy, a scope."""
Name = Annotated[str, Field(max_length=255)]
"""The name of a node, a kind of resource, a task, a tag."""
Line = Annotated[str, Field(max_length=1000)]
"""A sentence, a label, a URL."""
Amount = float | Word
"""A number, or text that is checked where its meaning is known."""


class BoostRequest(BaseModel):
    """What `grid boost request` sends. Its meaning is checked in one place, below the API."""

    model_config = ConfigDict(extra="forbid")

    target_node: Name
    resource_type: Name
    amount: Amount = Field(description="Cores, devices or GB")
    priority: Word = "normal"
    duration_seconds: Amount | None = Field(None, description="Default 3600")
    source_node: Name | None = None
    delivery: Word | None = Field(None, description="transfer, reserve or auto")
    grace_seconds: Amount | None = None
    on_grace_end: Word | None = Field(None, description="hold, drain or kill")
    wait_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0
    reclaim_url: Line | None = Field(None, description="Where to ask before it is taken back; watch: looks for itself")
    along: dict[Name, Amount] | None = Field(
        None, max_length=16, description="What the same lender gives with it, by kind; it is then reserved"
    )
    purpose: Word = Field("boost", description="boost; run or task: one program's, and it ends with that")
    label: Line = Field("", description="What runs in it; 200 characters of it are kept")
    own_too: bool = Field(False, description="The target may reserve it on itself if no other node lends it")
    ends_with: str | None = Field(
        None,
        max_length=56,
        description="A Ray process, by its worker id: when Ray says it is gone, the boost ends",
    )


class ReleaseRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    amount: Annotated[Amount | None, Field(description="Only so much of it; all, if not given")] = None
    grace_seconds: Amount | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 1.0


class RenewRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    duration_seconds: Amount | None = None


class StopRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    force: bool = False
    wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 30.0


class BoostNotice(BaseModel):
    """After the deadline what is asked is taken."""

    amount: float | int
    reason: str
    asked_at: str
    deadline: str


class BoostClaimant(BaseModel):
    """The request that a boost yields to."""

    request_id: str
    requester: str
    team: str
    priority: str
    wants: str


class BoostEnding(BaseModel):
    """Why a boost goes home, or is asked for; what still runs in it at the deadline is ended."""

    cause: str = Field(
        description="released, expired, preempted, lender, cooldown, moved, unneeded, orphaned, lost, file_removed, "
        "ended_before or stopped"
    )
    by: str = Field(description="Who asked: a person, or grid by its policy")
    reason: str
    asked_at: str | None
    deadline: str | None = Field(description="The end of the grace period, which counts from asked_at")
    claimant: BoostClaimant | None


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
    requester: str = Field(description="Who asked for it; grid, if grid did so by itself")
    team: str
    cause: str = Field(description="asked; pressure, demand or forecast, if grid made it by itself")
    notice: BoostNotice | None = Field(description="Its holder is asked to give something up")
    checkpointed_at: str | None = Field(description="When its holder last said that its work is saved")
    resources: dict[str, float | int] = Field(description="All that is lent, with what a reservation brings along")
    purpose: str = Field(description="boost; run or task: one program's, and it ends with that")
    label: str = Field(description="What runs in it")
    ending: BoostEnding | None = Field(description="Who asked for it, for whom and by when, if it goes home")
    programs: list[str] = Field(description="What grid run and grid boost shell have running in it, shortened")
    warnings: list[str]


class BoostStatus(BaseModel):
    total_active: int
    resources: dict[str, float | int]
    cut: bool = Field(False, description="There are more boosts, and they would have been too much for one answer")
    boosts: list[Boost]
    problems: list[str] = []
    """What is wrong with the controller or its state files just now."""


Amounts = dict[str, float | int]


class PressureStatus(BaseModel):
    """0 to 1; null where it is not measured."""

    overall: float
    cpu: float
    memory: float
    gpu: float | None
    own_cpu: float | None = Field(None, description="by its own processes; null where it has its machine to itself")
    own_memory: float | None = None


class NodeStatus(BaseModel):
    name: str
    node_id: str
    alive: bool
    is_head: bool
    labels: dict[str, str] = Field(description="the Ray labels of the node")
    base: Amounts
    total: Amounts
    used: Amounts
    free: Amounts
    lent: Amounts
    borrowed: Amounts
    withheld: Amounts = Field(description="free for Ray, and not lent since programs outside Ray use it")
    lendable: Amounts = Field(description="what it could lend to other nodes now, headroom and limits included")
    closed: str | None = Field(description="why nothing of it can be had now, not even by its own work")
    gpu_parts: list[float] = Field(description="parts of GPUs that placement groups hold; each is on one device")
    warnings: list[str] = Field(description="what was measured in use on it that Ray does not count")
    state: str = Field(description="ok; starting, until it was measured once; stale, if its probe fell silent; down")
    stale_because: str | None
    shares_its_host: bool | None
    taken_at: str | None
    seen_since: str | None
    measured_at: str | None
    age_seconds: float | None
    pressure: PressureStatus | None
    measured: dict[str, Any] | None = Field(description="host, own, gpus: cores and bytes")


class DemandStatus(BaseModel):
    shape: str
    resources: list[Amounts]
    labels: list[str]
    strategy: str | None
    placement_group: str | None
    count: int
    queued_on: dict[str, int]
    reason: str = Field(description="infeasible or waiting_for_capacity")
    detail: str
    could_run_on: list[str]
    wanted_on: list[str]
    since: str
    waited_seconds: float


class RecentHistory(BaseModel):
    """The mean pressure in each of so many equal parts of the last hour, oldest first; null where none is known."""

    window_seconds: float
    until: str
    series: dict[str, list[float | None]] = Field(description="overall, cpu, memory, gpu")


class ListedNode(NodeStatus):
    history: RecentHistory | None = Field(None, description="only with ?history=N")


class NodeList(BaseModel):
    nodes: list[ListedNode]


class DemandList(BaseModel):
    demand: list[DemandStatus]


class SuggestionStatus(BaseModel):
    node: str
    resource_type: str
    cause: str = Field(description="pressure, demand or forecast")
    what: str
    reason: str
    confidence: float = Field(description="0 to 1: that the node is, or will be, short of it")
    how_sure: str
    in_seconds: float | None = Field(description="when; null: it is so now")
    amount: float | int | None = Field(description="what can be lent; null where no node can")
    source_node: str | None
    command: str | None
    by_itself: bool = Field(description="whether the policy does this by itself, if it lasts")


class SuggestionList(BaseModel):
    suggestions: list[SuggestionStatus]


class NodeOutlook(NodeStatus):
    history: dict[str, Any]
    trends: dict[str, Any] = Field(description="per kind and window: slope per minute, and how much it rests on")
    forecast: dict[str, Any] = Field(description="per kind: value, interval, and how good such forecasts were; or null")
    pressed: list[str]
    demand: list[DemandStatus]
    cut: bool = Field(False, description="There are more boosts, and they would have been too much for one answer")
    boosts: list[Boost]


class RayDriver(BaseModel):
    """The process at the beginning of a Ray job."""

    job_id: str
    pid: int
    address: str = Field(description="of its machine")
    began_at: float = Field(description="in seconds since 1970")
    run_id: str = Field(description="empty if it belongs to no run, or does not say")
    is_hooked: bool = Field(description="the hook is in it, which puts its work into the run's lease")


class WorkStatus(BaseModel):
    """The tasks of some Ray jobs, and which of them are not in the boost."""

    running: int
    waiting: int
    done: int
    failed: int
    actors: int
    outside: dict[str, int] = Field(description="how many, by name")
    unplaced: int = Field(description="of the waiting, and of actors that have yet to start: those that wait for room")
    cpus_in_use: float = Field(description="of the boost's, now")
    waits_for_its_actors: bool = Field(description="some wait for room, and the jobs' own actors hold all CPUs in use")
    drivers: list[RayDriver] = Field(description="of all Ray jobs that began after `since`")


class ProgramRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    label: str = Field("", max_length=200, description="What it is called in boost status")
    is_inside: bool = Field(True, description="false: only a shell is open, and nothing runs in it now")


class Attended(BaseModel):
    boost: Boost
    ends_in_seconds: float | None = Field(description="Until the deadline; null while the boost is not reclaimed")


class RayletRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    head_address: str = Field(max_length=200, description="HOST:PORT of the Ray that it joins")


class RunReport(BaseModel):
    model_config = ConfigDict(extra="forbid")

    seconds: Annotated[float, Field(ge=0, le=10**9)]
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)]


class Noted(BaseModel):
    noted: bool


class ControllerStatus(BaseModel):
    state: str
    url: str
    pid: int


class QueuedRequest(BaseModel):
    request_id: str
    position: int | None = Field(description="1 is next; null where it was not looked at yet")
    target_node: str
    resource_type: str
    amount: float | int
    priority: str
    duration_seconds: float
    team: str
    requester: str
    since: str
    waited_seconds: float
    until: str | None
    reason: str = Field(description="What it waits for")
    expected_start: str | None = Field(description="From the known ends of boosts; null where none is in sight")
    expected_source: str | None


class ClusterStatus(BaseModel):
    cluster: str = Field(description="its name in the configuration")
    ray_address: str
    ray_auth_mode: str = Field(description="`token` if Ray asks for one, else `disabled`")
    controller: ControllerStatus
    nodes: list[NodeStatus]
    demand: list[DemandStatus] = Field(description="What waits in Ray's queues")
    waiting: int = Field(description="How many requests wait in grid's own queue")
    queue: list[QueuedRequest] = Field(description="The first of them, as `GET /requests` has them")
    suggestions: list[SuggestionStatus]
    boosts: BoostStatus
    problems: list[str] = []


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

    name: Word = Field(description="Whose it is; every line of the audit log has this name")
    team: Word = ""
    scopes: list[Word] = Field(["view"], max_length=16, description="view, lend, run, admin")
    expires_seconds: Amount | None = None
    max_priority: Word | None = Field(
        None, description="The highest priority it may ask for; null: its team's, or normal where that has none"
    )


class Token(BaseModel):
    id: str
    name: str
    team: str
    scopes: list[str]
    max_priority: str | None = Field(description="null: its team's, or normal where that has none")
    created_at: str
    created_by: str
    expires_at: str | None


class NewToken(Token):
    token: str


class TokenList(BaseModel):
    tokens: list[Token]


class RevokedTokens(BaseModel):
    revoked: list[Token]
    unwritten: str | None = None
    """Why the disk has not taken the revocation yet; null once it has. It is in force either way."""


class Me(BaseModel):
    name: str
    team: str
    scopes: list[str]
    max_priority: str = Field(description="The highest priority that it may ask for, as things are")
    token_id: str | None
    expires_at: str | None


class ErrorBody(BaseModel):
    code: str
    message: str
    because: list[str]
    try_next: str | None
    exit_code: int
    expected_start: str | None = Field(None, description="Of NO_CAPACITY: when it would be met if it waited; or null")


class ErrorAnswer(BaseModel):
    error: ErrorBody
