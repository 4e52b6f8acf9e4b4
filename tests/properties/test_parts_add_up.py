"""What several lenders lend together is all that was asked for, and each of them can lend its part."""

from dataclasses import replace

from builders import NOON
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from property_examples import examples
from sharing_worlds import World, asks, rule_sets, worlds

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import most_of, obstacle
from distributed_grid.decide.capacity.lending import plan_grant, plan_parts
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.leases.lifecycle import lease_from
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import LeaseState
from distributed_grid.model.plans import Refused, Rules
from distributed_grid.model.requests import Ask, Layout
from distributed_grid.model.resources import scale

PATIENT = settings(max_examples=examples(400))
ROOMY = worlds(most_leases=3, most_spare=6)
"""Most requests can be met."""


def several(draw_asks: st.SearchStrategy[Ask]) -> st.SearchStrategy[Ask]:
    return st.builds(
        lambda one, most, more: replace(one, max_sources=most, units=one.units * more),
        draw_asks,
        st.integers(1, 4),
        st.integers(1, 3),
    )


@PATIENT
@given(ROOMY, several(asks()), rule_sets())
def test_parts_add_up_and_each_lender_can_lend_its_own(world: World, asked: Ask, rules: Rules) -> None:
    nodes, usage = world.nodes(), Usage.of(world.leases)
    found = plan_parts(asked, nodes, usage, rules)
    assume(not isinstance(found, Refused))
    assert not isinstance(found, Refused)
    assert sum(grant.ask.units for grant in found) == asked.units
    sources = [grant.source for grant in found]
    assert len(sources) == len(set(sources)) <= asked.max_sources
    if len(found) > 1:
        assert isinstance(plan_grant(asked, nodes, usage, rules), Refused), "one could have lent it alone"
        assert all(grant.ask.units % scale(asked.kind) == 0 for grant in found)
    after = Snapshot(nodes, usage, world.leases)
    for grant in found:
        offer = replace(Offer.of(asked, after, rules), ask=grant.ask, need=grant.resources)
        assert obstacle(after[grant.source], offer, after.usage) is None
        after.add(grant)


@PATIENT
@given(worlds(most_leases=3), several(asks()), rule_sets(with_teams=False))
def test_a_request_is_refused_only_if_all_allowed_lenders_together_have_too_little(
    world: World, asked: Ask, rules: Rules
) -> None:
    nodes, usage = world.nodes(), Usage.of(world.leases)
    asked = replace(asked, max_sources=len(nodes))
    found = plan_parts(asked, nodes, usage, rules)
    assume(isinstance(found, Refused))
    offer = Offer.of(replace(asked, max_sources=1), nodes, rules)
    able = [one for one in nodes.values() if one.name != asked.target and _only_by_amount(one, offer, usage)]
    whole = [most_of(one, offer, usage) // scale(asked.kind) * scale(asked.kind) for one in able]
    assert sum(whole) < asked.units


def _only_by_amount(one: object, offer: Offer, usage: Usage) -> bool:
    stop = obstacle(one, offer, usage)  # type: ignore[arg-type]
    return stop is None or stop[0].reason.by_amount


@PATIENT
@given(ROOMY, several(asks()), rule_sets())
def test_a_lease_of_several_lenders_counts_like_its_parts(world: World, asked: Ask, rules: Rules) -> None:
    found = plan_parts(asked, world.nodes(), Usage.of(world.leases), rules)
    assume(not isinstance(found, Refused))
    assert isinstance(found, tuple)
    whole = replace(lease_from(found, "w", NOON, grace_s=9.0, on_grace_end=OnGraceEnd.HOLD), state=LeaseState.ACTIVE)
    together, apart, promised = Usage.of([whole]), Usage.of(whole.parts), Usage()
    for grant in found:
        promised.promise(grant)
    for name in world.nodes():
        assert together.taken_on(name) == apart.taken_on(name) == promised.taken_on(name)
        assert together.moved_from(name) == apart.moved_from(name) == promised.moved_from(name)
        assert together.moved_to(name) == apart.moved_to(name) == promised.moved_to(name)
    assert together.held_by(asked.team) == apart.held_by(asked.team) == promised.held_by(asked.team)


def gangs(draw_asks: st.SearchStrategy[Ask]) -> st.SearchStrategy[Ask]:
    return st.builds(
        lambda one, count, layout: replace(one, delivery="reserve").times(count, layout),
        draw_asks,
        st.integers(2, 5),
        st.sampled_from(Layout),
    )


@PATIENT
@given(worlds(most_leases=3), gangs(asks()), rule_sets())
def test_all_members_have_room_at_once_where_their_layout_allows(world: World, asked: Ask, rules: Rules) -> None:
    nodes, usage = world.nodes(), Usage.of(world.leases)
    found = plan_parts(asked, nodes, usage, rules)
    assume(isinstance(found, tuple))
    assert isinstance(found, tuple)
    assert [grant.ask for grant in found] == [asked.member] * asked.members
    sources = [grant.source for grant in found]
    if asked.layout is Layout.STRICT_PACK:
        assert len(set(sources)) == 1
    if asked.layout is Layout.STRICT_SPREAD:
        assert len(set(sources)) == asked.members
    after = Snapshot(nodes, usage, world.leases)
    for grant in found:
        assert obstacle(after[grant.source], Offer.of(grant.ask, after, rules), after.usage) is None
        after.add(grant)


@PATIENT
@given(worlds(most_leases=3), gangs(asks()), rule_sets(with_teams=False))
def test_members_are_refused_only_if_they_do_not_fit_one_after_the_other(
    world: World, asked: Ask, rules: Rules
) -> None:
    nodes, usage = world.nodes(), Usage.of(world.leases)
    assume(isinstance(plan_parts(asked, nodes, usage, rules), Refused))
    fit = dict.fromkeys(nodes, 0)
    for name in nodes:
        after = Snapshot(nodes, usage, world.leases)
        while fit[name] < asked.members:
            offer = Offer.of(asked.member, after, rules)
            if obstacle(after[name], offer, after.usage) is not None:
                break
            after.add(offer.from_node(name))
            fit[name] += 1
    match asked.layout:
        case Layout.STRICT_PACK:
            assert max(fit.values()) < asked.members
        case Layout.STRICT_SPREAD:
            assert sum(count > 0 for count in fit.values()) < asked.members
        case _:
            assert sum(fit.values()) < asked.members
