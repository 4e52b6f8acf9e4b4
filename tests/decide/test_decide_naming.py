"""Which raylet is which configured node: by label, then host name, then address."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.monitoring.naming import NAME_LABEL, ConfiguredName, Naming, Raylet, name_raylets


def raylet(node_id: str, label: str | None = None, host: str = "", ip: str = "10.0.0.1") -> Raylet:
    return Raylet(node_id, {NAME_LABEL: label} if label else {}, host, ip, {})


def named(raylets: list[Raylet], *configured: Any) -> tuple[dict[str, str], Naming]:
    wanted = [ConfiguredName(c) if isinstance(c, str) else ConfiguredName(*c) for c in configured]
    naming = name_raylets(raylets, wanted)
    return {name: r.node_id for name, r in naming.raylets.items()}, naming


def test_a_label_names_a_raylet() -> None:
    found_names, naming = named([raylet("1", "gpu1", host="x"), raylet("2", "gpu2", host="x")], "gpu1", "gpu2")
    assert found_names == {"gpu1": "1", "gpu2": "2"}
    assert (naming.missing, naming.problems) == ((), ())


def test_a_host_name_does_where_there_is_no_label() -> None:
    found_names, _ = named([raylet("1", host="gpu1.lab.example"), raylet("2", host="box")], "gpu1", ("gpu2", "box"))
    assert found_names == {"gpu1": "1", "gpu2": "2"}


def test_a_configured_host_may_be_written_with_or_without_its_domain() -> None:
    assert named([raylet("1", host="box")], ("gpu1", "box.lab.example"))[0] == {"gpu1": "1"}
    assert named([raylet("1", host="box.lab.example")], ("gpu1", "box"))[0] == {"gpu1": "1"}


def test_an_address_does_where_nothing_else_fits() -> None:
    found_names, _ = named([raylet("1", host="x", ip="10.0.0.7")], ("gpu1", "10.0.0.7"))
    assert found_names == {"gpu1": "1"}


def test_a_label_goes_before_a_host_name() -> None:
    found_names, _ = named([raylet("1", host="gpu1"), raylet("2", "gpu1", host="y")], "gpu1")
    assert found_names["gpu1"] == "2"


def test_a_labelled_raylet_is_not_taken_for_another_node_on_its_host() -> None:
    found_names, naming = named([raylet("1", "special", host="gpu1")], "gpu1")
    assert found_names == {"special": "1"}
    assert naming.missing == ("gpu1",)


def test_several_raylets_on_one_host_cannot_be_told_apart_without_labels_and_that_is_said() -> None:
    found_names, naming = named([raylet("aaaaaa1", host="gpu1"), raylet("bbbbbb2", host="gpu1")], "gpu1")
    assert naming.missing == ("gpu1",)
    assert found_names == {"gpu1-aaaaaa": "aaaaaa1", "gpu1-bbbbbb": "bbbbbb2"}
    (problem,) = naming.problems
    assert "2 raylets have that host" in problem
    assert NAME_LABEL in problem


def test_of_two_raylets_with_one_label_one_has_the_name_and_none_is_forgotten() -> None:
    found_names, _ = named([raylet("bbbbbb2", "gpu1"), raylet("aaaaaa1", "gpu1")], "gpu1")
    assert found_names == {"gpu1": "aaaaaa1", "gpu1-bbbbbb": "bbbbbb2"}


def test_a_configured_node_that_is_not_there_is_missing() -> None:
    _, naming = named([raylet("1", "gpu1")], "gpu1", "gpu2")
    assert naming.missing == ("gpu2",)


def test_a_raylet_that_is_not_configured_has_its_label_host_or_address_as_name() -> None:
    found_names, _ = named([raylet("1", "x"), raylet("2", host="y"), raylet("3", ip="10.0.0.3")])
    assert found_names == {"x": "1", "y": "2", "10.0.0.3": "3"}


def test_a_raylet_without_a_host_name_is_not_taken_for_a_node_without_a_host() -> None:
    found_names, naming = named([raylet("1", host="", ip="10.0.0.3")], "gpu1")
    assert naming.missing == ("gpu1",)
    assert found_names == {"10.0.0.3": "1"}


def test_an_address_is_not_matched_by_its_first_number() -> None:
    found_names, naming = named([raylet("1", host="10.0.0.6", ip="10.0.0.6")], ("gpu1", "10.0.0.5"))
    assert naming.missing == ("gpu1",)
    assert found_names == {"10.0.0.6": "1"}


def test_a_configured_name_is_there_or_missing_and_never_both() -> None:
    found_names, naming = named([raylet("1", host="gpu1"), raylet("2", host="box")], ("gpu1", "box"))
    assert not set(found_names) & set(naming.missing)


hosts = st.sampled_from(["gpu1", "gpu2.lab", "box", "10.0.0.1"])
raylets = st.lists(
    st.builds(
        raylet, st.uuids().map(lambda u: u.hex), st.none() | st.sampled_from(["gpu1", "gpu2", "x"]), hosts, hosts
    ),
    unique_by=lambda r: r.node_id,
    max_size=6,
)
configured = st.lists(
    st.builds(ConfiguredName, st.sampled_from(["gpu1", "gpu2", "gpu3"]), st.none() | hosts),
    unique_by=lambda c: c.name,
    max_size=3,
)


@given(raylets, configured, st.randoms())
def test_every_raylet_has_one_name_whatever_order_ray_lists_them_in(
    found_raylets: list[Raylet], wanted: list[ConfiguredName], chance: Any
) -> None:
    naming = name_raylets(found_raylets, wanted)
    assert sorted(r.node_id for r in naming.raylets.values()) == sorted(r.node_id for r in found_raylets)
    shuffled = list(found_raylets)
    chance.shuffle(shuffled)
    assert name_raylets(shuffled, wanted) == naming
