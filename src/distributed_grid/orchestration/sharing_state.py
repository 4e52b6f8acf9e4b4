"""What was decided about sharing since the start, beside the leases: policy, nodes that rest, who waits."""

from dataclasses import dataclass, field, replace

from distributed_grid.config import GridConfig
from distributed_grid.decide.fair_share import Account
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.model.waiting import Waiting
from distributed_grid.orchestration.scheduling_state import SchedulingState
from distributed_grid.store.sharing_file import SharingRecord


@dataclass
class SharingState:
    """Owned by the one writer."""

    configured_policy: SharingPolicy
    configured_mode: SharingMode
    set_policy: SharingPolicy | None = None
    set_mode: SharingMode | None = None
    cooling: set[NodeName] = field(default_factory=set)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By id, in the order in which they came."""
    accounts: dict[str, Account] = field(default_factory=dict)
    scheduling: SchedulingState = field(default_factory=SchedulingState)

    @classmethod
    def configured(cls, config: GridConfig) -> "SharingState":
        return cls(config.resource_sharing.policy, config.resource_sharing.mode)

    @property
    def policy(self) -> SharingPolicy:
        return self.set_policy or self.configured_policy

    @property
    def mode(self) -> SharingMode:
        return self.set_mode or self.configured_mode

    def take(self, record: SharingRecord) -> None:
        """Go on from what was on disk. What was decided since the start stays, where the disk was silent until now."""
        self.set_policy = self.set_policy or record.policy
        self.set_mode = self.set_mode or record.mode
        self.cooling |= set(record.cooling)
        self.waiting = {each.id: each for each in record.waiting} | self.waiting
        self.accounts = dict(record.accounts) | self.accounts
        self.scheduling.take(record.scheduling)

    def record(self) -> SharingRecord:
        """What goes to disk. Who waits on an open line asks again by itself, and is not kept."""
        return SharingRecord(
            self.set_policy,
            self.set_mode,
            tuple(sorted(self.cooling)),
            tuple(_without_nodes(each) for each in self.waiting.values() if each.is_kept),
            dict(self.accounts),
            self.scheduling.record(),
        )


def _without_nodes(waiting: Waiting) -> Waiting:
    """Which nodes will do is worked out anew before every plan."""
    return waiting if not waiting.ask.nodes else replace(waiting, ask=replace(waiting.ask, nodes=()))
