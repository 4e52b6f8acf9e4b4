"""What a role can say of its scaling, in which form it keeps it, and what it says of the rest."""

from dataclasses import asdict
from enum import StrEnum
from typing import Any

import pytest
from builders import workload

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.scaling import CallableSignal, MethodSignal, PrometheusSignal, QueueSignal, Scaling
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload

POOL = {"role": "pool", "method": "fullness"}
SERVER = {"prometheus": "https://me:secret@metrics:9090/prom", "query": "avg(queue)"}
FORMS = "queue, {role: ROLE, method: METHOD} or {prometheus: URL, query: QUERY}"
A_URL = "must be the URL of a Prometheus server, such as http://localhost:9090"


class Theirs(StrEnum):
    POOL = "pool"


def load() -> float:
    return 0.5


def problems_of(make: Any, **given: Any) -> dict[str, str]:
    with pytest.raises(InvalidRole) as caught:
        make(**given)
    return {".".join(map(str, path)): said for path, said in caught.value.problems}


@pytest.mark.parametrize(
    ("given", "source", "reported"),
    [
        ("queue", QueueSignal(), "queue"),
        (POOL, MethodSignal("pool", "fullness"), "pool.fullness"),
        (POOL | {"role": Theirs.POOL}, MethodSignal("pool", "fullness"), "pool.fullness"),
        (MethodSignal("pool", "fullness"), MethodSignal("pool", "fullness"), "pool.fullness"),
        (SERVER, PrometheusSignal(*SERVER.values()), "avg(queue)"),
        (load, CallableSignal(load), "load"),
    ],
)
def test_a_signal_has_one_form_however_it_is_given(given: Any, source: Any, reported: str) -> None:
    found = Scaling(given, up_at=4, down_at=1)

    assert found.signal == found.source == source
    assert found.describe() == f"{reported}: up at 4, down at 1"


def test_which_way_it_scales_follows_from_the_thresholds() -> None:
    assert Scaling("queue", up_at=4, down_at=1).rises
    assert not Scaling(POOL, up_at=0.3, down_at=0.8).rises


def test_the_password_of_a_server_is_not_shown() -> None:
    found = Scaling(SERVER, up_at=4, down_at=1)

    assert "secret" not in repr(found) + found.describe()
    assert "secret" not in str(problems_of(Scaling, signal=SERVER | {"query": ""}, up_at=4, down_at=1))


def test_a_long_query_is_cut_where_it_is_reported() -> None:
    assert len(PrometheusSignal("http://m", "x" * 500).describe()) == 60


@pytest.mark.parametrize(
    ("field", "value", "where", "said"),
    [
        ("signal", "load", "signal", f"must be {FORMS}, not 'load'"),
        ("signal", 4, "signal", f"must be {FORMS}, not 4"),
        ("signal", {"role": "pool"}, "signal", f"must be {FORMS}, not a mapping of role"),
        ("signal", {}, "signal", f"must be {FORMS}, not a mapping of nothing"),
        ("signal", POOL | SERVER, "signal", f"must be {FORMS}, not a mapping of role, method, prometheus, query"),
        ("signal", POOL | {"role": "a b"}, "signal.role", "must not contain spaces or '/', but is 'a b'"),
        ("signal", POOL | {"method": "a.b"}, "signal.method", "must be the name of a public method, not 'a.b'"),
        ("signal", SERVER | {"prometheus": "ftp://x"}, "signal.prometheus", A_URL),
        ("signal", SERVER | {"prometheus": "http://x:port"}, "signal.prometheus", A_URL),
        ("signal", SERVER | {"prometheus": 9090}, "signal.prometheus", A_URL),
        ("signal", SERVER | {"query": " "}, "signal.query", "must be a query, not ' '"),
        ("up_at", True, "up_at", "must be a number, not true"),
        ("up_at", float("nan"), "up_at", "must be a finite number, not nan"),
        ("up_at", 1, "down_at", "must differ from up_at, which is also 1: nothing changes between the two"),
        ("up_at", 0.5, "up_at", "must be above down_at (1): a longer queue needs more members"),
        ("down_at", None, "down_at", "is missing"),
        ("step", 0, "step", "must be from 1 to 100000, not 0"),
        ("stable_seconds", -1, "stable_seconds", "must be zero or more, not -1"),
        ("cooldown_seconds", False, "cooldown_seconds", "must be a number, not false"),
        ("every_seconds", 0, "every_seconds", "must be above zero, not 0"),
        ("boost", "yes", "boost", "must be true or false, not 'yes'"),
        ("boost_duration_seconds", 0, "boost_duration_seconds", "must be above zero, not 0"),
    ],
)
def test_what_makes_no_sense_is_said(field: str, value: object, where: str, said: str) -> None:
    assert problems_of(Scaling, **{"signal": "queue", "up_at": 4, "down_at": 1} | {field: value}) == {where: said}


def test_all_problems_are_said_at_once_and_a_role_says_them_with_its_own() -> None:
    found = problems_of(RoleSpec, role="r", count=(1, 2), cpus=-1, scaling={"up_at": "x", "step": 0})

    assert [*found] == ["cpus", "scaling.signal", "scaling.up_at", "scaling.down_at", "scaling.step"]


def test_a_mapping_is_as_good_as_a_scaling() -> None:
    said = {"signal": "queue", "up_at": 4, "down_at": 1}

    assert RoleSpec("r", count=(1, 2), scaling=said).scaling == Scaling("queue", 4, 1)
    assert RoleSpec("r", count=(1, 2), scaling=asdict(Scaling("queue", 4, 1)) | said).follows == Scaling("queue", 4, 1)
    assert problems_of(RoleSpec, role="r", count=(1, 2), scaling=said | {"most": 3})["scaling"].startswith(
        "has no most;"
    )


@pytest.mark.parametrize("count", [1, 4, (2, 2)])
def test_only_a_role_with_a_range_scales(count: Any) -> None:
    many = count if isinstance(count, int) else 2
    said = {"scaling": f"needs a count with a min and a max, not {many}"}

    assert problems_of(RoleSpec, role="r", count=count, scaling=Scaling("queue", 4, 1)) == said


def test_a_count_that_is_wrong_is_not_blamed_on_the_scaling() -> None:
    assert [*problems_of(RoleSpec, role="r", count=(4, 2), scaling=Scaling("queue", 4, 1))] == ["count"]


@pytest.mark.parametrize("signal", ["queue", {"role": "r", "method": "load"}])
def test_a_role_that_tells_its_own_signal_cannot_begin_without_members(signal: Any) -> None:
    found = problems_of(RoleSpec, role="r", count=(0, 2), scaling=Scaling(signal, 4, 1))

    assert "count needs a min of 1" in found["scaling.signal"]
    assert RoleSpec("r", count=(0, 2), scaling=Scaling(POOL, 4, 1)).least == 0


def test_a_role_whose_count_becomes_fixed_follows_nothing() -> None:
    role = RoleSpec("r", count=(1, 4), scaling=Scaling("queue", 4, 1))

    assert role.with_count(2).scaling is None
    assert role.with_count((2, 2)).scaling is None
    assert role.with_count((1, 8)).follows == Scaling("queue", 4, 1)


def test_the_role_of_a_signal_is_one_of_the_workload() -> None:
    role = RoleSpec("r", count=(1, 4), scaling=Scaling(POOL, 4, 1))

    found = problems_of(Workload, name="w", roles=(role, RoleSpec("s")))

    assert found == {"roles.r.scaling.signal.role": "there is no role 'pool'; there are r, s"}
    assert workload(role, RoleSpec("pool")).role("r") is role


def test_of_a_colocation_group_one_role_may_say_how_it_scales() -> None:
    group: dict[str, Any] = {"count": (1, 4), "colocation_group": "g"}
    scaling = Scaling("queue", 4, 1)

    found = problems_of(
        Workload, name="w", roles=(RoleSpec("a", scaling=scaling, **group), RoleSpec("b", scaling=scaling, **group))
    )

    assert found == {
        "roles.b.scaling": "a, in the same colocation group, already defines it for the group; only one may"
    }
    assert workload(RoleSpec("a", scaling=scaling, **group), RoleSpec("b", **group))
