"""A plan that is tried in a snapshot of capacity shows what would be, and leaves no trace."""

from hypothesis import assume, given
from hypothesis import strategies as st
from sharing_worlds import TEAMS, World, asks, worlds

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import Grant
from distributed_grid.model.requests import Ask


def sums(usage: Usage, nodes: NodeTable) -> object:
    of_nodes = [(usage.taken_on(n), usage.lent_by(n), usage.borrowed_by(n), usage.moved_to(n)) for n in nodes]
    return of_nodes, [usage.held_by(team) for team in TEAMS]


@given(worlds(), st.data())
def test_what_is_given_back_is_there_as_if_it_had_not_been_lent(world: World, data: st.DataObject) -> None:
    given_back = [lease for lease in world.leases if data.draw(st.booleans())]
    left = tuple(lease for lease in world.leases if lease not in given_back)
    capacity = Snapshot(world.nodes(), world.usage(), world.leases)
    capacity.give_back(given_back)

    assert dict(capacity) == dict(world.nodes(left))
    assert sums(capacity.usage, capacity) == sums(world.usage(left), capacity)


@given(worlds(), st.lists(asks(), max_size=4), st.data())
def test_after_a_try_everything_is_as_before(world: World, asked: list[Ask], data: st.DataObject) -> None:
    nodes, usage = world.nodes(), world.usage()
    capacity = Snapshot(nodes, usage, world.leases)
    with capacity.trying():
        for one in asked:
            with capacity.trying():
                capacity.give_back([lease for lease in world.leases if data.draw(st.booleans())])
                plan_within = plan_grant(one, capacity, capacity.usage)
            if isinstance(plan_within, Grant):
                capacity.add(plan_within)
            capacity.give_back([])
            capacity.withdraw([data.draw(st.sampled_from(list(nodes)))])

    assert dict(capacity) == dict(nodes)
    assert capacity.lenders == nodes.lenders
    assert sums(capacity.usage, nodes) == sums(usage, nodes) == sums(world.usage(), nodes)


@given(worlds(), asks())
def test_a_grant_that_is_added_counts_like_the_lease_that_it_becomes(world: World, asked: Ask) -> None:
    capacity = Snapshot(world.nodes(), world.usage(), world.leases)
    plan = plan_grant(asked, capacity, capacity.usage)
    assume(isinstance(plan, Grant))
    assert isinstance(plan, Grant)
    capacity.add(plan)
    assert capacity[plan.source].free == world.nodes()[plan.source].free - plan.resources
    assert capacity.usage.taken_on(plan.source) == world.usage().taken_on(plan.source) + plan.resources
    again = plan_grant(asked, world.nodes(), world.usage())
    assert again == plan, "what the snapshot was made of stays as it is"
