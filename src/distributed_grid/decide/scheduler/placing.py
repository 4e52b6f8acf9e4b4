"""The place of one task, or of a gang: all members or none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from distributed_grid.decide.scheduler.feasibility import (
    BoostRoom,
    Sought,
    all_at_once,
    allowed,
    feasible,
    fits_itself,
    preferred,
    stays_together,
    why_not,
)
from distributed_grid.decide.scheduler.strategies import strategy_named
from distributed_grid.decide.scheduler.table import Floats, Mask
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.scheduling import Alternative

_ALTERNATIVES: Final = 3
_PREFERRED: Final = 1e6
"""Preferences outweigh every score."""

_LAST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one task goes."""

    node: NodeName
    boost: BoostRoom | None = None
    """The boost that carries the task; None: the node itself does."""
    alternatives: tuple[Alternative, ...] = ()
    could: int = 1
    """How many nodes could have carried the task."""

    @property
    def runs_on(self) -> NodeName:
        return self.node if self.boost is None else self.boost.runs_on


def choose(sought: Sought) -> Choice | None:
    """The best node that can carry the task; None if none can. Nothing changes: see `promise`."""
    mask = feasible(sought)
    could = int(np.count_nonzero(mask))
    if not could:
        return None
    scores = _scores(sought, mask)
    row = int(np.argmax(scores))  # argmax takes the first of equal ones, and rows are in name order
    boost = None if row != sought.home or fits_itself(sought, row) else sought.carrier()
    return Choice(sought.columns.names[row], boost, _others(sought, scores, row, could), could)


def choose_boost(sought: Sought) -> Choice | None:
    """A place in one of the target's boosts; None if none can carry the task."""
    home, boost = sought.home, sought.carrier()
    if home < 0 or boost is None or sought.columns.cordoned[home]:
        return None
    mask = sought.columns.named([sought.target])
    return Choice(sought.target, boost) if allowed(sought, mask).any() else None


def order_of(sought: Sought) -> tuple[NodeName, ...]:
    """All nodes that the task's own conditions allow, the best first, whether they have room now or not."""
    mask = allowed(sought, np.ones(len(sought.columns), dtype=bool))
    rows = np.argsort(-_scores(sought, mask), kind="stable")[: np.count_nonzero(mask)]
    return tuple(sought.columns.names[row] for row in rows.tolist())


def _scores(sought: Sought, mask: Mask) -> Floats:
    scores = np.asarray(strategy_named(str(sought.request.strategy)).scorer(sought.columns, sought), dtype=np.float64)
    if scores.shape != mask.shape:
        raise ValueError(f"the strategy {sought.request.strategy} gave {scores.shape} scores for {mask.shape} nodes")
    if (scored := preferred(sought)) is not None:
        scores = scores + _PREFERRED * scored
    # A node without a valid score goes last, but it can still carry the task.
    found: Floats = np.where(mask, np.nan_to_num(scores, nan=-_LAST, posinf=_LAST, neginf=-_LAST), -np.inf)
    return found


def _others(sought: Sought, scores: Floats, best: int, could: int) -> tuple[Alternative, ...]:
    count = min(_ALTERNATIVES, could - 1)
    if count <= 0:
        return ()
    rest, names, found = scores.copy(), sought.columns.names, []
    rest[best] = -np.inf
    for _ in range(count):  # faster than sorting for so few
        row = int(np.argmax(rest))
        found.append(Alternative(names[row], round(float(rest[row]), 4), _reason(sought, row)))
        rest[row] = -np.inf
    return tuple(found)


def _reason(sought: Sought, row: int) -> str:
    if row == sought.home and not fits_itself(sought, row):
        return "in a boost"
    return f"{sought.left[row]:.0%} of it would be left"


def promise(sought: Sought, choice: Choice, times: int = 1) -> Sought:
    """Count a choice as taken (or, with -1, as returned), and continue with what is left."""
    if choice.boost is None:
        sought.columns.promise(sought.columns.row[choice.node], sought.needs, times)
        return replace(sought)
    if times < 0:
        return sought
    boosts = tuple(b.less(sought.needs) if b.id == choice.boost.id else b for b in sought.boosts)
    return replace(sought, boosts=boosts)


def choose_gang(sought: Sought, count: int) -> tuple[Choice, ...] | None:
    """Places for all members, or None. The table is unchanged afterwards."""
    found = places_for(sought, count)
    return found if len(found) == count else None


def choose_in_boosts(sought: Sought, count: int) -> tuple[Choice, ...] | None:
    """The same in the target's boosts only."""
    found = places_for(sought, count, choose_boost)
    return found if len(found) == count else None


def places_for(sought: Sought, count: int, choose: Callable[[Sought], Choice | None] = choose) -> tuple[Choice, ...]:
    """Places for as many members as fit.

    Members are placed one after another by the strategy. They are all equal, so no member takes room that another needs
    more: if there is room for all, all are placed. Where all must be on one node, one boost must have room for all.
    """
    if stays_together(sought):
        choice = choose(all_at_once(sought, count))
        return () if choice is None else (choice,) * count
    found: list[Choice] = []
    left = sought
    try:
        while len(found) < count and (choice := choose(left)) is not None:
            found.append(choice)
            left = _with_peer(promise(left, choice), choice.node)
    finally:
        for choice in found:
            promise(sought, choice, -1)
    return tuple(found)


def _with_peer(sought: Sought, node: NodeName) -> Sought:
    """Let the other members of the gang see this place as one of a placed task."""
    request = sought.request
    if not (request.near.tasks or request.far.tasks):
        return sought
    peers = dict(sought.peers)
    for name in (request.task_id, *request.tags):
        peers[name] = {*peers.get(name, ()), node}
    return replace(sought, peers=peers)


def refusals(sought: Sought) -> dict[NodeName, str]:
    """The reason for each node that cannot carry the task."""
    return {name: reason for name in sought.columns.names if (reason := why_not(sought, name))}
