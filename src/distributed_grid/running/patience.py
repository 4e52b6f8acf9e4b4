"""How long a program that was asked to end may take for it."""

from dataclasses import dataclass
from typing import Final

from distributed_grid.running.signals import Told

UNATTENDED_S: Final = 5.0
TYPED_S: Final = 30.0
"""Whoever types Ctrl-C is there to type it again: the program may take its time to save what it has."""
HINT_S: Final = 3.0
_ECHO_S: Final = 1.0
"""One request may come as several signals: `timeout` sends to a process and to its group, systemd TERM and HUP."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody has asked for the program's end, then."""

    by: Told
    at: float
    is_hinted: bool = False

    def is_insisted_on(self, told: Told, now: float) -> bool:
        """Whether this one means: now."""
        return told.is_typed or told.sender != self.by.sender or now - self.at > _ECHO_S

    def is_over(self, now: float) -> bool:
        return now - self.at > (TYPED_S if self.by.is_typed else UNATTENDED_S)

    def wants_a_hint(self, now: float) -> bool:
        """Whether a person who waits should be told how it goes faster."""
        return self.by.is_typed and not self.is_hinted and now - self.at > HINT_S
