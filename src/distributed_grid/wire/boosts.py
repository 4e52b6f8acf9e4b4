"""Boosts: requests for them, their return, and what runs inside them."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import Amount, Amounts, Line, Name, Word, request


class RequestedAmount(TypedDict):
    """What every request for capacity must state."""

    target_node: Name
    resource_type: Name
    amount: Annotated[Amount, Field(description="Cores, devices or GB")]


class RequestedRange(TypedDict):
    """How far a request may grow."""

    at_most: NotRequired[
        Annotated[
            Amount | None,
            Field(
                description="It grows up to this while capacity is idle, and yields that to every request; `amount` is "
                "what it always has, 0 for none. For CPUs; the boost is then reserved"
            ),
        ]
    ]


class RequestedBounds(TypedDict):
    """The bounds of a request, also of one that is only planned."""

    priority: NotRequired[Annotated[Word, Field(description="Default normal")]]
    duration_seconds: NotRequired[Annotated[Amount | None, Field(description="Default 3600")]]
    source_node: NotRequired[Annotated[Name | None, Field(description="The only node that may lend it")]]
    source_nodes: NotRequired[
        Annotated[list[Name] | None, Field(max_length=64, description="The only nodes that may lend it, together")]
    ]
    max_sources: NotRequired[
        Annotated[
            int | None,
            Field(description="How many nodes may lend it together if no single node can; default 64"),
        ]
    ]
    delivery: NotRequired[Annotated[Word | None, Field(description="transfer, reserve or auto")]]


class PlannedRequest(RequestedAmount, RequestedRange, RequestedBounds):
    """What a request for capacity states. Its meaning is checked in one place, below the API."""


class RequestedLayout(TypedDict):
    """How many equal members a request has, and where they go."""

    members: NotRequired[
        Annotated[
            int | None,
            Field(
                description="How many equal members it has, 1 to 1000; amounts are those of one member. Each is whole "
                "on one node, and all are granted or none; the boost is then reserved, with a bundle for each member. "
                "Of a `run`, the members on one node share a bundle, and 1 keeps all of it on one node"
            ),
        ]
    ]
    layout: NotRequired[
        Annotated[
            Word | None,
            Field(
                description="Where the members go: pack (the default), on few nodes; spread, on many; strict_pack, all "
                "on one; strict_spread, each on a node of its own"
            ),
        ]
    ]


class RequestedTerms(RequestedRange, RequestedBounds, RequestedLayout):
    """The terms of a boost; each may be left out."""

    grace_seconds: NotRequired[Amount | None]
    on_grace_end: NotRequired[Annotated[Word | None, Field(description="What happens then to work that still uses it")]]
    reclaim_url: NotRequired[
        Annotated[
            Line | None,
            Field(description="The URL to notify before the boost is reclaimed; `watch:` if the holder watches for it"),
        ]
    ]
    along: NotRequired[
        Annotated[
            dict[Name, Amount] | None,
            Field(max_length=16, description="What the same lender lends with it, by kind; the boost is then reserved"),
        ]
    ]
    purpose: NotRequired[
        Annotated[
            Word, Field(description="boost (the default); run or task: the lease of one program, which ends with it")
        ]
    ]
    label: NotRequired[Annotated[Line, Field(description="What runs in it; the first 200 characters are kept")]]
    own_too: NotRequired[
        Annotated[bool, Field(description="The target may reserve it on itself if no other node lends it")]
    ]
    ends_with: NotRequired[
        Annotated[
            str | None,
            Field(
                max_length=56, description="The worker id of a Ray process: when Ray reports it as gone, the boost ends"
            ),
        ]
    ]

    idle_after: NotRequired[
        Annotated[
            Amount | None,
            Field(description="Seconds without use after which it is idle; `never`; default: as configured"),
        ]
    ]


class RequestedBoost(RequestedAmount, RequestedTerms):
    """A requested boost, whether the caller waits for it or not."""


class BoostOptions(RequestedTerms):
    """The terms of a boost whose caller may wait for it."""

    wait_seconds: NotRequired[Annotated[Amount, Field(description="Default 0; at most a day")]]


@request
class BoostRequest(RequestedAmount, BoostOptions):
    """What `grid boost request` sends."""


@request
class ReleaseRequest(TypedDict):
    amount: NotRequired[Annotated[Amount | None, Field(description="Give back only this much; all of it if left out")]]
    grace_seconds: NotRequired[Amount | None]
    wait_seconds: NotRequired[Annotated[Amount, Field(description="Default 1; at most an hour")]]


@request
class RenewRequest(TypedDict):
    duration_seconds: NotRequired[Amount | None]


class BoostNotice(TypedDict):
    """A reclaim notice: at the deadline, grid takes what the holder has not released."""

    amount: float | int
    reason: str
    asked_at: str
    deadline: str


class BoostClaimant(TypedDict):
    """The request that a boost yields to."""

    request_id: str
    requester: str
    team: str
    priority: str
    wants: str


class BoostEnding(TypedDict):
    """Why a boost is being returned or reclaimed, and what happens at the deadline."""

    cause: Annotated[
        str,
        Field(
            description="released, expired, preempted, idle, lender, cooldown, moved, unneeded, orphaned, lost, "
            "file_removed, ended_before or stopped"
        ),
    ]
    by: Annotated[str, Field(description="The user who requested the return, or grid by its policy")]
    reason: str
    asked_at: str | None
    deadline: Annotated[str | None, Field(description="The end of the grace period, which counts from asked_at")]
    on_grace_end: Annotated[
        str,
        Field(description="What happens to work that still uses it at the deadline"),
    ]
    claimant: BoostClaimant | None


class ReclaimMessage(BoostNotice):
    """The reclaim notice as its holder gets it: in its file, and by a request to its URL."""

    boost_id: str
    resource_type: str
    cause: NotRequired[str]
    by: NotRequired[str]
    claimant: NotRequired[BoostClaimant | None]
    ends_at: NotRequired[Annotated[str | None, Field(description="The end of the grace period")]]


class IdleMessage(TypedDict):
    """The report that a boost is idle, as the URL of its holder gets it. An answer may give the boost up."""

    boost_id: str
    resource_type: str
    amount: float | int
    reason: str
    cause: Annotated[str, Field(description="idle")]
    idle_since: str
    deadline: Annotated[None, Field(description="Always null: grid takes nothing yet")]


class BoostTerms(TypedDict):
    """What the request for a boost stated, and its requester."""

    requester: Annotated[str, Field(description='The requester; "grid" for boosts that grid made by itself')]
    team: str
    cause: Annotated[
        str,
        Field(
            description="asked: by a caller; scheduled: for a task; window: a window began; pressure, demand or "
            "forecast: by grid"
        ),
    ]
    purpose: Annotated[str, Field(description="boost; run, task or roles: the lease of a program, which ends with it")]
    label: Annotated[str, Field(description="What runs in it")]


class BoostPart(TypedDict):
    """What one of several lenders lends of a boost; a reservation has a bundle for each part."""

    source_node: str
    amount: float | int
    resources: Amounts
    reason: Annotated[str, Field(description="Why this lender, and why so much")]
    bundle: Annotated[int, Field(description="The number of its bundle in the placement group, from 1 on")]


class Boost(BoostTerms):
    boost_id: str
    source_node: Annotated[str, Field(description="The lender; of several, the first")]
    parts: Annotated[list[BoostPart], Field(description="What each lender lends; empty if there is only one")]
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
    notice: Annotated[BoostNotice | None, Field(description="The reclaim notice that its holder has")]
    checkpointed_at: Annotated[str | None, Field(description="When its holder last reported a checkpoint")]
    idle_since: Annotated[
        str | None, Field(description="Since when its work has not used it; null if it is in use, or that is not known")
    ]
    resources: Annotated[Amounts, Field(description="Everything that is lent, including companions of a reservation")]
    at_most: Annotated[float | int | None, Field(description="The most that an elastic boost grows to")]
    capacity: Annotated[Amounts, Field(description="What its work has now, including what it has grown by")]
    grown: Annotated[list[BoostPart], Field(description="What an elastic boost has grown by, for each lender")]
    ending: Annotated[BoostEnding | None, Field(description="Why it is being returned, for whom and by when")]
    programs: Annotated[list[str], Field(description="What grid run and grid boost shell run in it, shortened")]
    warnings: list[str]


class ListedBoosts(TypedDict):
    cut: Annotated[bool, Field(description="True if there are more boosts than fit into one answer")]
    boosts: list[Boost]


class BoostTotals(TypedDict):
    total_active: Annotated[int, Field(description="The number of active boosts, without the leases of programs")]
    resources: Annotated[Amounts, Field(description="The sum of these boosts for each kind")]
    hidden: NotRequired[Annotated[int, Field(description="Leases of programs that `grid boost status` omits")]]
    hidden_idle: NotRequired[Annotated[int, Field(description="How many of these are idle")]]


class BoostList(BoostTotals, ListedBoosts):
    """Totals of the active boosts, then every boost and every lease of a program."""


class BoostStatus(BoostList):
    problems: Annotated[list[str], Field(description="Current problems of the controller and its state files")]
    version: NotRequired[Annotated[str, Field(description="The version of the list; only in answers to `since`")]]
    since: NotRequired[
        Annotated[str, Field(description="`boosts` has only what changed since this version; without it, every boost")]
    ]
    ended: NotRequired[Annotated[list[str], Field(description="The ids of boosts that ended since that version")]]


class RayDriver(TypedDict):
    """The process at the beginning of a Ray job."""

    job_id: str
    pid: int
    address: Annotated[str, Field(description="The IP address of its machine")]
    began_at: Annotated[float, Field(description="Seconds since 1970")]
    run_id: Annotated[str, Field(description="Empty if the job names no run")]
    is_hooked: Annotated[bool, Field(description="Whether the hook, which puts its work into the lease, runs in it")]


class JobsWork(TypedDict):
    """The tasks and actors of some Ray jobs, and which of them run outside the boost."""

    running: int
    waiting: int
    done: int
    failed: int
    actors: int
    outside: Annotated[dict[str, int], Field(description="How many run outside the boost, by name")]
    unplaced: Annotated[
        int, Field(description="How many of the waiting tasks and of the actors that have not started wait for room")
    ]
    held_by_actors: Annotated[float, Field(description="CPUs of the boost that actors hold until they end")]
    cpus_in_use: Annotated[float, Field(description="CPUs of the boost in use now")]
    waits_for_its_actors: Annotated[
        bool, Field(description="True if work waits for room, and the jobs' own actors hold all CPUs that are in use")
    ]


class WorkStatus(JobsWork):
    drivers: Annotated[list[RayDriver], Field(description="The drivers of all Ray jobs that began after `since`")]


@request
class ProgramRequest(TypedDict):
    label: NotRequired[Annotated[str, Field(max_length=200, description="Its name in the boost's status")]]
    is_inside: NotRequired[Annotated[bool, Field(description="False: a shell is open, but no program runs in it")]]
    cpu_seconds: NotRequired[
        Annotated[
            float | None,
            Field(ge=0, le=10**12, description="CPU time of its processes since it began; null: not measured now"),
        ]
    ]


class ProgramAnswer(TypedDict):
    boost: Boost
    ends_in_seconds: Annotated[
        float | None, Field(description="Until the deadline; null while the boost is not reclaimed")
    ]


@request
class RayletRequest(TypedDict):
    head_address: Annotated[str, Field(max_length=200, description="HOST:PORT of the Ray head that it joins")]


@request
class RunReport(TypedDict):
    seconds: Annotated[float, Field(ge=0, le=10**9)]
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31)]
