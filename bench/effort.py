"""How much is measured."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    """Rounds of request and release, for each side of a comparison."""
    commands: int
    """Runs of a command line, for each side."""
    few: int
    many: int
    """Standing boosts, in the benchmarks of their effect."""
    calls: int
    """Calls that are measured beside standing boosts."""
    idle_s: float
    workers: int
    """Processes on the node whose probe is measured."""
    intervals: int
    """Intervals for which that probe is measured."""
    learning: int
    """Measuring rounds before those that count, to fill history and forecasts."""
    decisions: int
    """Requests that are decided without a cluster."""
    waiting: int
    """Waiting requests, in the benchmarks of their effect."""
    sizes: tuple[int, ...]
    """Numbers of nodes; most is measured at the third."""
    placements: int
    """Tasks placed without a cluster, to compare each prediction with the outcome."""
    parts: int
    """Parts of a program's work, 0.4 s each."""
    programs: int
    """Runs of that program, on each side."""
    attacks: int
    """Measurements of clients beside hostile ones of each kind, and as many without."""
    attack_s: float
    """The length of each, in seconds."""


FULL: Final = Effort(
    rounds=60,
    commands=15,
    few=10,
    many=1000,
    calls=30,
    idle_s=10.0,
    workers=30,
    intervals=6,
    learning=100,
    decisions=50_000,
    waiting=300,
    sizes=(10, 30, 100, 300, 1000),
    placements=5_000,
    parts=50,
    programs=4,
    attacks=3,
    attack_s=60.0,
)
QUICK: Final = Effort(
    rounds=15,
    commands=5,
    few=10,
    many=200,
    calls=10,
    idle_s=3.0,
    workers=5,
    intervals=1,
    learning=10,
    decisions=2_000,
    waiting=100,
    sizes=(10, 30, 100),
    placements=500,
    parts=24,
    programs=2,
    attacks=2,
    attack_s=5.0,
)
