"""The auditor's comparison: a sound state has no findings, and each kind of damage is found and named."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from builders import NOON, amounts, cpu, lease
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.audit import audit, plan_repair, where_work_matters, why_left
from distributed_grid.decide.capacity.totals import desired_totals
from distributed_grid.model.audit import AuditedGroup, AuditedNode, AuditFacts, Marks, OnDisk
from distributed_grid.model.findings import CHECKS, Code, Finding, meaning
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector

BASES = {"gpu-master": amounts(cpu=4, memory=8), "gpu1": amounts(cpu=8, memory=16, gpu=1), "gpu2": amounts(cpu=8)}
Change = Callable[[AuditFacts], AuditFacts]


# -- building a state ----------------------------------------------------------------------------------------


def sound(*leases: Lease, bases: dict[str, ResourceVector] | None = None) -> AuditFacts:
    """What the cluster and the disk look like when everything is as the leases want it."""
    bases = bases or BASES
    totals = desired_totals(bases, leases)
    return AuditFacts(
        now=NOON,
        leases=leases,
        on_disk=OnDisk(leases),
        nodes=tuple(
            AuditedNode(name, base, totals[name], ResourceVector(), totals[name], _marks(totals[name], base))
            for name, base in bases.items()
        ),
        groups=tuple(group_of(one) for one in leases if one.delivery is Delivery.RESERVE and not one.is_winding_down),
    )


def _marks(total: ResourceVector, base: ResourceVector) -> Marks:
    return Marks((base - total).at_least_zero(), (total - base).at_least_zero())


def group_of(one: Lease, **changes: object) -> AuditedGroup:
    built = AuditedGroup(one.held_by or "", one.group_name, one.delivery, True, one.source, one.resources)
    return replace(built, **changes)  # type: ignore[arg-type]


def reserved(id: str = "r1", **changes: object) -> Lease:
    return lease(id, delivery=Delivery.RESERVE, held_by=f"group-of-{id}", **changes)


def at_node(name: str, **changes: object) -> Change:
    def change(facts: AuditFacts) -> AuditFacts:
        nodes = [replace(node, **changes) if node.name == name else node for node in facts.nodes]  # type: ignore[arg-type]
        return replace(facts, nodes=tuple(nodes))

    return change


def total_of(name: str, total: ResourceVector, **others: object) -> Change:
    return at_node(name, said=total, shown=total, **others)


def kinds(facts: AuditFacts) -> set[Code]:
    return {finding.code for finding in audit(facts)}


def only(facts: AuditFacts) -> Finding:
    (finding,) = audit(facts)
    return finding


# -- sound states --------------------------------------------------------------------------------------------

SOUND = [LeaseState.GRANTING, LeaseState.ACTIVE, LeaseState.RELEASING, LeaseState.RECLAIMING]
MOVES = st.lists(st.tuples(st.sampled_from([CPU, MEMORY]), st.integers(1, 20_000), st.sampled_from(SOUND)), max_size=4)


@st.composite
def some_leases(draw: st.DrawFn) -> tuple[Lease, ...]:
    """Loans from gpu1 to others, in any state of their life, and a reservation or two."""
    moves = [
        lease(f"b{i}", "gpu1", draw(st.sampled_from(["gpu-master", "gpu2"])), kind=kind, units=units, state=state)
        for i, (kind, units, state) in enumerate(draw(MOVES))
    ]
    moves = [replace(one, release_asked_at=NOON) if one.is_winding_down else one for one in moves]
    return (*moves, *(reserved(f"r{i}") for i in range(draw(st.integers(0, 2)))))


@given(some_leases(), st.booleans())
def test_what_is_as_the_leases_want_it_has_no_findings(leases: tuple[Lease, ...], is_settled: bool) -> None:
    """Whether a loan on its way has arrived already or not."""
    facts = sound(*leases)
    if not is_settled:
        waiting = tuple(one for one in leases if one.state is LeaseState.ACTIVE)
        facts = replace(facts, nodes=sound(*waiting).nodes)

    assert audit(facts) == ()


@given(
    some_leases(), st.sampled_from(list(BASES)), st.sampled_from([CPU, MEMORY]), st.integers(2, 40_000), st.booleans()
)
def test_a_total_outside_of_what_leases_explain_is_found_and_says_by_how_much(
    leases: tuple[Lease, ...], name: str, kind: str, units: int, more: bool
) -> None:
    settled = tuple(one for one in leases if one.state is LeaseState.ACTIVE)
    facts = sound(*settled)
    (node,) = [node for node in facts.nodes if node.name == name]
    assert node.said is not None
    changed = max(0, node.said[kind] + (units if more else -units))
    if abs(changed - node.said[kind]) <= 1:
        return
    total = ResourceVector(dict(node.said) | {kind: changed})

    (finding,) = [f for f in audit(total_of(name, total)(facts)) if f.code is Code.DRIFTED_TOTAL]

    assert (finding.node, finding.resource_type) == (name, kind)
    assert finding.off_by == changed - node.said[kind]
    repaired = replace(facts, nodes=sound(*settled).nodes)
    assert audit(repaired) == ()


def test_a_last_digit_that_ray_cut_off_is_no_finding() -> None:
    base = amounts(cpu=4, memory=8)
    facts = total_of("gpu-master", ResourceVector(dict(base) | {CPU: base[CPU] - 1}))(sound())

    assert audit(facts) == ()


# -- every kind of damage ------------------------------------------------------------------------------------

LOAN = lease("b1", "gpu1", "gpu-master", amount=2)
RESERVED = reserved("r1", amount=1)
OVER = lease("b1", state=LeaseState.RELEASING, release_asked_at=NOON - timedelta(minutes=5), grace_s=30.0)

DAMAGE: dict[Code, AuditFacts] = {
    Code.DRIFTED_TOTAL: total_of("gpu2", cpu(10))(sound()),
    Code.VIEW_DIFFERS: at_node("gpu2", shown=cpu(6))(sound()),
    Code.MARKER_WITHOUT_LEASE: at_node("gpu2", marks=Marks(lent=cpu(2)))(sound()),
    Code.MARKER_DIFFERS: at_node("gpu1", marks=Marks(lent=cpu(1)))(sound(LOAN)),
    Code.UNKNOWN_GROUP: replace(sound(), groups=(group_of(RESERVED),)),
    Code.GROUP_MISSING: replace(sound(RESERVED), groups=()),
    Code.GROUP_FALLEN: replace(sound(RESERVED), groups=(group_of(RESERVED, stands=False, node=None),)),
    Code.GROUP_DIFFERS: replace(sound(RESERVED), groups=(group_of(RESERVED, resources=cpu(3)),)),
    Code.WORK_OUTSIDE_LEASE: total_of("gpu-master", amounts(cpu=6, memory=8), used=cpu(6))(sound(OVER)),
    Code.STORE_DIFFERS: replace(sound(LOAN), on_disk=OnDisk(())),
    Code.EXPIRED: sound(replace(LOAN, expires_at=NOON - timedelta(minutes=1))),
    Code.UNFINISHED_GRANT: sound(replace(LOAN, state=LeaseState.INTERRUPTED)),
    Code.NODE_GONE: sound(lease("b1", "gone", "gpu-master")),
    Code.NODE_SILENT: at_node("gpu2", said=None)(sound()),
}


def test_there_is_an_example_and_an_explanation_of_every_kind_of_damage() -> None:
    assert set(DAMAGE) == set(Code) - set(CHECKS)
    assert all(meaning(code) for code in Code)


@pytest.mark.parametrize("kind", DAMAGE, ids=str)
def test_damage_is_found_and_named_and_says_what_to_do(kind: Code) -> None:
    finding = only(DAMAGE[kind])

    assert finding.code is kind
    assert finding.detail and finding.what_to_do
    assert why_left(finding)


@given(st.sets(st.sampled_from([k for k in DAMAGE if not DAMAGE[k].leases]), min_size=1))
def test_several_kinds_of_damage_are_all_found(damaged: set[Code]) -> None:
    facts = sound()
    for kind in damaged:
        one = DAMAGE[kind]
        nodes = {node.name: node for node in facts.nodes} | {
            node.name: node for node, fine in zip(one.nodes, sound().nodes, strict=True) if node != fine
        }
        facts = replace(facts, nodes=tuple(nodes.values()), groups=(*facts.groups, *one.groups))

    # Damage to the same node can hide: what does not answer cannot be compared.
    assert kinds(facts) & damaged
    assert kinds(facts) <= damaged | {Code.DRIFTED_TOTAL, Code.MARKER_WITHOUT_LEASE}


def test_markers_tell_whether_grid_moved_it() -> None:
    by_grid = total_of("gpu2", cpu(6), marks=Marks(lent=cpu(2)))(sound())
    by_hand = total_of("gpu2", cpu(6))(sound())

    drift = next(f for f in audit(by_grid) if f.code is Code.DRIFTED_TOTAL)
    assert "its markers match" in drift.detail
    assert drift.is_marked
    assert "another program" in only(by_hand).detail
    assert not only(by_hand).is_marked


# -- work ----------------------------------------------------------------------------------------------------


def test_work_in_a_boost_that_is_over_is_told_only_past_its_grace_period() -> None:
    busy = total_of("gpu-master", amounts(cpu=6, memory=8), used=cpu(6))
    within = replace(OVER, release_asked_at=NOON - timedelta(seconds=10))

    assert audit(busy(sound(within))) == ()
    finding = only(replace(busy(sound(OVER)), work={("gpu-master", CPU): ("task a", "task b")}))

    assert finding.work == ("task a", "task b")
    assert finding.boost_id == "b1"
    assert finding.off_by == cpu(2)[CPU]
    assert where_work_matters(busy(sound(OVER))) == {("gpu-master", CPU)}


def test_borrowed_capacity_that_is_idle_is_not_work() -> None:
    facts = total_of("gpu-master", amounts(cpu=6, memory=8), used=cpu(4))(sound(OVER))

    assert Code.WORK_OUTSIDE_LEASE not in kinds(facts)


def test_work_on_what_no_boost_explains_is_found_with_the_drift() -> None:
    facts = total_of("gpu2", cpu(10), used=cpu(9))(sound())

    assert kinds(facts) == {Code.DRIFTED_TOTAL, Code.WORK_OUTSIDE_LEASE}


def test_a_node_that_ray_oversubscribed_by_itself_is_sound() -> None:
    assert audit(at_node("gpu2", used=cpu(12))(sound())) == ()


def test_work_in_a_group_of_no_boost_is_outside() -> None:
    facts = replace(sound(), groups=(group_of(RESERVED, work=("actor x",)),))

    assert kinds(facts) == {Code.UNKNOWN_GROUP, Code.WORK_OUTSIDE_LEASE}
    assert all(finding.work == ("actor x",) for finding in audit(facts))


def test_a_second_group_with_a_boosts_name_is_unknown() -> None:
    facts = sound(RESERVED)
    facts = replace(facts, groups=(*facts.groups, group_of(RESERVED, id="another")))

    assert kinds(facts) == {Code.UNKNOWN_GROUP}


# -- the file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_disk", "reported"),
    [
        (OnDisk(()), "a restart would lose it"),
        (OnDisk((LOAN, replace(LOAN, id="b2"))), "a restart would bring it back"),
        (OnDisk((replace(LOAN, units=1),)), "units is 1, not 20000"),
        (OnDisk((), "it is damaged"), "it is damaged"),
    ],
)
def test_the_file_is_compared_boost_by_boost(on_disk: OnDisk, reported: str) -> None:
    finding = only(replace(sound(LOAN), on_disk=on_disk))

    assert finding.code is Code.STORE_DIFFERS
    assert reported in finding.detail


def test_a_boost_that_is_being_granted_need_not_be_on_disk_yet() -> None:
    granting = replace(LOAN, state=LeaseState.GRANTING)
    facts = replace(sound(granting), on_disk=OnDisk(()))

    assert audit(facts) == ()


# -- what is done about it -----------------------------------------------------------------------------------


def test_a_repair_claims_only_what_has_no_owner_and_kills_only_when_told() -> None:
    findings = (
        *audit(total_of("gpu2", cpu(6))(sound())),
        *audit(total_of("gpu1", amounts(cpu=1, memory=16, gpu=1))(sound(LOAN))),
        *audit(DAMAGE[Code.WORK_OUTSIDE_LEASE]),
    )

    plan = plan_repair(findings)
    assert plan.foreign == {"gpu2": {CPU}}
    assert not plan.kill_for
    assert not plan.rewrite_file
    assert plan_repair(findings, may_kill=True).kill_for == {"b1"}
    assert plan_repair(audit(DAMAGE[Code.STORE_DIFFERS])).rewrite_file


def test_gpus_are_never_claimed() -> None:
    (finding,) = audit(total_of("gpu1", amounts(cpu=8, memory=16, gpu=2))(sound()))

    assert finding.resource_type == GPU
    assert plan_repair([finding]).foreign == {}
    assert "GPUs" in why_left(finding)
