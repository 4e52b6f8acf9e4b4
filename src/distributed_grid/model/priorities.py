"""How urgent a request is."""

from enum import StrEnum
from typing import Self

from distributed_grid.errors import InvalidRequest


class AllocationPriority(StrEnum):
    """low < normal < high < critical."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(type(self)).index(self)

    @classmethod
    def parse(cls, value: "str | AllocationPriority") -> Self:
        try:
            return cls(str(value).lower())
        except ValueError:
            raise InvalidRequest(f"Unknown priority: {value!r}", try_next=f"Use one of: {', '.join(cls)}.") from None
