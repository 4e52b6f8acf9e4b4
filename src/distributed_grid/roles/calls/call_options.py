"""How calls to several members are made."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from distributed_grid.errors import InvalidRequest


class Errors(StrEnum):
    """What becomes of errors of calls to several."""

    RAISE = "raise"
    """When all have ended."""
    FIRST = "first"
    """As soon as one has failed: others may wait for it, and never end."""
    VALUES = "values"


class Unchanged:
    """What was not given stays as it is; None is a deadline, too."""


UNCHANGED: Final = Unchanged()


@dataclass(frozen=True, slots=True)
class CallOptions:
    deadline_s: float | None = None
    errors: Errors = Errors.RAISE
    at_once: int = 1

    def changed(
        self,
        deadline_s: float | Unchanged | None,
        errors: Errors | str | Unchanged,
        at_once: int | Unchanged,
    ) -> "CallOptions":
        return CallOptions(
            self.deadline_s if isinstance(deadline_s, Unchanged) else deadline_s,
            self.errors if isinstance(errors, Unchanged) else _errors(errors),
            self.at_once if isinstance(at_once, Unchanged) else _at_once(at_once),
        )


def _errors(value: Errors | str) -> Errors:
    try:
        return Errors(value)
    except ValueError:
        raise InvalidRequest(f"errors must be one of {', '.join(Errors)}, not {value!r}") from None


def _at_once(value: int) -> int:
    if value < 1:
        raise InvalidRequest(f"at_once must be 1 or more, not {value}")
    return value
