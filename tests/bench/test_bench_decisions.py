"""The cluster that is only numbers, by which decisions are measured."""

from dataclasses import replace

from bench.decisions import run
from bench.effort import QUICK
from bench.virtual_queue import VirtualQueue
from distributed_grid.decide.capacity.quotas import why_above_its_most
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector


def busy() -> VirtualQueue:
    queue = VirtualQueue(nodes=10, teams=50, load=1.5)
    queue.come(queue.asks(400))
    return queue


def test_what_is_lent_is_what_the_leases_say_and_within_every_limit() -> None:
    queue = busy()
    counted = Usage.of(queue.leases.values())

    assert queue.leases and queue.waiting, "it is busy, and more is asked for than there is"
    for node in queue.nodes.values():
        lent = queue.usage.lent_by(node.name)
        assert lent == counted.lent_by(node.name)
        assert node.base.covers(lent) and lent["cpu"] <= (node.limits.max_share_cpu or 0)
    for name in queue.rules.teams:
        nothing = Ask("n0", "cpu", 0, team=name)
        assert why_above_its_most(nothing, ResourceVector({"cpu": 0}), queue.usage, queue.rules.teams) is None


def test_the_same_requests_are_decided_in_the_same_way() -> None:
    assert busy().leases == busy().leases


def test_under_little_load_no_task_waits_for_a_node() -> None:
    queue = VirtualQueue(nodes=10, teams=50, load=0.1)
    queue.come(queue.asks(200))

    assert not queue.waiting


def test_all_that_is_promised_is_measured() -> None:
    found = run(None, replace(QUICK, decisions=50, calls=1, waiting=10, sizes=(5, 6, 7)))

    assert [bool(line.limits.describe(line.unit)) for line in found.lines] == [True, False, True, True, False, False]
