"""Is a process heavy enough to be moved, what does it need, and how sure is it that this would help."""

import math
from typing import Final

from distributed_grid.decide.offloading.kinds import kind_of_process
from distributed_grid.model.offloading import FileRole, ProcessFacts, ProcessKind
from distributed_grid.model.resources import GB
from distributed_grid.model.since import span

HEAVY_CPU: Final = 0.5
HEAVY_MEMORY: Final = 1 * GB

_MEMORY_STEP: Final = GB // 4
_MEMORY_SLACK: Final = 1.2
_YOUNG_S: Final = 30.0
_LONG_S: Final = 3600.0


def would_use(facts: ProcessFacts) -> float:
    """Cores: on a busy machine a process gets less than it would use elsewhere."""
    return max(facts.cpu, facts.cpu_wanted)


def is_heavy(facts: ProcessFacts) -> bool:
    return would_use(facts) >= HEAVY_CPU or facts.memory >= HEAVY_MEMORY or facts.gpus > 0


def cpu_needed(facts: ProcessFacts) -> float:
    """Whole cores, at least one: what was measured over a moment is rounded up."""
    return float(max(1, math.ceil(would_use(facts) - 0.05)))


def memory_needed(facts: ProcessFacts) -> int:
    """Bytes: a fifth more than it has now, in quarters of a GB."""
    return max(1, math.ceil(facts.memory * _MEMORY_SLACK / _MEMORY_STEP)) * _MEMORY_STEP


def confidence(facts: ProcessFacts) -> tuple[float, str]:
    """0..1, and why. It begins anew on the other node: that costs what it has done, if it kept none of it."""
    sure, because = 0.9, [what_it_uses(facts)]
    kind = kind_of_process(facts)
    if kind is not ProcessKind.PYTHON:
        sure -= {ProcessKind.BUILD: 0.15, ProcessKind.SHELL: 0.2}.get(kind, 0.25)
        because.append(f"{'a shell script' if kind is ProcessKind.SHELL else f'kind {kind}'}: may hang on this machine")
    if facts.age_s < _YOUNG_S:
        sure -= 0.2
        because.append(f"only {span(facts.age_s)} old: it may soon be done")
    elif facts.age_s > _LONG_S:
        sure -= 0.2
        because.append(f"{span(facts.age_s)} old: what it has not saved is lost")
    if written := facts.files_of(FileRole.WRITTEN):
        sure -= 0.1
        because.append(f"writes {len(written)} file{'s' * (len(written) != 1)}")
    if not is_heavy(facts):
        sure -= 0.3
        because.append("too light to be worth it")
    return round(max(0.05, sure), 2), "; ".join(because)


def what_it_uses(facts: ProcessFacts) -> str:
    waits = would_use(facts) - facts.cpu
    starved = f" (and waits for {waits:.1f} more: its machine is busy)" if waits >= HEAVY_CPU / 2 else ""
    parts = [f"{facts.cpu:.1f} cores{starved}", f"{facts.memory / GB:.1f} GB"]
    if facts.gpus:
        parts.append(f"{facts.gpus} GPU{'s' * (facts.gpus != 1)}")
    return "uses " + ", ".join(parts)
