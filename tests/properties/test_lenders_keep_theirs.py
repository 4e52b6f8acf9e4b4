"""However often and in whatever order is asked and returned: no lending limit is passed, and what is kept stays."""

from builders import amounts, lease_of, limits
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from sharing_worlds import TARGET, World, asks, rule_sets

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.plans import Grant, Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import BUILT_IN, GPU, ResourceVector, scale

steps = st.lists(asks((TARGET, "a", "b")) | st.integers(0, 5), max_size=12)
"""A request, or which of the leases returns."""
few = st.integers(0, 8)


@st.composite
def idle_worlds(draw: st.DrawFn) -> World:
    """Lenders with limits, whose own work has some of what they have."""
    vector = st.builds(lambda cpu, memory, gpu: amounts(cpu=cpu, memory=memory, gpu=gpu), few, few, st.integers(0, 4))
    bases = {TARGET: amounts(cpu=2)} | {name: draw(vector) for name in ("a", "b")}
    used = {name: ResourceVector({k: draw(st.integers(0, v)) for k, v in base.items()}) for name, base in bases.items()}
    used = {name: ResourceVector({k: v - v % scale(k) for k, v in own.items()}) for name, own in used.items()}
    limit = st.none() | few
    limited = {name: limits(cpu=draw(limit), memory=draw(limit), gpu=draw(limit)) for name in bases}
    return World(bases, used, (), limited)


@settings(max_examples=examples(300))
@given(idle_worlds(), steps, rule_sets())
def test_no_lender_lends_past_its_limit_or_what_the_policy_lets_it_keep(
    world: World, todo: list[Ask | int], rules: Rules
) -> None:
    leases: list[Lease] = []
    for number, step in enumerate(todo):
        if isinstance(step, int):
            del leases[step : step + 1]
            continue
        plan = plan_grant(step, world.nodes(leases), world.usage(leases), rules)
        if isinstance(plan, Grant):
            leases.append(lease_of(plan, f"b{number}"))
            for kind in plan.resources:
                _keeps_its_part(world, plan.source, kind, leases, rules)
            _within_team_limits(leases, rules)


def _keeps_its_part(world: World, name: str, kind: str, leases: list[Lease], rules: Rules) -> None:
    """Worked out from what the node has and does itself, and not from what the code under test counts."""
    base, own = world.bases[name][kind], world.used[name][kind]
    borrowed = sum(
        one.units for one in leases if (one.target, one.kind, one.delivery) == (name, kind, Delivery.TRANSFER)
    )
    lent = sum(one.resources[kind] for one in leases if one.source == name)
    limit = world.limits[name].limit(kind)
    assert limit is None or lent <= limit
    assert lent + own <= base + borrowed
    # A part of a GPU cannot be kept.
    rounding = scale(GPU) - 1 if kind == GPU else 1
    headroom = rules.headroom
    idle = base - own
    if headroom.of_idle and not borrowed:
        assert lent <= (1 - headroom.of_idle) * idle + rounding
    if headroom.of_base:
        assert idle + borrowed - lent >= headroom.of_base * base - rounding
    if (name, kind) in headroom.foreseen:
        assert base + borrowed - lent >= headroom.foreseen[name, kind] * base - rounding


def _within_team_limits(leases: list[Lease], rules: Rules) -> None:
    for team in rules.teams.values():
        for kind in BUILT_IN:
            held = sum(one.resources[kind] for one in leases if one.team == team.name)
            most = team.most(kind)
            assert most is None or held <= most
