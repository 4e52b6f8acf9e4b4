"""Events as they happen, over HTTP, as a browser or curl gets them."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from served_grid import ServedGrid

from distributed_grid.controller import event_stream


class Listener:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer

    def next(self) -> dict[str, str]:
        """The fields of the next event; comments and blank lines are passed over."""
        fields: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if not line:
                if "data" in fields:
                    return fields
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value


@contextmanager
def listening(grid: ServedGrid, path: str = "/api/v1/events", **headers: str) -> Iterator[Listener]:
    place = urlsplit(grid.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    token = grid.home.token.read_text().strip()
    given = {"Accept": "text/event-stream", "Authorization": f"Bearer {token}"} | headers
    connection.request("GET", path, headers=given)
    try:
        yield Listener(connection.getresponse())
    finally:
        connection.close()


def test_a_listener_learns_at_once_what_happens(served: ServedGrid) -> None:
    last = served.client.events()[-1]["number"]
    with listening(served, f"/api/v1/events?after={last}") as listener:
        assert listener.answer.status == 200
        assert listener.answer.headers["content-type"].startswith("text/event-stream")

        boost = served.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1})
        granted = listener.next()
        served.client.release_boost(boost["boost_id"])
        asked_back = listener.next()

    assert (granted["event"], asked_back["event"]) == ("granted", "release_asked")
    assert json.loads(granted["data"])["boost_id"] == boost["boost_id"]


def test_what_happened_before_comes_first(served: ServedGrid) -> None:
    known = served.client.events()
    with listening(served) as listener:
        reported = [json.loads(listener.next()["data"]) for _ in known]

    assert reported == known


def test_a_client_that_was_cut_off_goes_on_after_the_last_event_it_got(served: ServedGrid) -> None:
    with listening(served) as listener:
        first, second = listener.next(), listener.next()

    with listening(served, **{"Last-Event-ID": first["id"]}) as again:
        assert again.next() == second


@pytest.mark.parametrize("last_id", ["otherlife-99", "nonsense", "-", "x-" + "9" * 40])
def test_an_id_that_means_nothing_here_brings_all_events(served: ServedGrid, last_id: str) -> None:
    with listening(served, **{"Last-Event-ID": last_id}) as listener:
        assert json.loads(listener.next()["data"])["number"] == 1


def test_without_a_token_nothing_is_reported(served: ServedGrid) -> None:
    with listening(served, Authorization="Bearer wrong") as listener:
        assert listener.answer.status == 401


def test_so_many_may_listen_and_the_next_is_told_so(fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_AT_ONCE", 1)
    with listening(fresh) as first:
        first.next()
        with listening(fresh) as second:
            assert second.answer.status == 503
            assert "event streams are already open" in json.loads(second.answer.read())["error"]["message"]
