"""Who has had how much lately: what a team used weighs on it, and half of that is forgotten every day."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from distributed_grid.model.leases import Lease
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.teams import Team

HALF_LIFE_S: Final = 24 * 3600.0
"""Leases last for about an hour and people work in days: who had much this morning lets others go first this
afternoon, and after some quiet days begins anew."""

_FORGOTTEN_S: Final = 1.0
"""What has faded below the whole cluster for this long is not kept."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a team had: its part of the cluster, in seconds, as it weighed at one moment."""

    used: float
    at: datetime


def charged(
    accounts: Mapping[str, Account], leases: Iterable[Lease], totals: ResourceVector, now: datetime
) -> dict[str, Account]:
    """The accounts with what was held since they were last charged; how often that is done makes no difference.

    A team is charged for its dominant share: the largest part that it holds of any kind, so that four of eight GPUs
    weigh as much as half of all CPUs.
    """
    held: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    began: dict[str, datetime] = {}
    for lease in leases:
        if lease.holds_capacity:
            began[lease.team] = min(lease.allocated_at, began.get(lease.team, lease.allocated_at))
            for kind, units in lease.resources.items():
                held[lease.team][kind] += units
    kept = {team: account for team, account in accounts.items() if _weight(account, now) >= _FORGOTTEN_S}
    for team, amounts in held.items():
        share = max((units / totals[kind] for kind, units in amounts.items() if totals[kind]), default=0.0)
        before = accounts.get(team)
        since = began[team] if before is None else max(before.at, began[team])
        kept[team] = Account((0.0 if before is None else _weight(before, now)) + share * _faded_s(since, now), now)
    return kept


def burden(team: Team, accounts: Mapping[str, Account], now: datetime) -> float:
    """What it used lately, by its weight: the lower, the sooner it is its turn."""
    account = accounts.get(team.name)
    used = 0.0 if account is None else _weight(account, now)
    return used / team.weight if team.weight > 0 else math.inf  # without a weight: after everybody else


def _weight(account: Account, now: datetime) -> float:
    return account.used * _left_after(account.at, now)


def _left_after(since: datetime, now: datetime) -> float:
    """The part that is not forgotten; a clock that was set back forgets nothing."""
    return float(2.0 ** (-max(0.0, (now - since).total_seconds()) / HALF_LIFE_S))


def _faded_s(since: datetime, now: datetime) -> float:
    """The seconds of this while, each by what is left of it: the first ones have faded most."""
    return HALF_LIFE_S / math.log(2) * (1.0 - _left_after(since, now))
