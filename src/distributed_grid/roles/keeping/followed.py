"""What is known of a run by those who follow signals for it: of one on Ray as of one in this process."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from distributed_grid.model.roles.workload import Workload


class Loaded(Protocol):
    """A member, by how busy it is."""

    @property
    def queue(self) -> int: ...

    @property
    def running(self) -> int: ...


class Counted(Protocol):
    def count(self, role: str) -> int:
        """How many it has, with those that are starting or are away for a moment."""

    def of_roles(self, roles: Iterable[str]) -> Sequence[Loaded]: ...


class Followed(Protocol):
    @property
    def workload(self) -> Workload: ...

    @property
    def crew(self) -> Counted: ...

    @property
    def wanted(self) -> dict[str, int]:
        """How many of each role there are to be."""

    @property
    def scaling(self) -> dict[str, str]:
        """What a role that scales last did, and why."""

    def note(self, told: str) -> None: ...
