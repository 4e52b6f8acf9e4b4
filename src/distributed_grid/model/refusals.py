"""Why a node cannot lend, or a team may not have it: every reason with its code, text and remedy. Add a reason here.

`decide/capacity/feasibility.py` says which reason applies to a node, `decide/capacity/quotas.py` which to a team.
Boosts, tasks and roles all show these texts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Facts(Protocol):
    """Facts by name, such as a mapping."""

    def __getitem__(self, fact: str, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Reason:
    text: str
    """Names in braces stand for facts about the node and the request (`NodeFacts` in `feasibility.py`)."""
    by_amount: bool = False
    """Only the amount is the obstacle: the node can lend less now, or this much once leases have returned."""
    passes: bool = False
    """The node may lend again by itself, or with a command; otherwise the request or the configuration must change."""
    remedy: str = ""
    """The remedy: what a person could change on {node}."""


class RefusalCode(StrEnum):
    """The reasons. Of several remedies, the first one in this order is the easiest."""

    reason: Reason

    CORDONED = (
        "Cordoned",
        Reason(
            "{cordoned} is cordoned; to let it share again: grid cooldown {cordoned} --off",
            passes=True,
            remedy="{node} is cordoned; to let it share again: grid cooldown {node} --off",
        ),
    )
    GPU_IN_USE = (
        "GpuInUse",
        Reason(
            "{free_for_ray} free for Ray, but {gpus_in_use}; {requested}",
            by_amount=True,
            remedy="end the programs that use GPUs of {node} beside Ray",
        ),
    )
    DISK_FULL = "DiskFull", Reason("{measured}", passes=True, remedy="free some disk space on {node}")
    KEPT_FREE = (
        "KeptFree",
        Reason(
            "{free} free, but {headroom}; {requested}",
            by_amount=True,
            remedy="a less conservative policy would let {node} lend what it keeps free",
        ),
    )
    LENDING_LIMIT_REACHED = (
        "LendingLimitReached",
        Reason(
            "{lent} of at most {limit} lent, {requested}",
            by_amount=True,
            remedy="a higher {limit_key} of {node} would help",
        ),
    )
    SHARING_DISABLED = (
        "SharingDisabled",
        Reason("its configuration says can_share: false", remedy="can_share: true on {node} would help"),
    )
    STALE = (
        "Stale",
        Reason("no recent measurement: {silent}", passes=True, remedy="{node} lends again once its probe answers"),
    )
    NODE_DOWN = (
        "NodeDown",
        Reason(
            "it is not connected to the cluster",
            passes=True,
            remedy="{node} is down, and would help if it were back",
        ),
    )
    IS_TARGET = "IsTarget", Reason("it is the target of the request")
    NOT_THE_SOURCE = "NotTheSource", Reason("the request names {source} as its source")
    RULED_OUT = "RuledOut", Reason("the task may not run there: {conditions}")
    IS_BORROWING = "IsBorrowing", Reason("it is borrowing {kind}, and borrowed capacity is not lent on")
    GPU_IN_PARTS = "GpuInParts", Reason("{free} free, but at most {device} on one device, {requested}", by_amount=True)
    NO_CAPACITY = "NoCapacity", Reason("{free} free, {requested}", by_amount=True)
    TOO_FEW_FIT = (
        "TooFewFit",
        Reason("it has room for {count} of {members} members, which are granted all or none", passes=True),
    )
    OTHERS_AHEAD = "OthersAhead", Reason("its free capacity is held for {ahead}", passes=True)
    RESERVED_FOR_WINDOW = (
        "ReservedForWindow",
        Reason("promised to the window {window} from {begin} to {end}", passes=True),
    )
    # These two concern the request's team, whichever node would lend.
    TEAM_LIMIT_REACHED = "TeamLimitReached", Reason("team {team} has {held} of at most {limit}, {asked}")
    KEPT_FOR_TEAMS = "KeptForTeams", Reason("other teams keep {kept} for themselves: {left} left, {asked}")

    def __new__(cls, code: str, reason: Reason) -> "RefusalCode":
        made = str.__new__(cls, code)
        made._value_ = code
        made.reason = reason
        return made

    def message(self, facts: Facts) -> str:
        """The text with these facts."""
        return self.reason.text.format_map(facts)
