"""Roles that scale, in local mode: their signals are followed as with Ray, by a thread beside the members."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.groups import RoleGroup
from distributed_grid.roles.keeping.followed import Counted, Followed
from distributed_grid.roles.keeping.following import Following
from distributed_grid.roles.keeping.reading import SignalReader

_TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LocalParts:
    """See `Followed`."""

    workload: Workload
    crew: Counted
    note: Callable[[str], None]
    wanted: dict[str, int] = field(default_factory=dict)
    """Nothing: who is asked for is there, or will not be."""
    scaling: dict[str, str] = field(default_factory=dict)


class LocalFollowing:
    """Begins where there is something to follow. Its thread does not keep the process alive."""

    def __init__(
        self, followed: Followed, group: Callable[[str], RoleGroup[Any]], scale: Callable[[str, int], None]
    ) -> None:
        self._followed, self._scale = followed, scale
        self._following = Following(followed, SignalReader(followed, group).read)
        self._over = threading.Event()
        if any(role.scaling is not None for role in followed.workload.roles):
            threading.Thread(target=self._serve, name="grid-roles-signals", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(_TICK_S):
            try:
                for role, count in self._following.wanted():
                    self._towards(role, count)
            except RuntimeError:  # the run, or the process, ends meanwhile: nobody reads any more
                if self._over.is_set():
                    return

    def _towards(self, role: str, count: int) -> None:
        """Members that do not come up change nothing: the signal is asked again after a rest."""
        try:
            self._scale(role, count)
        except Exception as error:  # noqa: BLE001 (constructors raise anything, and the run goes on)
            if not self._over.is_set():
                self._followed.note(f"{role} does not have {count} members: {error}")
