"""What was decided about sharing since the start, beside the leases: policy, nodes that rest, who waits."""

from dataclasses import dataclass, field

from distributed_grid.config import GridConfig
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.model.waiting import Waiting


@dataclass
class SharingState:
    """Owned by the one writer."""

    policy: SharingPolicy
    mode: SharingMode
    cooling: set[NodeName] = field(default_factory=set)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By id, in the order in which they came."""

    @classmethod
    def configured(cls, config: GridConfig) -> "SharingState":
        return cls(config.resource_sharing.policy, config.resource_sharing.mode)
