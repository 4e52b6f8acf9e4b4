"""Deciding who may grow never makes capacity: for any bases, leases and totals, of any kind."""

from datetime import timedelta

from builders import NOON, lease
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from property_examples import examples

from distributed_grid.decide.capacity.totals import Growth, desired_totals, plan_growth
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.resources import ResourceVector, total

NAMES = ("a", "b", "c", "d")
KINDS = ("cpu", "memory")
units = st.integers(0, 6)
vectors = st.fixed_dictionaries(dict.fromkeys(KINDS, units)).map(ResourceVector)
everywhere = st.fixed_dictionaries(dict.fromkeys(NAMES, vectors))
ends = st.permutations(NAMES).map(lambda order: order[:2])


@st.composite
def ledgers(draw: st.DrawFn) -> tuple[Lease, ...]:
    count = draw(st.integers(0, 5))
    return tuple(
        lease(
            f"b{i}",
            *draw(ends),
            kind=draw(st.sampled_from(KINDS)),
            units=draw(st.integers(1, 4)),
            state=draw(st.sampled_from(LeaseState)),
            delivery=draw(st.sampled_from([Delivery.TRANSFER, Delivery.TRANSFER, Delivery.RESERVE])),
            allocated_at=NOON + timedelta(seconds=draw(st.integers(0, 3))),
        )
        for i in range(count)
    )


def no_node_lends_more_than_it_has(bases: dict[str, ResourceVector], leases: tuple[Lease, ...]) -> bool:
    lent = {n: total([x.resources for x in leases if x.source == n and not x.is_winding_down]) for n in bases}
    return all(base.covers(lent[name]) for name, base in bases.items())


def grown(reached: dict[str, ResourceVector], growth: Growth) -> dict[str, ResourceVector]:
    return {n: reached[n] + (growth.allowed[n] - reached[n]).at_least_zero() for n in reached}


@given(everywhere, ledgers())
def test_desired_totals_add_up_to_the_bases_for_every_kind(
    bases: dict[str, ResourceVector], leases: tuple[Lease, ...]
) -> None:
    assume(no_node_lends_more_than_it_has(bases, leases))
    assert total(desired_totals(bases, leases)) == total(bases)


@given(everywhere, ledgers())
def test_with_everything_idle_every_node_gets_exactly_its_desired_total(
    bases: dict[str, ResourceVector], leases: tuple[Lease, ...]
) -> None:
    """Idle: the shrinks reached all that they were to reach."""
    assume(no_node_lends_more_than_it_has(bases, leases))
    wanted = desired_totals(bases, leases)
    reached = {n: ResourceVector({k: min(bases[n][k], wanted[n][k]) for k in KINDS}) for n in bases}
    growth = plan_growth(bases, leases, bases, reached)
    assert grown(reached, growth) == wanted
    assert (growth.untaken, growth.outstanding, growth.unexplained) == ({}, {}, {})


@settings(max_examples=examples(500))
@given(everywhere, everywhere, everywhere, ledgers(), st.sets(st.sampled_from(NAMES)))
def test_growth_never_makes_more_than_there_is(
    bases: dict[str, ResourceVector],
    before: dict[str, ResourceVector],
    reached: dict[str, ResourceVector],
    leases: tuple[Lease, ...],
    gone: set[str],
) -> None:
    """Only what was too much before may still be too much, and what a node that is gone lent."""
    bases = {n: base for n, base in bases.items() if n not in gone}
    reached = {n: reached[n] for n in bases}
    growth = plan_growth(bases, leases, before, reached)
    lost = total([ResourceVector({x.kind: growth.outstanding.get(x.id, 0)}) for x in leases if x.source in gone])
    there_is, was, is_now = total(bases) + lost, total([before[n] for n in bases]), total(reached)
    after = total(grown(reached, growth))
    for kind in KINDS:
        assert after[kind] <= max(there_is[kind], was[kind], is_now[kind]), (kind, growth)


@given(everywhere, everywhere, everywhere, ledgers())
def test_growth_is_what_each_kind_alone_would_give(
    bases: dict[str, ResourceVector],
    before: dict[str, ResourceVector],
    reached: dict[str, ResourceVector],
    leases: tuple[Lease, ...],
) -> None:
    together = plan_growth(bases, leases, before, reached)
    for kind in KINDS:
        alone = plan_growth(
            {n: ResourceVector({kind: v[kind]}) for n, v in bases.items()},
            [x for x in leases if x.kind == kind],
            {n: ResourceVector({kind: v[kind]}) for n, v in before.items()},
            {n: ResourceVector({kind: v[kind]}) for n, v in reached.items()},
        )
        assert {n: v[kind] for n, v in together.allowed.items()} == {n: v[kind] for n, v in alone.allowed.items()}


@given(everywhere, everywhere, ledgers(), st.randoms())
def test_the_order_of_the_ledger_does_not_matter(
    bases: dict[str, ResourceVector], reached: dict[str, ResourceVector], leases: tuple[Lease, ...], chance: object
) -> None:
    shuffled = list(leases)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = plan_growth(bases, leases, reached, reached), plan_growth(bases, shuffled, reached, reached)
    assert one == other
