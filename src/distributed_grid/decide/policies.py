"""The policies, as numbers: one row each. Nothing else in the code knows their names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Headroom
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.series import Forecast

NOTHING_EXPECTED: Final[Mapping[tuple[NodeName, str], Forecast]] = {}


@dataclass(frozen=True, slots=True)
class PolicyNumbers:
    """How readily capacity moves. `docs/sharing.md` shows this table; a test holds the two together."""

    headroom_of_base: float | None
    """The part of its base that a lender keeps free; None: the configured `excess_threshold`."""
    headroom_of_idle: float
    """The part of its idle capacity that a lender keeps."""
    acts_by_itself: bool
    """Whether grid borrows, returns and moves without a request."""
    high_rounds: int
    """For how many rounds in a row a node must be under pressure, or work must wait, before the node borrows."""
    low_rounds: int
    """For how many rounds in a row a node must be relieved before it returns what it borrowed."""
    foresees: bool
    """Whether grid acts on the forecast, and lets a lender keep what it is expected to need."""
    preempts: bool
    """Whether a request may preempt leases of lower priority."""
    min_hold_s: float
    """No lease is reclaimed, and none that grid made is returned or moved, before it is this old."""
    changes_per_round: int
    """The most that grid does by itself in one round."""


POLICIES: Final[Mapping[SharingPolicy, PolicyNumbers]] = {
    SharingPolicy.CONSERVATIVE: PolicyNumbers(
        headroom_of_base=0.0,
        headroom_of_idle=0.5,
        acts_by_itself=False,
        high_rounds=5,
        low_rounds=5,
        foresees=False,
        preempts=False,
        min_hold_s=300.0,
        changes_per_round=1,
    ),
    SharingPolicy.BALANCED: PolicyNumbers(
        headroom_of_base=None,
        headroom_of_idle=0.0,
        acts_by_itself=True,
        high_rounds=3,
        low_rounds=3,
        foresees=False,
        preempts=True,
        min_hold_s=60.0,
        changes_per_round=2,
    ),
    SharingPolicy.AGGRESSIVE: PolicyNumbers(
        headroom_of_base=0.05,
        headroom_of_idle=0.0,
        acts_by_itself=True,
        high_rounds=1,
        low_rounds=2,
        foresees=False,
        preempts=True,
        min_hold_s=15.0,
        changes_per_round=4,
    ),
    SharingPolicy.PREDICTIVE: PolicyNumbers(
        headroom_of_base=0.0,
        headroom_of_idle=0.0,
        acts_by_itself=True,
        high_rounds=2,
        low_rounds=3,
        foresees=True,
        preempts=True,
        min_hold_s=60.0,
        changes_per_round=2,
    ),
}


def numbers_under(policy: SharingPolicy, excess_threshold: float, min_hold_s: float | None = None) -> PolicyNumbers:
    """A policy's numbers; the configured ones go before its own."""
    found = POLICIES[policy]
    if found.headroom_of_base is None:
        found = replace(found, headroom_of_base=excess_threshold)
    return found if min_hold_s is None else replace(found, min_hold_s=min_hold_s)


def headroom_under(
    policy: SharingPolicy,
    excess_threshold: float,
    expected: Mapping[tuple[NodeName, str], Forecast] = NOTHING_EXPECTED,
) -> Headroom:
    """The headroom of a lender under a policy. `expected`: what nodes will use while a lease lasts, if forecast."""
    numbers = POLICIES[policy]
    of_base = None if numbers.foresees else numbers.headroom_of_base
    found = Headroom(str(policy), excess_threshold if of_base is None else of_base, numbers.headroom_of_idle)
    if not numbers.foresees or not expected:
        return found
    # Until there is an interval, keep as much as `balanced` would.
    foreseen = {key: one.high if one.enough_history else one.value + excess_threshold for key, one in expected.items()}
    return replace(found, of_base=0.0, foreseen=foreseen)
