"""Floods: long fields, many requests, many refusals. No caller is pushed aside, and the log still says who did what."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_grid import ServedGrid

from distributed_grid.client.connections import Unreachable
from distributed_grid.controller import limits
from distributed_grid.controller.direct_route import LONGEST_BODY
from distributed_grid.leases.journal import FOLDED, FOLDED_ABOVE, NEVER_FOLDED, Journal
from distributed_grid.store.audit_log import MOST_BYTES, REFUSED, SECURITY, AuditLog, Wanted

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)
MB = 2**20
BOOST = {"target_node": "a", "resource_type": "cpu", "amount": 1}


# -- every field ---------------------------------------------------------------------------------------------


def unlimited(schema: dict[str, Any], document: dict[str, Any], place: str) -> Iterator[str]:
    """Where in a schema something of any length is allowed."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    for way in (*schema.get("anyOf", ()), *schema.get("allOf", ()), *schema.get("oneOf", ())):
        yield from unlimited(way, document, place)
    match schema.get("type"):
        case "string" if "maxLength" not in schema and "enum" not in schema and "const" not in schema:
            yield place
        case "array":
            yield from () if "maxItems" in schema else (f"{place}[]",)
            yield from unlimited(schema["items"], document, f"{place}[]")
        case "object":
            for name, inner in schema.get("properties", {}).items():
                yield from unlimited(inner, document, f"{place}.{name}")
            if (others := schema.get("additionalProperties", True)) is not False:
                yield from () if "maxProperties" in schema else (f"{place}.*",)
                yield from unlimited(others, document, f"{place}.*") if isinstance(others, dict) else ()
                if "propertyNames" not in schema:
                    yield f"{place}.*: names"


def test_every_text_list_and_table_of_every_request_has_a_limit(served: ServedGrid) -> None:
    status, document = served.ask("GET", "/openapi.json")
    assert status == 200
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            place = f"{method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                found += unlimited(parameter["schema"], document, f"{place}?{parameter['name']}")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                found += unlimited(content["schema"], document, place)
    assert found == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/boosts", BOOST | {"target_node": "x" * 1000}),
        ("POST", "/boosts", BOOST | {"label": "x" * 2000}),
        ("POST", "/boosts", BOOST | {"along": {f"k{n}": 1 for n in range(100)}}),
        ("POST", "/boosts", BOOST | {"x" * 10_000: 1}),
        ("POST", "/requests", BOOST | {"resource_type": "x" * 1000}),
        ("POST", "/tasks", {"tags": ["x"] * 1000}),
        ("POST", "/tasks", {"tags": ["x" * 1000]}),
        ("GET", f"/boosts?node={'x' * 1000}", None),
        ("GET", f"/boosts/{'x' * 1000}", None),
        ("DELETE", f"/tokens/{'x' * 1000}", None),
    ],
)
def test_what_is_too_long_is_refused_in_few_words_and_leaves_no_trace(
    served: ServedGrid, method: str, path: str, body: Any
) -> None:
    before = len(served.audit())
    admin = served.token("admin-of-tests", "admin")
    status, answer = served.ask(method, path, body, token=admin)

    assert status == 422
    assert len(json.dumps(answer)) < 10_000
    assert [entry["event"] for entry in served.audit()[before:]] == ["token_created"]


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 200_000, b'"\\ud800"', b"\xff" * 1000])
def test_json_that_is_deep_long_or_none_is_refused(served: ServedGrid, text: bytes) -> None:
    status, _ = raw_post(served, "/api/v1/boosts", text, served.token("deep", "lend"))

    assert status == 422


def test_a_body_that_is_too_large_is_not_even_read(served: ServedGrid) -> None:
    for length in (LONGEST_BODY + 1, 100 * MB):
        status, headers = raw_post(served, "/api/v1/boosts", b"{", served.token("large", "lend"), length=length)
        assert status == 413
        assert headers["connection"] == "close"


def raw_post(
    grid: ServedGrid, path: str, body: bytes, token: str, length: int | None = None
) -> tuple[int, dict[str, str]]:
    import http.client
    from urllib.parse import urlsplit

    place = urlsplit(grid.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Length": str(len(body) if length is None else length)}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


# -- the log and the memory ----------------------------------------------------------------------------------


def test_long_names_a_thousand_times_neither_fill_the_memory_nor_push_anything_out_of_the_log(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BURST_S", 10_000.0)  # all of them, at once
    ana, eve = fresh.token("ana", "lend"), fresh.token("eve", "lend")
    fresh.ask("POST", "/boosts", BOOST, token=ana)
    fresh.ask("GET", "/tokens", token=eve)
    before = psutil.Process().memory_info().rss

    for _ in range(200):
        with suppress(Unreachable):  # the controller does not wait for the end of it
            fresh.ask("POST", "/boosts", BOOST | {"target_node": "x" * MB}, token=eve)
        fresh.ask("POST", "/boosts", BOOST | {"target_node": "x" * 200_000}, token=eve)
    for number in range(200):
        fresh.ask("POST", "/boosts", BOOST | {"target_node": f"{number}" * 60}, token=eve)

    assert psutil.Process().memory_info().rss - before < 100 * MB
    assert len(json.dumps(fresh.client.events())) < 5 * MB
    events = [(entry["event"], entry["who"]) for entry in fresh.audit()]
    assert ("granted", "ana") in events
    assert ("access_refused", "eve") in events
    assert events.count(("refused", "eve")) <= 50
    assert [event for event, _ in events].count("token_created") == 2


def test_what_concerns_access_is_not_pushed_out_by_anything_else(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", rotate_above=10_000)
    for number, event in enumerate(sorted(SECURITY)):
        log.append(event, NOON + timedelta(seconds=number), who="ana")
    for number in range(1000):
        for event in sorted(REFUSED):
            log.append(event, NOON + timedelta(minutes=1, seconds=number), who="eve", padding="x" * 100)
    for number in range(1000):
        log.append("granted", NOON + timedelta(hours=1, seconds=number), who="eve", padding="x" * 100)

    kept = log.read()
    assert [entry["event"] for entry in kept][: len(SECURITY)] == sorted(SECURITY)
    assert {entry["event"] for entry in kept} == SECURITY | REFUSED | {"granted"}
    assert kept[-1]["event"] == "granted"
    assert [entry["at"] for entry in kept] == sorted(entry["at"] for entry in kept)
    assert {path.stat().st_mode & 0o777 for path in (log.security, log.refused)} == {0o600}


def test_what_concerns_access_waits_for_the_disk_apart_from_all_else(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "not there yet" / "audit.jsonl")
    journal = Journal(log, Clock())
    journal.note("token_revoked", "5f0c1a2b of eve", who="ana")
    for number in range(1500):
        journal.note("granted", "a boost", who="eve", number=number)
        journal.note("access_refused", "no", who=f"eve{number}")
    assert "entries wait to be written" in journal.problems[0]
    log.path.parent.mkdir()
    journal.catch_up()

    assert not journal.problems
    written = [entry["event"] for entry in log.read()]
    assert written.count("token_revoked") == 1
    assert "audit_gap" in written, "what was lost besides is told"


def test_a_file_of_the_log_that_cannot_be_written_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.path.mkdir()
    journal = Journal(log, Clock())
    journal.note("granted", "a boost", who="eve")
    journal.note("token_revoked", "5f0c1a2b of eve", who="ana")

    assert "token_revoked" in log.security.read_text()
    assert "1 entries wait" in journal.problems[0]


@given(st.lists(st.tuples(st.sampled_from(["granted", "token_created"]), st.integers(0, 3)), max_size=30))
def test_both_files_are_read_as_one_log_in_the_order_of_time(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("log") / "audit.jsonl", rotate_above=300, keep=50)
    at = NOON
    for number, (event, pause) in enumerate(events):
        at += timedelta(milliseconds=pause)
        log.append(event, at, number=number)

    found = log.read()
    assert sorted(entry["number"] for entry in found) == list(range(len(events)))
    assert [entry["at"] for entry in found] == sorted((entry["at"] for entry in found), key=datetime.fromisoformat)
    assert log.read(3) == found[-3:]


def test_an_answer_about_the_log_has_a_largest_size_and_says_when_it_is_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(40):
        log.append("granted", NOON, number=number, padding="x" * 500_000)
    found = log.read()

    assert found.is_cut
    assert found[-1]["number"] == 39
    assert MOST_BYTES / 2 < len(json.dumps(found)) <= MOST_BYTES + 10_000


def test_a_line_of_an_older_log_that_is_far_too_long_or_deep_is_left_out(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.append("first", NOON)
    with log.path.open("ab") as file:
        file.write(b'{"event": "x", "message": "' + b"x" * 3 * MB + b'"}\n' + b"[" * 100_000 + b"\n")
    log.append("last", NOON)

    assert [entry["event"] for entry in log.read()] == ["first", "last"]


def test_a_file_that_is_one_endless_line_takes_neither_memory_nor_what_was_logged_before_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.append("first", NOON)
    with log.path.open("r+b") as file:
        file.truncate(64 * MB)  # all zeros
    log.append("last", NOON)

    tracemalloc.start()
    try:
        found = [entry["event"] for entry in log.read()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == ["first", "last"]
    assert peak < 8 * MB


class Clock:
    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> datetime:
        return self.at


@pytest.mark.parametrize("event", sorted(FOLDED))
def test_refusals_in_a_row_are_counted_and_the_count_is_reported(tmp_path: Path, event: str) -> None:
    clock = Clock()
    log = AuditLog(tmp_path / "audit.jsonl")
    journal = Journal(log, clock)
    for number in range(500):
        journal.note(event, f"no {number}", who="eve")
    journal.note(event, "no", who="ana")
    clock.at += timedelta(minutes=2)
    journal.catch_up()

    of_eve = [entry["message"] for entry in log.find(Wanted(who="eve"))]
    assert len(of_eve) == FOLDED[event] + 1
    assert of_eve[0] == "no 0"
    assert f"{500 - FOLDED[event]} more" in of_eve[-1]
    assert len(log.find(Wanted(who="ana"))) == 1
    assert journal.counts[event] == 501
    journal.note(event, "again", who="eve")
    assert log.read()[-1]["message"] == "again"


@pytest.mark.parametrize("event", ["ran", "renewed", "task_rejected", "raylet_asked", "raylet_failed", "program_left"])
def test_whatever_a_user_does_over_and_over_is_counted_above_a_rate(tmp_path: Path, event: str) -> None:
    clock = Clock()
    log = AuditLog(tmp_path / "audit.jsonl")
    journal = Journal(log, clock)
    for _ in range(500):
        journal.note(event, "again", who="eve")
    journal.note(event, "once", who="ana")
    for _ in range(500):
        journal.note(event, "grid's own")
    clock.at += timedelta(minutes=2)
    journal.catch_up()

    of_eve = [entry["message"] for entry in log.find(Wanted(who="eve"))]
    assert len(of_eve) == FOLDED_ABOVE + 1
    assert f"{500 - FOLDED_ABOVE} more" in of_eve[-1]
    assert len(log.find(Wanted(who="ana"))) == 1
    assert len(log.find(Wanted(who="grid"))) == 500


@pytest.mark.parametrize("event", sorted(NEVER_FOLDED))
def test_changes_of_access_and_what_was_lent_are_always_reported(tmp_path: Path, event: str) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    journal = Journal(log, Clock())
    for number in range(200):
        journal.note(event, f"{number}", who="eve")

    assert [entry["message"] for entry in log.read()] == [f"{number}" for number in range(200)]


def test_events_are_cut_and_all_that_are_kept_together_have_a_largest_size(tmp_path: Path) -> None:
    journal = Journal(AuditLog(tmp_path / "audit.jsonl"), Clock())
    for number in range(1500):
        journal.note(
            "granted", "x" * MB, node="n" * MB, number=number, nodes=[{"node": "y" * 900}] * 1000, because=["z" * MB]
        )

    kept = journal.since(0)
    assert kept[-1].number == 1500
    assert sum(len(event.encoded) for event in kept) < 5 * MB
    assert all(len(event.encoded) < 50_000 for event in kept)
    assert "1048576 characters" in kept[-1].message


@pytest.mark.parametrize("since", ["0001-01-01T00:00Z", "0001-01-01T00:00:30Z", "9999-12-31T23:59:59Z", "0001-01-01"])
def test_the_log_can_be_asked_for_from_any_moment_on(served: ServedGrid, since: str) -> None:
    status, answer = served.ask("GET", f"/audit/log?since={since}", token=served.token("auditor", "view"))

    assert status == 200
    assert bool(answer["entries"]) == since.startswith("0001")


# -- how many -------------------------------------------------------------------------------------------------


def test_one_user_holds_and_waits_for_so_many_boosts_and_no_more(tmp_path: Path) -> None:
    grid = ServedGrid(tmp_path, limits={"boosts": 2, "waiting": 2})
    try:
        eve, ana = grid.token("eve", "lend", "view"), grid.token("ana", "lend", "view")
        held = [grid.ask("POST", "/boosts", BOOST | {"amount": 0.1}, token=eve)[0] for _ in range(3)]
        assert held == [201, 201, 429]
        plan, boost = (grid.ask("POST", path, BOOST | {"amount": 0.1}, token=eve) for path in ("/plan", "/boosts"))
        assert plan == boost  # what is refused to the request, the plan does not promise
        assert plan[1]["error"]["message"] == "eve already has 2 boosts, the maximum for a user"
        assert grid.ask("POST", "/boosts", BOOST | {"amount": 0.1}, token=ana)[0] == 201
        waits = [grid.ask("POST", "/requests", BOOST | {"amount": 60}, token=ana)[0] for _ in range(3)]
        assert waits == [202, 202, 429]
        plan, request = (grid.ask("POST", path, BOOST | {"amount": 60}, token=ana) for path in ("/plan", "/requests"))
        assert plan == request and plan[0] == 429
    finally:
        grid.close()
