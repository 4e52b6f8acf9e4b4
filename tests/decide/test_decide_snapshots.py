"""Snapshots: measured beside logical; who stops answering is stale, never idle."""

from datetime import timedelta

from builders import NOON, amounts, lease, node, reading

from distributed_grid.decide.monitoring.snapshots import Answers, take_snapshots
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.snapshots import NodeSnapshot

GRACE = timedelta(seconds=30)
TEN_S = timedelta(seconds=10)
Taken = dict[str, NodeSnapshot]


def take(nodes: list, answers: Answers, before: Taken | None = None, *, at: timedelta = timedelta()) -> Taken:
    return take_snapshots(NodeTable(nodes), (), answers, before or {}, now=NOON + at, start_grace=GRACE)


def test_measured_and_logical_stand_side_by_side() -> None:
    busy = node("gpu1", cpus=8, used=amounts(cpu=3))

    found = take([busy], {busy.node_id: reading(cpu_used=4.0, cpus=16.0)})["gpu1"]

    assert (found.total, found.used, found.free) == (busy.total, amounts(cpu=3), busy.free)
    assert found.measured is not None and found.pressure is not None
    assert (found.pressure.cpu, found.state, found.age(NOON + TEN_S)) == (0.25, "ok", TEN_S)


def test_lent_and_borrowed_are_those_of_the_leases() -> None:
    nodes = NodeTable([node("gpu1"), node("gpu-master")])

    found = take_snapshots(nodes, [lease(amount=2)], {}, {}, now=NOON, start_grace=GRACE)

    assert (found["gpu1"].lent, found["gpu-master"].borrowed) == (amounts(cpu=2), amounts(cpu=2))


def test_a_node_whose_probe_stops_answering_is_stale_with_its_last_values_and_their_age() -> None:
    there = node("gpu1")
    first = take([there], {there.node_id: reading(cpu_used=4.0)})

    then = take([there], {there.node_id: "its probe died"}, first, at=TEN_S)["gpu1"]

    assert (then.state, then.stale_because) == ("stale", "its probe died")
    assert then.measured == first["gpu1"].measured
    assert then.age(NOON + 2 * TEN_S) == 2 * TEN_S


def test_it_is_no_longer_stale_once_it_answers() -> None:
    there = node("gpu1")
    first = take([there], {there.node_id: reading()})
    silent = take([there], {}, first, at=TEN_S)

    back = take([there], {there.node_id: reading()}, silent, at=2 * TEN_S)["gpu1"]

    assert (back.state, back.age(NOON + 2 * TEN_S)) == ("ok", timedelta())


def test_a_node_that_has_just_come_is_starting_and_becomes_stale_if_it_never_answers() -> None:
    there = node("gpu1")
    taken: Taken = {}
    states = []
    for seconds in (0, 10, 30, 40):
        taken = take([there], {there.node_id: "not up yet"}, taken, at=timedelta(seconds=seconds))
        states.append(taken["gpu1"].state)

    assert states == ["starting", "starting", "starting", "stale"]
    assert taken["gpu1"].pressure is None


def test_a_node_that_came_back_with_another_raylet_knows_nothing_of_the_old_one() -> None:
    first = take([node("gpu1", node_id="old")], {"old": reading()})

    back = take([node("gpu1", node_id="new")], {}, first, at=TEN_S)["gpu1"]

    assert (back.state, back.measured) == ("starting", None)


def test_a_node_that_is_gone_disappears() -> None:
    first = take([node("gpu1"), node("gpu2")], {})

    assert take([node("gpu1"), node("gpu2", alive=False)], {}, first).keys() == {"gpu1"}


def test_nodes_on_one_machine_are_measured_by_their_own_processes() -> None:
    nodes = [node(name, cpus=4, ip="10.0.0.1", host="box") for name in ("a", "b")]
    alone = node("c", cpus=4, ip="10.0.0.2", host="other")
    answers = {n.node_id: reading(cpu_used=16.0, cpus=16.0, own_cpu=1.0) for n in (*nodes, alone)}

    found = take([*nodes, alone], answers)

    assert {name: s.pressure.own("cpu") for name, s in found.items() if s.pressure} == {"a": 0.25, "b": 0.25, "c": 1.0}
    assert {s.pressure.cpu for s in found.values() if s.pressure} == {1.0}  # as busy as their machines


def test_a_clock_that_goes_backwards_makes_nothing_stale_and_no_age_negative() -> None:
    there = node("gpu1")
    first = take([there], {there.node_id: reading()}, at=TEN_S)

    then = take([there], {there.node_id: reading()}, first)["gpu1"]

    assert (then.state, then.age(NOON - TEN_S)) == ("ok", timedelta())
