"""A cluster started again has its boosts back; another one gets none of them, unless it is told to take them over."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import LENDS_ALL, ask
from disks import filled, small_disk
from fake_cluster import FakeCluster
from whole_grid import WholeGrid

from distributed_grid.config import GridConfig
from distributed_grid.errors import StoreBroken
from distributed_grid.model.leases import LeaseState
from distributed_grid.store.boost_file import BoostFile

ACTIVE = LeaseState.ACTIVE

pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[..., WholeGrid]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make("old", a=4, b=4)`: a cluster with these nodes and CPUs, all in the same home, only one of them alive."""
    made: list[WholeGrid] = []

    def build(name: str, *, home: Path | None = None, first_id: int = 1, **cpus: int) -> WholeGrid:
        cluster = FakeCluster()
        for node, amount in cpus.items():
            cluster.add_node(node, cpus=amount, gpus=1)
        nodes = [{"name": node} for node in cpus]
        config = GridConfig.from_dict({"name": name, "resource_sharing": LENDS_ALL, "nodes": nodes})
        made.append(WholeGrid(cluster, config, home or tmp_path / "home", first_id=first_id))
        return made[-1]

    yield build
    for grid in reversed(made):
        grid.ids.stop()


def two_boosts(grid: WholeGrid) -> set[str]:
    """A transfer and a reservation, both from a to b."""
    boosts = [grid.run(grid.service.request(ask("b", kind, 1, source="a"))) for kind in ("cpu", "gpu")]
    grid.wait(0.5)
    return {boost.id for boost in boosts}


def kept(grid: WholeGrid) -> dict[str, set[str]]:
    """What is set aside, by the file it is in."""
    files = [file for file in grid.home.path.glob("*.of-*") if not file.name.endswith(".previous")]
    return {file.name: {lease.id for lease in BoostFile(file).load().leases} for file in sorted(files)}


def replace_name(config: GridConfig, name: str) -> GridConfig:
    return GridConfig.from_dict(config.to_dict() | {"name": name})


def test_the_same_cluster_started_again_has_its_unexpired_boosts_back(make: Make) -> None:
    old = make("lab", a=4, b=4)
    boosts = two_boosts(old)
    old.run(old.service.request(ask("b", amount=1, duration_s=5.0)))
    old.bury()
    old.clock.sleep(10.0)

    again = make("lab", a=4, b=4, c=4)  # new raylets, and a node more
    again.clock.sleep(10.0)
    again.wait(2.0)

    assert {lease.id for lease in again.leases.values() if lease.state is ACTIVE} == boosts
    assert again.cluster.true_totals()["b"]["cpu"] == 5 * 10_000
    assert len(again.cluster.groups()) == 1
    assert not again.notes()
    again.bury()


def test_another_cluster_gets_nothing_and_is_told_how_to_take_it_over(make: Make) -> None:
    old = make("old", a=4, b=4)
    boosts = two_boosts(old)
    old.bury()

    new = make("new", a=4, b=4)
    new.wait(2.0)

    assert not new.leases
    assert new.cluster.is_at_base()
    assert kept(new) == {"resource_boosts.json.of-old": boosts}
    for reported in (new.notes(), new.problems(), *new.events("other_cluster")):
        assert (
            "The cluster 'old' (nodes a, b) has 2 boosts in this GRID_HOME, which do not apply to this cluster, 'new'"
            in reported
        )
        assert "They are kept in resource_boosts.json.of-old" in reported
        assert "start it with --adopt" in reported
    new.crash()
    assert "--adopt" in new.problems()  # as long as it is so
    new.bury()


def test_what_was_set_aside_comes_back_when_its_cluster_does(make: Make) -> None:
    old = make("old", a=4, b=4)
    boosts = two_boosts(old)
    old.bury()
    new = make("new", a=4, b=4, first_id=101)
    others = two_boosts(new)
    new.bury()

    old = make("old", a=4, b=4, first_id=201)
    old.wait(2.0)
    assert set(old.leases) == boosts
    assert kept(old) == {"resource_boosts.json.of-new": others}
    assert "2 boosts of this cluster came back from resource_boosts.json.of-old" in old.notes()
    for boost in boosts:
        old.run(old.service.release(boost))
    old.wait(0.5)
    old.bury()

    new = make("new", a=4, b=4, first_id=301)
    assert set(new.leases) == others
    assert kept(new) == {}
    new.bury()


def test_with_adopt_the_boosts_of_the_other_cluster_are_taken_over(make: Make) -> None:
    old = make("old", a=4, b=4)
    boosts = two_boosts(old)
    old.run(old.service.request(ask("b", amount=1, duration_s=5.0)))
    old.bury()

    new = make("new", a=4, b=4, c=2)
    new.bury()
    new.clock.sleep(10.0)
    new.start(adopt=True)  # after a start without it: they were set aside then
    new.wait(2.0)

    assert {lease.id for lease in new.leases.values() if lease.state is ACTIVE} == boosts
    assert new.cluster.true_totals()["b"]["cpu"] == 5 * 10_000
    assert len(new.cluster.groups()) == 1
    assert new.notes() == "took over 2 boosts of the cluster 'old' (nodes a, b)"
    assert new.events("adopted")
    assert not new.problems()
    assert kept(new) == {}
    assert json.loads(new.home.boosts.read_text())["cluster"]["name"] == "new"

    for boost in boosts:
        new.run(new.service.release(boost))
    new.wait(0.5)
    new.bury()
    new.start(adopt=True)
    assert not new.leases  # what has ended does not come back
    new.bury()


def test_adopt_at_the_first_start_does_the_same(make: Make) -> None:
    old = make("old", a=4, b=4)
    boosts = two_boosts(old)
    old.bury()
    old.config = replace_name(old.config, "new")
    old.start(adopt=True)  # the very same raylets, with another name in the configuration
    assert set(old.leases) == boosts
    assert kept(old) == {}
    assert old.cluster.true_totals()["b"]["cpu"] == 5 * 10_000
    old.bury()


def test_without_adopt_a_renamed_cluster_has_everything_home(make: Make) -> None:
    old = make("old", a=4, b=4)
    two_boosts(old)
    old.bury()
    old.config = replace_name(old.config, "new")
    old.start()
    old.wait(2.0)
    assert old.cluster.is_at_base(), old.cluster.differences()
    assert not old.cluster.groups()
    old.bury()


def test_what_cannot_be_taken_over_is_reported_and_stays_where_it_is(make: Make) -> None:
    old = make("old", a=4, b=4, c=4)
    fits = old.run(old.service.request(ask("b", amount=2, source="a")))
    old.clock.sleep(1.0)
    too_much = old.run(old.service.request(ask("b", amount=2, source="a")))
    no_node = old.run(old.service.request(ask("b", amount=1, source="c")))
    old.wait(0.5)
    old.bury()

    new = make("new", a=3, b=4)
    new.bury()
    new.start(adopt=True)
    assert list(new.leases) == [fits.id]
    assert kept(new) == {"resource_boosts.json.of-old": {too_much.id, no_node.id}}
    assert "took over 1 boost of" in new.notes()
    assert "stays in resource_boosts.json.of-old: a: 1 of 3 CPUs free, 2 requested" in new.problems()
    assert "stays in resource_boosts.json.of-old: no node here is named c" in new.problems()
    new.bury()


def test_the_same_name_with_none_of_the_nodes_is_another_cluster(make: Make) -> None:
    old = make("lab", a=4, b=4)
    two_boosts(old)
    old.bury()
    new = make("lab", x=4, y=4)
    assert not new.leases
    assert "'lab' (nodes a, b) has 2 boosts" in new.problems()
    new.bury()


def test_a_name_that_is_no_file_name_does_no_harm(make: Make) -> None:
    old = make("../../../tmp/a b.previous", a=4, b=4)
    boosts = two_boosts(old)
    old.bury()
    new = make("new", a=4, b=4)
    assert kept(new) == {"resource_boosts.json.of--tmp-a-b-previous": boosts}
    new.bury()


def test_a_damaged_file_of_another_cluster_is_kept_from_its_previous_version(make: Make) -> None:
    old = make("old", a=4, b=4)
    boosts = two_boosts(old)
    old.bury()
    old.home.boosts.write_bytes(old.home.boosts.read_bytes()[:-40])
    new = make("new", a=4, b=4)
    assert kept(new) == {"resource_boosts.json.of-old": boosts}
    assert "is damaged" in new.problems()
    new.bury()


def test_a_full_disk_keeps_another_cluster_out_rather_than_lose_anything(make: Make, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        old = make("old", a=4, b=4, home=disk)
        boosts = two_boosts(old)
        old.bury()
        with filled(disk), pytest.raises(StoreBroken, match="No space left"):
            make("new", a=4, b=4, home=disk)
        old.start()
        assert set(old.leases) == boosts
        old.bury()


def test_leases_that_wind_down_are_not_taken_over(make: Make) -> None:
    old = make("old", a=4, b=4)
    boost = old.run(old.service.request(ask("b", amount=2, source="a")))
    old.cluster.start("b", 6)
    old.run(old.service.release(boost.id, wait_s=0.0))
    old.wait(0.5)
    assert old.leases[boost.id].is_winding_down
    old.bury()
    new = make("new", a=4, b=4)
    assert not new.problems()
    new.bury()
    new.start(adopt=True)
    assert not new.leases
    new.bury()
