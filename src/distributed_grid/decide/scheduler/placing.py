"""One task's place, or a gang's: all of them, or none."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from distributed_grid.decide.scheduler.feasibility import (
    BoostRoom,
    Sought,
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
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import Alternative

_ALTERNATIVES: Final = 3
_PREFERRED: Final = 1e6
"""What is preferred goes before every score."""

_LAST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Choice:
    """Where one task goes."""

    node: NodeName
    score: float
    boost: BoostRoom | None = None
    """The boost that carries it; None: the node itself does."""
    alternatives: tuple[Alternative, ...] = ()
    could: int = 1
    """How many nodes could have carried it."""

    @property
    def runs_on(self) -> NodeName:
        return self.node if self.boost is None else self.boost.runs_on


def choose(sought: Sought) -> Choice | None:
    """The best node that can carry it; None if none can. Nothing is changed: see `promise`."""
    mask = feasible(sought)
    could = int(np.count_nonzero(mask))
    if not could:
        return None
    scores = _scores(sought, mask)
    row = int(np.argmax(scores))  # the first of equal ones: rows are in name order
    boost = None if row != sought.home or fits_itself(sought, row) else sought.carrier()
    return Choice(sought.columns.names[row], float(scores[row]), boost, _others(sought, scores, row, could), could)


def choose_boost(sought: Sought) -> tuple[Choice, ...] | None:
    """One place in a boost of the target; None if none carries it."""
    home, boost = sought.home, sought.carrier()
    if home < 0 or boost is None or sought.columns.rests[home]:
        return None
    mask = sought.columns.named([sought.target])
    return (Choice(sought.target, 0.0, boost),) if allowed(sought, mask).any() else None


def order_of(sought: Sought) -> tuple[NodeName, ...]:
    """All nodes that its own conditions allow, the best first; whether they have room now does not matter."""
    mask = allowed(sought, ~sought.columns.named(sought.kept))
    rows = np.argsort(-_scores(sought, mask), kind="stable")[: np.count_nonzero(mask)]
    return tuple(sought.columns.names[row] for row in rows.tolist())


def _scores(sought: Sought, mask: Mask) -> Floats:
    scores = np.asarray(strategy_named(str(sought.request.strategy)).scorer(sought.columns, sought), dtype=np.float64)
    if scores.shape != mask.shape:
        raise ValueError(f"the strategy {sought.request.strategy} gave {scores.shape} scores for {mask.shape} nodes")
    if (wishes := preferred(sought)) is not None:
        scores = scores + _PREFERRED * wishes
    # What a strategy has no number for goes last, but it can carry the task all the same.
    found: Floats = np.where(mask, np.nan_to_num(scores, nan=-_LAST, posinf=_LAST, neginf=-_LAST), -np.inf)
    return found


def _others(sought: Sought, scores: Floats, best: int, could: int) -> tuple[Alternative, ...]:
    count = min(_ALTERNATIVES, could - 1)
    if count <= 0:
        return ()
    rest, names, found = scores.copy(), sought.columns.names, []
    rest[best] = -np.inf
    for _ in range(count):  # for so few, looking again is quicker than sorting
        row = int(np.argmax(rest))
        found.append(Alternative(names[row], round(float(rest[row]), 4), _told(sought, row)))
        rest[row] = -np.inf
    return tuple(found)


def _told(sought: Sought, row: int) -> str:
    if row == sought.home and not fits_itself(sought, row):
        return "in a boost"
    return f"{sought.left[row]:.0%} of it would be left"


def promise(sought: Sought, choice: Choice, times: int = 1) -> Sought:
    """Count a choice as taken (or, with -1, as given back), and go on with what is then left."""
    if choice.boost is None:
        sought.columns.promise(sought.columns.row[choice.node], sought.needs, times)
        return replace(sought)
    if times < 0:
        return sought
    boosts = tuple(b.less(sought.needs) if b.id == choice.boost.id else b for b in sought.boosts)
    return replace(sought, boosts=boosts)


def choose_gang(sought: Sought, count: int) -> tuple[Choice, ...] | None:
    """Places for all of them, or None. The table is left as it was."""
    found = places_for(sought, count)
    return found if len(found) == count else None


def places_for(sought: Sought, count: int) -> tuple[Choice, ...]:
    """Places for as many of them as have one.

    One after the other, each as the strategy says: they are all alike, so a node that takes one of them takes no room
    that another needed more, and all are found if all have room.
    """
    if stays_together(sought):
        return _on_one_node(sought, count)
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
    """The others of its gang see it as one that has a place."""
    request = sought.request
    if not (request.near.tasks or request.far.tasks):
        return sought
    peers = dict(sought.peers)
    for name in (request.task_id, *request.tags):
        peers[name] = {*peers.get(name, ()), node}
    return replace(sought, peers=peers)


def _on_one_node(sought: Sought, count: int) -> tuple[Choice, ...]:
    """All of them where they fit together; in boosts only if one boost has room for all."""
    together = replace(sought, needs=ResourceVector({k: count * v for k, v in sought.needs.items()}))
    choice = choose(together)
    return () if choice is None else (choice,) * count


def refusals(sought: Sought) -> dict[NodeName, str]:
    """For every node, why it cannot carry it."""
    return {name: told for name in sought.columns.names if (told := why_not(sought, name))}
