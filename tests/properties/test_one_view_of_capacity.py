"""Whoever asks whether a node can carry something gets the same answer, and the same reason if it cannot."""

from dataclasses import replace

from builders import NOON, amounts, limits, node, reservation
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import as_inventory, why_not
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.answers import CHOSEN, look_ahead
from distributed_grid.decide.roles import plan_workload
from distributed_grid.decide.scheduler import NodeColumns, Sought
from distributed_grid.decide.scheduler.feasibility import feasible
from distributed_grid.decide.scheduler.feasibility import why_not as why_no_task
from distributed_grid.decide.scheduler.placing import choose
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import MeasuredUse, NodeTable
from distributed_grid.model.plans import Grant, Headroom, Rules
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.roles.plan import Placement
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.model.scheduling import SchedulingRequest

MANY = settings(max_examples=examples(300))
HOME = "home"
NAMES = ("a", "b", HOME)
NUMBERS = POLICIES[SharingPolicy.BALANCED]
USED = "GPU 0 is in use outside Ray: pid 7"
FULL = {RefusalCode.DISK_FULL: "its disk is nearly full"}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[NodeTable, tuple[Lease, ...]]:
    """Nodes with reservations, parts of GPUs, limits, GPUs in use outside Ray, full disks, and nodes that are away."""
    leases: list[Lease] = []
    found = []
    for name in NAMES:
        gpus = draw(st.integers(0, 3))
        base = amounts(cpu=draw(st.integers(0, 8)), memory=draw(st.integers(0, 8)), gpu=gpus)
        parts = draw(st.lists(st.sampled_from((0.3, 0.5, 0.6)), max_size=gpus))
        for number, part in enumerate(parts):
            target = draw(st.sampled_from(NAMES))
            leases.append(reservation(f"{name}{number}", source=name, target=target, amount=part, cpus=0))
        held = sum(round(part * scale(GPU)) for part in parts)
        own = ResourceVector(
            {
                CPU: draw(st.integers(0, base[CPU])),
                MEMORY: draw(st.integers(0, base[MEMORY])),
                GPU: draw(st.integers(0, gpus - len(parts))) * scale(GPU) + held,
            }
        )
        withheld = draw(st.sampled_from((0, 0, 0, 1)))
        use = MeasuredUse({}, (USED,) * withheld, amounts(gpu=withheld), draw(st.sampled_from(({}, {}, {}, FULL))))
        found.append(
            node(
                name,
                base=base,
                used=own,
                gpu_parts=tuple(sorted(round(part * scale(GPU)) for part in parts)),
                limits=limits(
                    cpu=draw(st.none() | st.integers(0, 8)),
                    gpu=draw(st.none() | st.integers(0, 3)),
                    can_share=draw(st.integers(0, 5)) > 0,
                ),
                alive=name == HOME or draw(st.integers(0, 7)) > 0,
                silent=draw(st.sampled_from((None,) * 7 + ("it does not answer",))),
                in_use=use,
            )
        )
    return NodeTable(found), tuple(leases)


rule_sets = st.builds(
    lambda headroom, cordoned: Rules(headroom=headroom, cordoned=frozenset(cordoned)),
    st.sampled_from(
        (
            Headroom(),
            Headroom("balanced", 0.2),
            Headroom("conservative", of_idle=0.5),
            Headroom("predictive", foreseen={("a", CPU): 0.5, ("b", GPU): 0.4}),
        )
    ),
    st.sets(st.sampled_from(NAMES), max_size=1) | st.just(set()),
)


@st.composite
def needs(draw: st.DrawFn) -> ResourceVector:
    gpu = draw(st.sampled_from((0, 0, 0.4, 0.6, 1, 2)))
    return amounts(cpu=draw(st.sampled_from((0.5, 1, 2, 4))), memory=draw(st.integers(0, 4)), gpu=gpu)


def as_ask(need: ResourceVector) -> Ask:
    """The request for a task's lease, all of which is stated."""
    (kind, units), *along = need.items()
    return Ask(HOME, kind, units, delivery="reserve", along=tuple(along), own_too=True)


def as_task(need: ResourceVector, columns: NodeColumns) -> Sought:
    request = SchedulingRequest(task_id="t", target=HOME, **need.to_amounts())
    return Sought(request, need, HOME, columns)


@MANY
@given(clusters(), rule_sets, needs())
def test_grants_the_queue_grid_plan_and_the_scheduler_agree_on_every_node(
    cluster: tuple[NodeTable, tuple[Lease, ...]], rules: Rules, need: ResourceVector
) -> None:
    nodes, leases = cluster
    usage, ask = Usage.of(leases), as_ask(need)
    columns = NodeColumns.of(nodes, usage, rules)
    task = as_task(need, columns)
    offer = Offer.of(ask, nodes, rules)
    assert offer.need == need
    can = feasible(task)
    for one in nodes.values():
        refusal = why_not(one, offer, usage)
        carries = refusal is None

        from_it = replace(ask, sources=(one.name,))
        assert isinstance(plan_grant(from_it, nodes, usage, rules), Grant) is carries
        assert (Snapshot(nodes, usage, leases).lender(Offer.of(from_it, nodes, rules)) == one.name) is (
            carries and one.name != HOME
        )
        assert (_verdict(from_it, nodes, leases, rules).grant is not None) is carries
        said = look_ahead(from_it, nodes, leases, usage, (), {}, lambda _: rules, NUMBERS, NOON)
        assert (said.grant is not None) is carries
        verdict = next(reason for reason in said.considered if reason.node == one.name)
        assert (verdict.verdict == CHOSEN) is carries
        assert bool(can[columns.row[one.name]]) is carries

        if refusal is not None:
            assert verdict.detail == refusal.detail
            assert why_no_task(task, one.name) == refusal.detail
        else:
            assert why_no_task(task, one.name) == ""


def _verdict(ask: Ask, nodes: NodeTable, leases: tuple[Lease, ...], rules: Rules) -> Verdict:
    (found,) = plan_queue([Waiting("w", ask, NOON)], nodes, leases, Usage.of(leases), lambda _: rules, NOON)
    return found


@MANY
@given(clusters(), needs())
def test_members_of_roles_have_a_place_where_a_nodes_own_task_has_one(
    cluster: tuple[NodeTable, tuple[Lease, ...]], need: ResourceVector
) -> None:
    nodes, leases = cluster
    home = nodes[HOME]
    has = need.to_amounts()
    role = RoleSpec("worker", "tests:Worker", cpus=has[CPU], gpus=has.get(GPU, 0), memory_gb=has.get(MEMORY, 0))
    found = plan_workload(Workload("run", (role,), ()), as_inventory(NodeTable([home])))

    task = as_task(need, NodeColumns.of(NodeTable([home]), Usage.of(leases)))
    assert isinstance(found, Placement) is (choose(task) is not None)
