"""Priorities, and sharing: what may happen at all (mode), and how readily (policy)."""

from enum import StrEnum
from typing import Final, Self

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.validators import one_of


class AllocationPriority(StrEnum):
    """low < normal < high < critical."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return _RANKS[self]

    @classmethod
    def parse(cls, value: "str | AllocationPriority") -> Self:
        return one_of("priority", cls, value)


_RANKS: Final = {priority: rank for rank, priority in enumerate(AllocationPriority)}


class _Named(StrEnum):
    @classmethod
    def parse(cls, value: str) -> Self:
        """By name, in upper or lower case; or `InvalidRequest`."""
        return one_of(cls.__name__.removeprefix("Sharing").lower(), cls, value)


class SharingMode(_Named):
    OFFLOAD_ONLY = "offload_only"  # work moves, capacity does not: leases are reservations
    SHARE_AND_OFFLOAD = "share_and_offload"  # capacity moves too, on request
    DYNAMIC_BALANCING = "dynamic_balancing"  # and grid acts by itself, as the policy says


class SharingPolicy(_Named):
    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    PREDICTIVE = "predictive"


CONFIGURED: Final = "configured"
"""In place of a policy or mode: the configured one."""


def check_change(policy: str | None, mode: str | None) -> tuple[SharingPolicy | None, SharingMode | None]:
    """The policy and mode to apply, None for the configured one; or `InvalidRequest`. `configured` alone is both."""
    if policy is None and mode is None:
        raise InvalidRequest(
            "Neither a policy nor a mode is given", try_next="Give one: grid resource-sharing policy set balanced"
        )
    return (
        None if policy is None or policy.lower() == CONFIGURED else SharingPolicy.parse(policy),
        None if mode is None or mode.lower() == CONFIGURED else SharingMode.parse(mode),
    )
