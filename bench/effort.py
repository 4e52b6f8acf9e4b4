"""How much is measured."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    """Of request and release, for each side of a comparison."""
    commands: int
    """Runs of a command line, for each side."""
    few: int
    many: int
    """How many boosts stand, in the benchmarks that ask whether that matters."""
    calls: int
    """Of what is measured beside standing boosts."""
    idle_s: float
    workers: int
    """Processes on the node whose probe is measured."""
    intervals: int
    """For which it is."""
    learning: int
    """Rounds of measuring before those that count: history and forecasts are to be as after a while."""
    decisions: int
    """Requests that are decided without a cluster."""
    waiting: int
    """Of which so many wait, where it is asked whether that matters."""
    sizes: tuple[int, ...]
    """On so many nodes; the third is where most is measured."""
    placements: int
    """Tasks that are placed without a cluster, to hold what was said of each against what happened."""
    parts: int
    """Of a program's work, 0.4 s each."""
    programs: int
    """How often it is run, on each side."""
    attacks: int
    """How often clients are measured with hostile ones beside them, and as often without."""
    attack_s: float
    """For how long, each time."""


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
    attacks=6,
    attack_s=10.0,
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
