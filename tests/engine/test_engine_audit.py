"""The auditor on the whole engine: it finds what was changed behind grid's back, and repairs what is safe."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from builders import LENDS_ALL, ask, cpu
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from whole_grid import WholeGrid

from distributed_grid.engine.auditor import Auditor, Report
from distributed_grid.model.findings import Code
from distributed_grid.store.audit_log import Wanted

HOUR = 3600.0

pytestmark = pytest.mark.filterwarnings("ignore")  # a process that was killed leaves tasks behind


def auditor(grid: WholeGrid) -> Auditor:
    return grid.engine.auditor


def audited(grid: WholeGrid) -> Report:
    return grid.run(auditor(grid).audit())


def repaired(grid: WholeGrid, **options: Any) -> Report:
    return grid.run(auditor(grid).repair(**options))


def lend(grid: WholeGrid, amount: float = 2, **changes: Any) -> Any:
    return grid.run(grid.service.request(ask("a", amount=amount, source="b", **changes)))


def kinds(findings: Any) -> set[Code]:
    return {finding.code for finding in findings}


def test_a_grid_at_work_is_sound(lab: WholeGrid) -> None:
    lend(lab)
    lend(lab, 1, delivery="reserve")

    report = audited(lab)

    assert report.findings == () and report.settled == ()
    assert (report.nodes, report.boosts, report.groups) == (3, 2, 1)
    assert report.to_dict()["sound"] is True


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_grid_with_a_late_view_is_sound(make_grid: Callable[..., WholeGrid], seed: int) -> None:
    grid = make_grid(FakeCluster.lagging(seed), seed)

    async def work() -> list[Report]:
        reports = []
        for _ in range(5):
            lease, report = await asyncio.gather(
                grid.service.request(ask("a", amount=1, source="b")), auditor(grid).audit()
            )
            reports.append(report)
            _, report = await asyncio.gather(grid.service.release(lease.id), auditor(grid).audit())
            reports.append(report)
        return reports

    assert [report.findings for report in grid.run(work())] == [()] * 10


def test_a_total_that_was_changed_by_hand_stays_until_it_is_repaired(lab: WholeGrid) -> None:
    lab.cluster.tamper("c", CPU=1)

    found = audited(lab)
    assert kinds(found.findings) == {Code.DRIFTED_TOTAL}
    assert found.to_dict()["findings"][0]["off_by"] == -3
    assert lab.cluster.true_totals()["c"]["cpu"] == cpu(1)["cpu"]

    done = repaired(lab, who="ana")
    assert done.findings == ()
    assert kinds(done.repaired) == {Code.DRIFTED_TOTAL}
    assert done.did
    assert lab.cluster.is_at_base(), lab.cluster.differences()
    assert audited(lab).findings == ()
    (entry,) = lab.parts.journal.recorded(Wanted(event="audit_repair"), 10)
    assert entry["who"] == "ana"


def test_what_was_changed_by_hand_on_a_lender_is_put_right_without_being_asked(lab: WholeGrid) -> None:
    lend(lab)
    lab.cluster.tamper("b", CPU=4)

    report = audited(lab)

    assert report.findings == ()
    assert Code.DRIFTED_TOTAL in kinds(report.settled)
    assert lab.cluster.true_totals()["b"]["cpu"] == cpu(2)["cpu"]


def test_a_total_that_is_in_use_is_left_and_says_who_uses_it(lab: WholeGrid) -> None:
    lab.cluster.tamper("c", CPU=6)
    pid = lab.cluster.start("c", 6)

    report = repaired(lab)

    assert kinds(report.findings) >= {Code.DRIFTED_TOTAL, Code.WORK_OUTSIDE_LEASE}
    assert any(str(pid) in line for finding in report.findings for line in finding.work)
    assert all(finding["left_because"] for finding in report.to_dict()["findings"])
    assert lab.cluster.running("c") == [pid]

    # Once asked for, it is undone as soon as that goes.
    lab.cluster.finish(pid)
    lab.wait(3)
    assert audited(lab).findings == ()
    assert lab.cluster.is_at_base()


def test_a_group_of_no_boost_is_seen_and_goes(lab: WholeGrid) -> None:
    lab.cluster.foreign_group("grid-boost-nobodys", "c", CPU=2)

    report = audited(lab)

    assert kinds(report.settled) == {Code.UNKNOWN_GROUP}
    assert report.findings == ()
    assert lab.cluster.reserved("c") == cpu(0)


def test_a_reservation_whose_group_was_removed_by_hand_is_made_again(lab: WholeGrid) -> None:
    lease = lend(lab, 1, delivery="reserve")
    lab.cluster.remove_group(lease.placement_group)

    report = repaired(lab)

    assert kinds(report.repaired) == {Code.GROUP_MISSING}
    assert report.findings == ()
    assert lab.cluster.reserved("b") == cpu(1)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text.replace('"units": 20000', '"units": 10000'), lambda text: text[: len(text) // 2], lambda _: ""],
    ids=["edited", "cut off", "emptied"],
)
def test_a_file_that_was_changed_by_hand_is_found_kept_and_written_again(
    lab: WholeGrid, damage: Callable[[str], str]
) -> None:
    lease = lend(lab)
    lab.run(lab.parts.flush())
    good = lab.home.boosts.read_text()
    lab.home.boosts.write_text(damage(good))

    assert kinds(audited(lab).findings) == {Code.STORE_DIFFERS}
    report = repaired(lab)

    assert report.findings == ()
    assert lab.on_disk() == {lease.id: lab.leases[lease.id]}
    (kept,) = lab.home.path.glob("*.broken-*")
    assert kept.read_text() == damage(good)
    lab.crash()
    assert audited(lab).findings == ()
    assert set(lab.leases) == {lease.id}


def test_a_file_with_another_boost_in_it_is_found(lab: WholeGrid) -> None:
    """Also one with a right checksum, such as that of a backup."""
    first = lend(lab, 1)
    lab.run(lab.parts.flush())
    older = lab.home.boosts.read_text()
    second = lend(lab, 1)
    lab.run(lab.service.release(first.id))
    lab.run(lab.parts.flush())
    lab.home.boosts.write_text(older)

    found = audited(lab).findings

    assert {(finding.code, finding.boost_id) for finding in found} == {
        (Code.STORE_DIFFERS, first.id),
        (Code.STORE_DIFFERS, second.id),
    }


def test_work_in_a_boost_that_is_over_is_ended_only_when_told(lab: WholeGrid) -> None:
    lease = lend(lab)
    pid = lab.cluster.start("a", 6, actor=True)
    lab.run(lab.service.release(lease.id, grace_s=1, wait_s=0))
    lab.wait(6)

    left = repaired(lab)
    assert kinds(left.findings) == {Code.WORK_OUTSIDE_LEASE}
    assert lab.cluster.running("a") == [pid]

    done = repaired(lab, may_kill=True)
    assert done.findings == ()
    assert lab.cluster.running("a") == []
    lab.wait(0.1)  # markers are lowered a moment later
    assert lab.cluster.is_at_base()


def test_a_boost_whose_node_is_gone_is_reported_until_it_ends(lab: WholeGrid) -> None:
    lend(lab)
    lab.wait(60)
    lab.cluster.kill_node("b")

    first = audited(lab)
    assert Code.NODE_GONE in kinds((*first.findings, *first.settled))

    lab.wait(5)
    assert audited(lab).findings == ()


DAMAGE = st.one_of(
    st.tuples(st.just("total"), st.sampled_from("abc"), st.integers(0, 9)),
    st.tuples(st.just("marker"), st.sampled_from("abc"), st.sampled_from(["grid:lent:cpu", "grid:borrowed:cpu"])),
    st.tuples(st.just("group"), st.sampled_from("abc"), st.integers(0, 1)),
    st.tuples(st.just("no group"), st.just("b"), st.just(0)),
    st.tuples(st.just("file"), st.just(""), st.integers(0, 100)),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(DAMAGE, min_size=1, max_size=4), st.integers(0, 1000))
def test_whatever_is_damaged_a_repair_leaves_nothing(damage: list[tuple[str, str, Any]], seed: int) -> None:
    """On an idle cluster there is no reason for anything to be left."""
    import tempfile
    from pathlib import Path

    from distributed_grid.config import GridConfig

    cluster = FakeCluster.lagging(seed)
    for name in "abc":
        cluster.add_node(name, cpus=4)
    config = GridConfig.from_dict(
        {"name": "lab", "resource_sharing": LENDS_ALL, "nodes": [{"name": name} for name in "abc"]}
    )
    with tempfile.TemporaryDirectory() as folder:
        grid = WholeGrid(cluster, config, Path(folder), seed)
        try:
            lend(grid, 1, duration_s=HOUR)
            held = lend(grid, 1, delivery="reserve", duration_s=HOUR)
            grid.run(grid.parts.flush())
            for what, where, how in damage:
                hurt(grid, held.id, what, where, how)

            report = repaired(grid)

            assert report.findings == (), report.to_dict()
            assert audited(grid).findings == ()
            assert set(grid.leases) == set(grid.on_disk())
        finally:
            grid.close()


def hurt(grid: WholeGrid, held: str, what: str, where: str, how: Any) -> None:
    match what:
        case "total":
            grid.cluster.tamper(where, CPU=float(how))
        case "marker":
            grid.cluster.tamper(where, **{how: 2.0})
        case "group":
            if grid.cluster.true_totals()[where].covers(grid.cluster.reserved(where) + cpu(1)):
                grid.cluster.foreign_group(f"grid-boost-nobodys-{how}", where, CPU=1)
        case "no group":
            grid.cluster.remove_group(grid.leases[held].placement_group if held in grid.leases else "")
        case "file":
            text = grid.home.boosts.read_text()
            grid.home.boosts.write_text(text[: len(text) * how // 100])


def test_a_report_is_json(lab: WholeGrid) -> None:
    lab.cluster.tamper("c", CPU=1)

    reported = json.loads(json.dumps(repaired(lab).to_dict()))

    assert reported["sound"] is True
    assert reported["repaired"][0]["code"] == "drifted_total"
