"""Small clusters with leases in all states, whose nodes are worked out from the leases, not by the code under test."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from builders import NOON, amounts, limits, node
from hypothesis import strategies as st

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Delivery, Lease, LeaseState, Notice
from distributed_grid.model.nodes import NodeTable, SharingLimits
from distributed_grid.model.plans import Headroom, Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.teams import Team, Teams

TARGET = "gpu-master"
LENDERS = ("a", "b", "c")
TEAMS = ("red", "blue", "green")


@dataclass(frozen=True)
class World:
    bases: dict[str, ResourceVector]
    used: dict[str, ResourceVector]
    """What each node's own work has."""
    leases: tuple[Lease, ...]
    limits: dict[str, SharingLimits] = field(default_factory=dict)

    def nodes(self, leases: Iterable[Lease] | None = None) -> NodeTable:
        """The nodes while these leases hold what they are for."""
        there = tuple(self.leases if leases is None else leases)
        return NodeTable(
            node(
                name,
                base=base,
                borrowed=_sum(there, target=name, delivery=Delivery.TRANSFER)
                - _sum(there, source=name, delivery=Delivery.TRANSFER),
                used=self.used[name] + _sum(there, source=name, delivery=Delivery.RESERVE),
                limits=self.limits.get(name, SharingLimits()),
            )
            for name, base in self.bases.items()
        )

    def usage(self, leases: Iterable[Lease] | None = None) -> Usage:
        return Usage.of(self.leases if leases is None else leases)


def _sum(leases: Iterable[Lease], **where: object) -> ResourceVector:
    found = ResourceVector()
    for lease in leases:
        if lease.holds_capacity and all(getattr(lease, name) == value for name, value in where.items()):
            found += lease.resources
    return found


@st.composite
def worlds(draw: st.DrawFn, *, most_leases: int = 7, most_spare: int = 2) -> World:
    """Up to three lenders that have lent this and that of what they have; the most CPUs and GB that each has idle."""
    names = LENDERS[: draw(st.integers(1, 3))]
    bases = {TARGET: amounts(cpu=2, memory=8)}
    bases |= {
        name: amounts(cpu=draw(st.integers(2, 8)), memory=draw(st.integers(2, 8)), gpu=draw(st.integers(0, 3)))
        for name in names
    }
    used = {name: amounts(cpu=draw(st.integers(0, min(2, base["cpu"] // 10_000)))) for name, base in bases.items()}
    world = World(bases, used, (), {name: limits(cpu=draw(st.none() | st.integers(1, 8))) for name in names})
    leases: list[Lease] = []
    for number in range(draw(st.integers(min(3, most_leases), most_leases))):
        made = draw(_leases(f"b{number}", names, world, leases))
        leases += [made] if made is not None else []
    for name in names:  # their own work has most of the rest, or few requests would have to wait
        left = bases[name] - used[name] - _sum(leases, source=name)
        idle = st.integers(0, most_spare)
        spare = amounts(cpu=draw(idle), memory=draw(idle), gpu=draw(st.integers(0, (most_spare + 1) // 2)))
        used[name] += (left - spare).at_least_zero()
    return World(bases, used, tuple(leases), world.limits)


@st.composite
def _leases(draw: st.DrawFn, id: str, names: tuple[str, ...], world: World, so_far: list[Lease]) -> Lease | None:
    source, kind = draw(st.sampled_from(names)), draw(st.sampled_from((CPU, CPU, MEMORY, GPU)))
    left = world.bases[source] - world.used[source] - _sum(so_far, source=source)
    delivery = Delivery.RESERVE if kind == GPU else draw(st.sampled_from(Delivery))
    units = draw(st.integers(1, 3)) * scale(kind)
    brings = ResourceVector({kind: units})
    if delivery is Delivery.RESERVE and kind != CPU:
        brings += amounts(cpu=1)
    if not left.covers(brings):
        return None
    borrowed = any(lease.target == source and lease.kind == kind for lease in so_far)
    others = [TARGET, *(name for name in names if name != source and not _sum(so_far, source=name)[kind])]
    if borrowed:
        return None
    state = draw(st.sampled_from((LeaseState.ACTIVE,) * 8 + (LeaseState.RELEASING, LeaseState.GRANTING)))
    allocated_at = NOON - timedelta(seconds=draw(st.sampled_from((5, 60, 100, 400, 400, 1000))))
    noticed = state is LeaseState.ACTIVE and draw(st.integers(0, 9)) == 9
    return Lease(
        id=id,
        source=source,
        target=draw(st.sampled_from(others)),
        kind=kind,
        units=units,
        resources=brings,
        priority=draw(st.sampled_from(("low", "low", "normal", "high", "critical")).map(AllocationPriority)),
        delivery=delivery,
        delivery_reason="",
        state=state,
        allocated_at=allocated_at,
        expires_at=NOON + timedelta(seconds=draw(st.sampled_from((60, 600, 3600)))),
        duration_s=3600.0,
        team=draw(st.sampled_from(TEAMS)),
        checkpointed_at=draw(st.none() | st.just(NOON - timedelta(seconds=30))),
        notice=Notice(units, "", NOON, NOON + timedelta(seconds=15)) if noticed else None,
    )


@st.composite
def asks(draw: st.DrawFn, targets: tuple[str, ...] = (TARGET,)) -> Ask:
    kind = draw(st.sampled_from((CPU, CPU, MEMORY, GPU)))
    return Ask(
        draw(st.sampled_from(targets)),
        kind,
        draw(st.integers(1, 6)) * scale(kind),
        priority=draw(st.sampled_from(("critical", "high", "normal", "low")).map(AllocationPriority)),
        delivery=None if kind == GPU else draw(st.sampled_from((None, "transfer", "reserve", "auto"))),
        duration_s=draw(st.sampled_from((30.0, 300.0, 3600.0))),
        team=draw(st.sampled_from(TEAMS)),
    )


def owners() -> st.SearchStrategy[tuple[Ask, Rules]]:
    """A team that asks for its own, and others that have little or nothing guaranteed."""

    def own(asked: Ask, rules: Rules, blue: int, green: int) -> tuple[Ask, Rules]:
        teams = [Team("red", amounts(cpu=20, memory=20, gpu=5)), Team("blue", amounts(cpu=blue, memory=blue))]
        teams.append(Team("green", amounts(cpu=green, gpu=green)))
        return replace(asked, team="red"), replace(rules, teams=Teams(teams))

    return st.builds(own, asks(), rule_sets(with_teams=False), st.integers(0, 4), st.integers(0, 2))


@st.composite
def rule_sets(draw: st.DrawFn, *, with_teams: bool = True) -> Rules:
    headroom = draw(
        st.sampled_from(
            (
                Headroom(),
                Headroom("conservative", of_idle=0.5),
                Headroom("balanced", of_base=0.2),
                Headroom("predictive", foreseen={("a", CPU): 0.5, ("b", MEMORY): 0.3, ("b", GPU): 0.4}),
            )
        )
    )
    few = st.integers(0, 4)
    teams = [
        Team(
            name,
            amounts(cpu=draw(few), memory=draw(few), gpu=draw(st.integers(0, 2))),
            {CPU: draw(few) * scale(CPU)} if draw(st.booleans()) else {},
            {CPU: draw(few) * scale(CPU)} if draw(st.integers(0, 3)) == 3 else {},
        )
        for name in (TEAMS[: draw(st.integers(0, 3))] if with_teams else ())
    ]
    cordoned = frozenset(draw(st.sampled_from(((), (), (), ("c",)))))
    return Rules(headroom=headroom, teams=Teams(teams), cordoned=cordoned)
