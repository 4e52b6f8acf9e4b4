"""A request is checked once, at the edge: whatever makes no sense is refused there, and says so."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.errors import InvalidAmount, InvalidDuration, InvalidRequest, SameNode, UnknownResource
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import Delivery, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import (
    DEFAULT_DURATION_S,
    MOST_SOURCES,
    Ask,
    command,
    make_ask,
    request_body,
    reservation,
)
from distributed_grid.model.resources import GB
from distributed_grid.model.validators import LONGEST_S, NEVER_S, seconds


def _body(**changes: Any) -> Any:
    return {"target_node": "gpu-master", "resource_type": "cpu", "amount": 2} | changes


def test_a_plain_request_gets_the_defaults() -> None:
    ask = make_ask(_body(amount="2"))
    assert (ask.target, ask.kind, ask.units) == ("gpu-master", "cpu", 20_000)
    assert (ask.priority, ask.duration_s) == (AllocationPriority.NORMAL, DEFAULT_DURATION_S)
    assert (ask.source, ask.delivery, ask.grace_s, ask.on_grace_end, ask.idempotency_key) == (None,) * 5
    assert ask.describe() == "2 CPUs for gpu-master"


def test_every_field_arrives() -> None:
    body = _body(
        target_node="a",
        resource_type="Memory",
        amount=1.5,
        priority="HIGH",
        duration_seconds="90",
        source_node="b",
        delivery="auto",
        grace_seconds=0,
        on_grace_end="kill",
    )
    ask = make_ask(body, requester="ann", idempotency_key="k1")
    assert (ask.kind, ask.units, ask.priority, ask.duration_s) == ("memory", 3 * GB // 2, AllocationPriority.HIGH, 90)
    assert (ask.source, ask.delivery, ask.grace_s, ask.on_grace_end) == ("b", "auto", 0.0, OnGraceEnd.KILL)
    assert (ask.requester, ask.idempotency_key) == ("ann", "k1")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"resource_type": "object_store_memory"}, UnknownResource),
        ({"resource_type": ""}, UnknownResource),
        ({"amount": 0}, InvalidAmount),
        ({"amount": "lots"}, InvalidAmount),
        ({"resource_type": "gpu", "amount": 0.5}, InvalidAmount),
        ({"source_node": "gpu-master"}, SameNode),
        ({"along": {"CPU": 1}}, InvalidRequest),
        ({"along": {"memory": 1, "Memory": 1}}, InvalidRequest),
        ({"along": {"memory": -1}}, InvalidAmount),
        ({"along": {"memory": 1}, "delivery": "transfer"}, InvalidRequest),
        ({"purpose": "fun"}, InvalidRequest),
        ({"delivery": "teleport"}, InvalidRequest),
        ({"resource_type": "gpu", "amount": 1, "delivery": "transfer"}, InvalidRequest),
        ({"priority": "urgent"}, InvalidRequest),
        ({"duration_seconds": 0}, InvalidDuration),
        ({"duration_seconds": -1}, InvalidDuration),
        ({"duration_seconds": "soon"}, InvalidDuration),
        ({"duration_seconds": LONGEST_S * 2}, InvalidDuration),
        ({"grace_seconds": -0.1}, InvalidDuration),
        ({"on_grace_end": "explode"}, InvalidRequest),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], error: type[InvalidRequest]) -> None:
    with pytest.raises(error) as caught:
        make_ask(_body(**wrong))
    assert caught.value.exit_code == 2
    assert caught.value.message


def test_a_part_of_a_gpu_can_be_asked_for_where_that_is_allowed() -> None:
    assert make_ask(_body(resource_type="gpu", amount=0.5), fractional_gpus=True).units == 5_000


@pytest.mark.parametrize(
    "nonsense", [None, "", "nan", "inf", "-inf", True, [], "1x", "1e99", "30m1h", "1h1h", "-1h", "h"]
)
def test_a_length_of_time_is_a_finite_number_of_seconds(nonsense: object) -> None:
    with pytest.raises(InvalidDuration):
        seconds("duration", nonsense)


@pytest.mark.parametrize(
    ("written", "s"), [("90", 90), (90, 90), ("30m", 1800), ("1h30m", 5400), ("1h 30m", 5400), ("2D", 172800)]
)
def test_a_length_of_time_is_written_in_one_way_everywhere(written: object, s: float) -> None:
    assert seconds("duration", written) == s
    assert make_ask(_body(duration_seconds=written, grace_seconds=written)).duration_s == s


@given(st.floats(0, LONGEST_S, exclude_min=True))
def test_every_sensible_length_is_taken_as_it_is(length: float) -> None:
    assert seconds("duration", length) == length


def test_only_a_grace_period_may_be_nothing() -> None:
    assert seconds("grace period", 0, zero_allowed=True) == 0.0
    with pytest.raises(InvalidDuration):
        seconds("duration", 0)


def test_what_comes_along_is_counted_in_units_and_named_once() -> None:
    along: dict[str, Any] = {"memory": 2, "CPU": "4"}
    asked = make_ask(_body(resource_type="gpu", amount=1, along=along, purpose="run", label="train.py " * 50))
    assert asked.along == (("cpu", 40_000), ("memory", 2 * GB))
    assert (asked.purpose, len(asked.label)) == (Purpose.RUN, 200)
    assert asked.describe() == "1 GPU, 4 CPUs, 2 GB of memory for gpu-master"


@pytest.mark.parametrize("process", ["", "12", "g" * 56, "a" * 57, "a" * 56 + "\n"])
def test_what_a_boost_is_to_end_with_must_be_a_ray_process(process: str) -> None:
    with pytest.raises(InvalidRequest, match="not the id of a Ray process"):
        make_ask(_body(ends_with=process))
    assert make_ask(_body(ends_with="AB" * 28)).ends_with == "ab" * 28


def test_a_reservation_for_a_program_is_led_by_the_scarcest_kind() -> None:
    asked = make_ask(reservation("a", {"accel": 1, "memory": 8, "cpu": 2, "gpu": 1}, source_node="a", label="train"))
    assert (asked.target, asked.kind, asked.source, asked.label) == ("a", "gpu", "a", "train")
    assert [kind for kind, _ in asked.along] == ["accel", "cpu", "memory"]
    assert (asked.delivery, asked.on_grace_end, asked.own_too) == (Delivery.RESERVE, OnGraceEnd.KILL, True)


def test_one_kind_has_nothing_along_so_that_a_plan_takes_the_request_too() -> None:
    assert request_body("a", {"cpu": 2}) == {"target_node": "a", "resource_type": "cpu", "amount": 2}


def test_a_command_makes_the_same_request() -> None:
    plain = Ask("a", "cpu", 20_000, max_sources=MOST_SOURCES)
    terms = {"priority": AllocationPriority.HIGH, "duration_s": 90.0, "grace_s": 0.0, "on_grace_end": OnGraceEnd.KILL}
    full = Ask("a", "memory", 3 * GB // 2, sources=("b",), delivery="transfer", idle_after=NEVER_S, **terms)
    assert command(plain) == "grid boost request a cpu 2"
    words = (
        "--source b --priority high --duration 90 --delivery transfer --grace 0 --idle-after never --on-grace-end kill"
    )
    assert command(full) == f"grid boost request a memory 1.5 {words}"
    assert command(full, queued=True) == f"grid resource-sharing request a memory 1.5 {words.partition(' --grace')[0]}"


@pytest.mark.parametrize(
    ("given", "kept"), [(None, None), ("never", NEVER_S), ("2h", 7200.0), (90, 90.0), ("90", 90.0)]
)
def test_a_request_says_when_its_lease_is_idle(given: Any, kept: float | None) -> None:
    ask = make_ask({"target_node": "a", "resource_type": "cpu", "amount": 2, "idle_after": given})
    assert ask.idle_after == kept
    assert ask.terms["idle_after"] == kept


@pytest.mark.parametrize("wrong", [0, "0", -1, "soon", "Never", True, 1e12])
def test_an_idle_time_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidDuration, match="The idle time must be"):
        make_ask({"target_node": "a", "resource_type": "cpu", "amount": 2, "idle_after": wrong})


def test_a_run_is_repeated_as_a_run_and_what_no_command_can_ask_for_has_none() -> None:
    run = Ask("a", "gpu", 10_000, along=(("cpu", 20_000),), sources=("b",), delivery="reserve", purpose=Purpose.RUN)
    assert command(run) == "grid run --gpus 1 --cpus 2 --source b"
    assert command(Ask("a", "cpu", 1, along=(("accel", 10_000),), purpose=Purpose.RUN)) is None
    assert command(Ask("a", "cpu", 10_000, along=(("memory", GB),))) is None
    assert command(Ask("a", "cpu", 10_000, along=(("memory", GB),)), queued=True) is None
    assert command(run, queued=True) is None
    assert command(Ask("a", "cpu", 10_000, purpose=Purpose.TASK)) is None


@pytest.mark.parametrize("asked", [{"resource_type": "gpu", "amount": 1.5}, {"along": {"gpu": 1.5}}], ids=str)
def test_a_request_is_for_a_fraction_of_one_gpu_or_for_whole_gpus(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidAmount) as caught:
        make_ask(_body(**asked), fractional_gpus=True)
    assert caught.value.message == "1.5 GPUs: Ray gives out a fraction of one GPU, or whole GPUs"
    assert caught.value.try_next == "Ask for 1 or 2."


# -- who may lend it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "sources", "most"),
    [
        ({}, (), MOST_SOURCES),
        ({"source_node": None, "source_nodes": None, "max_sources": None}, (), MOST_SOURCES),
        ({"source_nodes": []}, (), MOST_SOURCES),
        ({"source_node": "b"}, ("b",), 1),
        ({"source_nodes": ["b", "c"]}, ("b", "c"), 2),
        ({"source_node": "c", "source_nodes": ["b", "c", "b"]}, ("c", "b"), 2),
        ({"source_nodes": ["b", "c"], "max_sources": 1}, ("b", "c"), 1),
        ({"source_nodes": ["b", "c"], "max_sources": MOST_SOURCES}, ("b", "c"), 2),
        ({"max_sources": 3}, (), 3),
    ],
    ids=str,
)
def test_a_request_names_who_may_lend_it_and_how_many_together(
    body: dict[str, Any], sources: tuple[str, ...], most: int
) -> None:
    ask = make_ask(_body(**body))
    assert (ask.sources, ask.max_sources) == (sources, most)
    assert ask.source == (sources[0] if len(sources) == 1 else None)


@pytest.mark.parametrize("most", [0, -1, MOST_SOURCES + 1, 1.5, 2.0, True, "2", "many"])
def test_the_number_of_lenders_is_a_whole_number_within_its_limits(most: object) -> None:
    with pytest.raises(InvalidRequest, match="number of lenders must be a whole number from 1 to 64"):
        make_ask(_body(max_sources=most))


@pytest.mark.parametrize("sources", [{"source_nodes": ["b", "gpu-master"]}, {"source_nodes": ["gpu-master"]}])
def test_the_target_is_not_among_its_lenders(sources: dict[str, Any]) -> None:
    with pytest.raises(SameNode, match="gpu-master cannot lend to itself"):
        make_ask(_body(**sources))


def test_the_target_may_be_among_them_if_it_may_set_its_own_aside() -> None:
    assert make_ask(_body(source_nodes=["b", "gpu-master"], own_too=True)).sources == ("b", "gpu-master")


@pytest.mark.parametrize(
    "for_one",
    [{"along": {"memory": 1}}, {"purpose": "task"}, {"purpose": "roles"}, {"purpose": "run", "members": 1}],
    ids=str,
)
def test_what_a_boost_of_several_kinds_or_one_member_needs_comes_from_one_lender(for_one: dict[str, Any]) -> None:
    assert make_ask(_body(**for_one)).max_sources == 1
    assert make_ask(_body(**for_one, source_nodes=["b", "c"], max_sources=2)).max_sources == 1


def test_a_command_repeats_who_may_lend_it_and_how_many_together() -> None:
    assert command(make_ask(_body())) == "grid boost request gpu-master cpu 2"
    asked = _body(source_nodes=["b", "c"])
    assert command(make_ask(asked)) == "grid boost request gpu-master cpu 2 --source b --source c"
    assert command(make_ask({**asked, "max_sources": 1})) == (
        "grid boost request gpu-master cpu 2 --source b --source c --max-sources 1"
    )
    assert command(make_ask(_body(source_node="b", max_sources=1))) == "grid boost request gpu-master cpu 2 --source b"
    assert command(make_ask(_body(max_sources=3)), queued=True) == (
        "grid resource-sharing request gpu-master cpu 2 --max-sources 3"
    )


RANGES = {
    "5..2": "must end above its beginning",
    "2..2": "must end above its beginning",
    "2...4": "'2...4' is not a range",
    "..": "'..' is not a range",
    "2..": "'2..' is not a range",
    "2..x": "'x' is not a number",
}


@pytest.mark.parametrize(("given", "why"), RANGES.items())
def test_a_wrong_range_is_refused_with_what_is_wrong(given: str, why: str) -> None:
    with pytest.raises(InvalidAmount, match=re.escape(why)):
        make_ask(reservation("head", {"cpu": given}))


@pytest.mark.parametrize(
    ("amounts", "terms", "why"),
    [
        ({"gpu": "1..2"}, {}, "A range is for CPUs, not for GPUs"),
        ({"gpu": "1", "cpu": "1..4"}, {}, "does not go with GPUs"),
        ({"cpu": "..4", "memory": "2"}, {}, "is for one kind"),
        ({"cpu": "1..4"}, {"members": 2}, "not for one on each of several nodes"),
    ],
)
def test_what_cannot_grow_is_refused(amounts: dict[str, str], terms: dict[str, int], why: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(why)):
        make_ask(reservation("head", amounts, **terms))


def test_a_range_is_a_least_amount_that_grows_and_its_command_says_so() -> None:
    run = make_ask(reservation("head", {"cpu": "2..16", "memory": "4"}, purpose="run"))
    assert (run.amounts, run.is_cap) == ("2 to 16 CPUs, 4 GB of memory", False)
    assert command(run) == "grid run --cpus 2..16 --memory 4"
    limit = make_ask(reservation("head", {"cpu": "..16"}, purpose="run"))
    assert (limit.amounts, limit.is_cap) == ("up to 16 CPUs", True)
    assert command(limit) == "grid run --cpus ..16"
