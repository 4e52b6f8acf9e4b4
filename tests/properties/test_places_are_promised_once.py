"""Whatever is asked of the scheduler's table, no unit of capacity is promised twice, and gangs are whole."""

from dataclasses import replace

from builders import amounts, boost_room, limits, node, snapshot
from hypothesis import assume, given
from hypothesis import strategies as st

from distributed_grid.decide.capacity.feasibility import room
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.scheduler import BoostRoom, NodeColumns, Sought, choose, choose_gang
from distributed_grid.decide.scheduler.confidence import stays_below
from distributed_grid.decide.scheduler.placing import promise, refusals
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import NO_HEADROOM
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import SchedulingRequest, SchedulingStrategy

NAMES = ("a", "b", "c", "home")


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    found = []
    for name in NAMES:
        base = amounts(cpu=draw(st.integers(0, 8)), memory=draw(st.integers(0, 8)), gpu=draw(st.integers(0, 2)))
        used = ResourceVector({kind: draw(st.integers(0, units)) for kind, units in base.items()})
        limit = draw(st.none() | st.integers(0, 8))
        share = draw(st.integers(0, 4)) > 0
        found.append(node(name, base=base, used=used, limits=limits(cpu=limit, can_share=share)))
    return found


requests = st.builds(
    lambda cpu, memory, gpu, strategy, apart: SchedulingRequest(
        task_id="t",
        target="home",
        cpu=cpu,
        memory=memory,
        gpu=gpu,
        strategy=strategy,
        anti_affinity={"tasks": ["t"]} if apart else None,
    ),
    st.sampled_from((0.5, 1, 2, 3)),
    st.integers(0, 3),
    st.sampled_from((0, 0, 0, 1)),
    st.sampled_from(list(SchedulingStrategy)),
    st.booleans(),
)
boosts = st.lists(st.builds(lambda n: n, st.integers(1, 6)), max_size=2).map(
    lambda sizes: tuple(boost_room(f"b{i}", runs_on="a", cpu=cpus, memory=4) for i, cpus in enumerate(sizes))
)


def asks(of: list[Node], request: SchedulingRequest, has: tuple[BoostRoom, ...]) -> Sought:
    return Sought(request, request.needs, "home", NodeColumns.of(NodeTable(of)), has)


def most(one: Node, kind: str) -> int:
    """What all tasks of home together may have there."""
    return one.free[kind] if one.name == "home" else max(0, room(one, kind, Usage(), NO_HEADROOM))


@given(nodes(), boosts, st.lists(requests, min_size=1, max_size=12))
def test_no_two_decisions_share_a_unit_and_none_takes_what_is_not_there(
    of: list[Node], has: tuple[BoostRoom, ...], asked: list[SchedulingRequest]
) -> None:
    table = NodeColumns.of(NodeTable(of))
    taken: dict[str, ResourceVector] = {}
    left = has
    for request in asked:
        each = Sought(request, request.needs, "home", table, left)
        choice = choose(each)
        if choice is None:
            continue
        left = promise(each, choice).boosts
        where = choice.node if choice.boost is None else choice.boost.id
        taken[where] = taken.get(where, ResourceVector()) + request.needs
    for one in of:
        if one.name in taken:
            assert one.name == "home" or one.limits.can_share
            assert all(units <= most(one, kind) for kind, units in taken[one.name].items())
    for boost in has:
        assert boost.free.covers(taken.get(boost.id, ResourceVector()))


def packs(parts: list[float], devices: list[float]) -> bool:
    """Whether there is any way to put all parts on these devices."""
    if not parts:
        return True
    ways = (
        [*devices[:at], round(left - parts[0], 4), *devices[at + 1 :]]
        for at, left in enumerate(devices)
        if left >= parts[0]
    )
    return any(packs(parts[1:], way) for way in ways)


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from((0.3, 0.4, 0.6, 1)), st.integers(1, 3)), max_size=5))
def test_parts_of_gpus_that_are_promised_fit_on_the_devices(gpus: int, asked: list[tuple[float, int]]) -> None:
    table = NodeColumns.of(NodeTable([node("a", cpus=64, gpus=gpus), node("home")]))
    has: list[float] = []
    for part, count in asked:
        near = {"tasks": ["t"]} if count > 1 else None
        request = SchedulingRequest(task_id="t", target="home", cpu=1, gpu=part, count=count, affinity=near)
        found = choose_gang(Sought(request, request.needs, "home", table), count)
        for choice in found or ():
            promise(Sought(request, request.needs, "home", table), choice)
            has.append(part)
        assert packs(sorted(has, reverse=True), [1.0] * gpus)


@given(nodes(), boosts, requests, st.integers(1, 9))
def test_a_gang_is_whole_or_not_at_all_and_leaves_no_trace(
    of: list[Node], has: tuple[BoostRoom, ...], request: SchedulingRequest, count: int
) -> None:
    asked = asks(of, request, has)
    found = choose_gang(asked, count)
    assert not any(column.any() for column in asked.columns.promised.values())
    if found is None:
        return
    assert len(found) == count
    left = asked
    for choice in found:  # each still fits after those before it
        where = choice.boost.free if choice.boost else None
        if where is None:
            row = left.columns.row[choice.node]
            assert all(left.rooms[kind][row] >= units for kind, units in left.needs.items())
        else:
            assert next(b for b in left.boosts if b.id == choice.boost.id).free.covers(left.needs)  # type: ignore[union-attr]
        left = promise(left, choice)


@given(nodes(), boosts, requests, st.integers(1, 6))
def test_a_gang_is_refused_only_if_that_many_do_not_fit(
    of: list[Node], has: tuple[BoostRoom, ...], request: SchedulingRequest, count: int
) -> None:
    """Equal tasks: each node takes as many as it has room for, whatever the order."""
    assume(not request.far.tasks)
    asked = asks(of, request, has)
    only = request.only_node
    fit = sum(
        min((most(one, kind) // units for kind, units in asked.needs.items()), default=0)
        for one in of
        if (one.name == "home" or one.limits.can_share) and only in (None, one.name)
    )
    fit += sum(min(boost.free[kind] // units for kind, units in asked.needs.items()) for boost in has)
    assert (choose_gang(asked, count) is not None) == (fit >= count)


@given(nodes(), boosts, requests)
def test_there_is_a_place_or_for_every_node_a_reason(
    of: list[Node], has: tuple[BoostRoom, ...], request: SchedulingRequest
) -> None:
    asked = asks(of, request, has)
    choice, reported = choose(asked), refusals(asked)
    if choice is None:
        assert set(reported) == set(NAMES)
    else:
        assert choice.node not in reported
        assert {other.node for other in choice.alternatives}.isdisjoint(reported)
        assert choice.could == len(NAMES) - len(reported)


@given(st.integers(1, 16), st.data(), st.none() | st.floats(0, 1))
def test_confidence_is_a_probability_and_more_room_never_lowers_it(
    cpus: int, data: st.DataObject, pressure: float | None
) -> None:
    needs = amounts(cpu=data.draw(st.integers(1, cpus)))
    used = sorted(data.draw(st.lists(st.integers(0, cpus), min_size=2, max_size=4)))
    found = []
    for busy in used:
        one = node("a", cpus=cpus, used=amounts(cpu=busy))
        seen = {} if pressure is None else {"a": snapshot(one, cpu=pressure)}
        columns = NodeColumns.of(NodeTable([one]), snapshots=seen)
        found.append(stays_below(columns, 0, needs, {"cpu": 0.8, "memory": 0.8, "gpu": 0.8}))
    assert all(0 <= each <= 1 for each in found)
    assert found == sorted(found, reverse=True)


@given(nodes(), requests)
def test_the_same_question_has_the_same_answer(of: list[Node], request: SchedulingRequest) -> None:
    assert choose(asks(of, request, ())) == choose(asks(list(reversed(of)), replace(request), ()))
