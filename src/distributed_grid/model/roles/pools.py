"""Named parts of a cluster, which roles are mapped to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from distributed_grid.model.resources import CPU, GPU, MEMORY, units_of
from distributed_grid.model.roles import checks
from distributed_grid.model.roles.checks import Problems
from distributed_grid.model.roles.selectors import NodeSelector


@dataclass(frozen=True, slots=True)
class Pool:
    """At most so much of each kind that is named, on these nodes. Kinds that are not named have no limit."""

    name: str
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory_gb: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Custom Ray resources."""
    nodes: NodeSelector | Sequence[str] = ()
    """Names, or labels as "key=value". None given: all nodes."""

    def __post_init__(self) -> None:
        problems = Problems()
        for name, (check, otherwise) in _CHECKS.items():
            object.__setattr__(self, name, problems.checked(name, check, getattr(self, name), otherwise))
        if not problems.found and not self.quota and not self.nodes:
            problems.add((), "it has no limit and no nodes; give num_cpus, num_gpus, memory_gb, resources or nodes")
        problems.complain(f"The pool {self.name or '?'}")

    @property
    def where(self) -> NodeSelector:
        return NodeSelector.parse(self.nodes)

    @property
    def quota(self) -> dict[str, int]:
        """Units by kind; zero is a limit, too."""
        given = {CPU: self.num_cpus, GPU: self.num_gpus, MEMORY: self.memory_gb, **self.resources}
        return {kind: units_of(kind, amount) if amount else 0 for kind, amount in given.items() if amount is not None}


def _number_of(kind: str) -> Any:
    """A sum over many actors, so parts of GPUs add up to any amount."""
    return checks.or_none(checks.amount(CPU if kind == GPU else kind))


_CHECKS: Final[Mapping[str, tuple[Any, Any]]] = {
    "name": (checks.name, ""),
    "num_cpus": (_number_of(CPU), None),
    "num_gpus": (_number_of(GPU), None),
    "memory_gb": (_number_of(MEMORY), None),
    "resources": (checks.custom_amounts, {}),
    "nodes": (NodeSelector.parse, NodeSelector()),
}
