"""Reclaims of a run's places: members are notified, keep their processes until the deadline, and may answer.

A role opts in with a method `on_reclaim(notice)`. Its calls continue meanwhile. If all members in a place answer True,
the place is returned at once; otherwise the controller takes it at the deadline. The processes in it are then handled
by their failure policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import ray

from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.roles.processes import Held
from distributed_grid.model.times import parse_instant, stamp
from distributed_grid.roles.calls.endpoints import Ref
from distributed_grid.roles.on_node.peers import wire_name
from distributed_grid.roles.supervision.managed import ManagedProcess
from distributed_grid.roles.supervision.parts import RunParts

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostEnding

ON_RECLAIM: Final = "on_reclaim"


@dataclass(slots=True)
class _Notified:
    """One place that is being reclaimed, and the answers that its members still owe."""

    waits: list[Ref]
    may_go: bool
    """So far, all members have answered that they are done."""


class Reclaims:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._notified: dict[str, _Notified] = {}

    def look(self) -> None:
        """Notify members whose place is newly being reclaimed, and release places whose members are done."""
        reclaimed = {
            held.boost_id: (held, ending)
            for held in self._p.held
            if held.boost_id is not None and (ending := self._p.places.ending_of(held)) is not None
        }
        self._notified = {boost_id: notified for boost_id, notified in self._notified.items() if boost_id in reclaimed}
        for boost_id, (held, ending) in reclaimed.items():
            if boost_id not in self._notified:
                self._notified[boost_id] = self._tell(held, ending)
            elif self._are_done(self._notified[boost_id]):
                self._notified[boost_id].may_go = False  # once
                where = f"{self._who(held)} on {held.holding.node}"
                self._p.note(f"the place of {where} is returned now: on_reclaim() returned True")
                self._p.places.let_go(held)

    def _tell(self, held: Held, ending: BoostEnding) -> _Notified:
        processes = self._in(held)
        until = "" if ending["deadline"] is None else f"; kept until {stamp(parse_instant(ending['deadline']))}"
        self._p.note(
            f"the place of {self._who(held)} on {held.holding.node} is being returned: {why_it_ends(ending)}{until}"
        )
        notice = {"boost_id": held.boost_id, **ending}
        refs: list[Ref] = []
        has_all = bool(processes)
        for process in processes:
            hooks = [role for role in process.key if ON_RECLAIM in self._p.process_set.hosting.methods(role)]
            has_all = has_all and bool(hooks)
            refs += [getattr(process.handle, wire_name(role, ON_RECLAIM)).remote(notice) for role in hooks]
        return _Notified(refs, has_all)

    def _are_done(self, notified: _Notified) -> bool:
        """Whether all members have answered True. A member that fails to answer keeps its place until the deadline."""
        if notified.waits:
            answered, notified.waits = ray.wait(
                notified.waits, num_returns=len(notified.waits), timeout=0, fetch_local=True
            )
            notified.may_go = notified.may_go and all(_says_done(ref) for ref in answered)
        return notified.may_go and not notified.waits

    def _in(self, held: Held) -> list[ManagedProcess]:
        there = [one for one in self._p.process_set.by_name.values() if one.held is held]
        return [one for one in there if one.handle is not None and one.status.is_alive]

    def _who(self, held: Held) -> str:
        return (
            ", ".join(process.title for process in self._p.process_set.by_name.values() if process.held is held)
            or "no member"
        )


def _says_done(answer: Ref) -> bool:
    try:
        return ray.get(answer) is True
    except Exception:  # noqa: BLE001 (whatever it is, it is not a yes)
        return False
