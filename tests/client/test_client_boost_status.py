"""A list of many boosts costs little to read again: only what has changed is sent, and the answer is the same."""

import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from served_grid import ServedGrid, fresh

from distributed_grid.client import GridClient
from distributed_grid.controller.tokens import ensure_token
from distributed_grid.wire.boosts import BoostRequest

__all__ = ["fresh"]

HALF: BoostRequest = {"target_node": "b", "resource_type": "cpu", "amount": "0.5", "duration_seconds": 600}


@pytest.fixture
def reader(fresh: ServedGrid) -> Iterator[GridClient]:
    client = GridClient(fresh.home)
    yield client
    client.close()


def whole(grid: ServedGrid) -> object:
    """What a client that asks for the first time gets."""
    client = GridClient(grid.home)
    try:
        return client.boost_status()
    finally:
        client.close()


def sent(grid: ServedGrid, **params: str) -> dict[str, Any]:
    status, answer = grid.ask("GET", f"/boosts?{urlencode(params)}", token=ensure_token(grid.home.token))
    assert status == 200
    return dict(answer)


def test_after_any_change_a_client_that_knows_the_list_has_the_same_as_a_new_one(
    fresh: ServedGrid, reader: GridClient
) -> None:
    chance = random.Random(5)
    ids: list[str] = []
    assert reader.boost_status() == whole(fresh)
    for _ in range(30):
        if ids and chance.random() < 0.4:
            reader.release_boost(ids.pop(chance.randrange(len(ids))), {})
        elif ids and chance.random() < 0.4:
            reader.renew_boost(chance.choice(ids), 600 + chance.randrange(600))
        else:
            ids.append(reader.request_boost(HALF)["boost_id"])
        found = reader.boost_status()
        assert found == whole(fresh)
        assert {boost["boost_id"] for boost in found["boosts"]} == set(ids)


def test_only_what_has_changed_is_sent(fresh: ServedGrid, reader: GridClient) -> None:
    first, second = (reader.request_boost(HALF)["boost_id"] for _ in range(2))
    version = str(sent(fresh, since="")["version"])
    assert sent(fresh, since=version)["boosts"] == [] == sent(fresh, since=version)["ended"]
    reader.renew_boost(second, 900)
    reader.release_boost(first, {})
    changed = sent(fresh, since=version)
    assert [boost["boost_id"] for boost in changed["boosts"]] == [second]
    assert changed["ended"] == [first]
    assert changed["total_active"] == 1


@pytest.mark.parametrize("version", ["", "no version", "1", "-1", "x" * 255])
def test_an_unknown_version_gets_the_whole_list(fresh: ServedGrid, reader: GridClient, version: str) -> None:
    boost = reader.request_boost(HALF)["boost_id"]
    found = sent(fresh, since=version)
    assert [each["boost_id"] for each in found["boosts"]] == [boost]
    assert "since" not in found and "ended" not in found


def test_a_caller_that_names_no_version_gets_what_it_always_got(fresh: ServedGrid, reader: GridClient) -> None:
    reader.request_boost(HALF)
    assert sent(fresh).keys() == {"total_active", "resources", "cut", "boosts", "problems"}
    assert reader.boost_status().keys() == sent(fresh).keys()


def test_what_a_caller_does_to_the_list_does_not_reach_the_next_answer(fresh: ServedGrid, reader: GridClient) -> None:
    reader.request_boost(HALF)
    found = reader.boost_status()
    found["boosts"].clear()
    assert reader.boost_status() == whole(fresh)
