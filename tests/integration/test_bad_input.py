"""Mistakes: each has its own message, its exit code, no traceback, and changes nothing."""

import json

import pytest
from live_grid import ONE_LENDER, LiveGrid

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER

REQUESTS = [
    (["nowhere", "cpu", "1"], 3, "Target node not found in cluster"),
    (["head", "cpu", "1", "--source", "nowhere"], 3, "Source node not found in cluster"),
    (["head", "node:__internal_head__", "1"], 2, "describes a node"),
    (["head", "object_store_memory", "1"], 2, "Unknown resource type"),
    (["head", "unicorns", "1"], 2, "No node has a resource 'unicorns'"),
    (["head", "cpu", "0"], 2, "must be above zero"),
    (["head", "cpu", "-1"], 2, "must be above zero"),
    (["head", "cpu", "-0.5"], 2, "must be above zero"),
    (["head", "cpu", "nan"], 2, "finite"),
    (["head", "cpu", "inf"], 2, "finite"),
    (["head", "cpu", "-inf"], 2, "finite"),
    (["head", "cpu", "1e30"], 2, "more than any cluster has"),
    (["head", "cpu", "0.00000001"], 2, "smallest amount"),
    (["head", "cpu", "two"], 2, "not a number"),
    (["head", "cpu", "100"], 4, "No nodes have sufficient available resources"),
    (["head", "gpu", "0.5"], 2, "GPUs are lent as whole devices"),
    (["head", "gpu", "1", "--delivery", "transfer"], 2, "Ray cannot transfer GPUs"),
    (["head", "cpu", "1", "--delivery", "teleport"], 2, "Unknown delivery"),
    (["head", "cpu", "1", "--duration", "0"], 2, "must be above zero"),
    (["head", "cpu", "1", "--duration", "-5"], 2, "must be above zero"),
    (["head", "cpu", "1", "--duration", "nan"], 2, "finite"),
    (["head", "cpu", "1", "--duration", "soon"], 2, "such as 90 (seconds), 30m, 1h30m or 2d"),
    (["head", "cpu", "1", "--duration", "1e12"], 2, "at most a year"),
    (["head", "cpu", "1", "--priority", "urgent"], 2, "Unknown priority"),
    (["head", "cpu", "1", "--grace", "-1"], 2, "must be zero or more"),
    (["head", "cpu", "1", "--wait", "-1"], 2, "must be zero or more"),
    (["head", "cpu", "1", "--on-grace-end", "explode"], 2, "Unknown --on-grace-end"),
    (["head", "cpu", "1", "--source", "head"], 2, "cannot lend to itself"),
    (["head", "cpu"], 2, "Missing argument"),
    (["head", "cpu", "1", "--no-such-option"], 2, "--no-such-option"),
    (["head", "cpu", "1", "--config", "no-such-file.yaml"], 2, "no-such-file.yaml"),
]


@pytest.mark.parametrize(("args", "code", "message"), REQUESTS, ids=[" ".join(args) for args, _, _ in REQUESTS])
def test_a_request_that_makes_no_sense_says_so(grid: LiveGrid, args: list[str], code: int, message: str) -> None:
    done = grid.cli("boost", "request", *args)

    assert message in done.stderr
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert grid.is_at_base()
    assert grid.client.boost_status()["boosts"] == []


def test_the_api_answers_the_same_mistakes_with_the_same_words(grid: LiveGrid) -> None:
    done = grid.cli("boost", "request", "nowhere", "cpu", "1", "--json")

    error = json.loads(done.stderr)["error"]
    assert done.stdout == ""
    assert (error["code"], error["exit_code"]) == ("TARGET_NOT_FOUND", 3)
    assert "head, lender" in error["try_next"]


@pytest.mark.parametrize("verb", ["release", "renew", "shell"])
def test_an_unknown_id(grid: LiveGrid, verb: str) -> None:
    for prefix in ("00000000", "", "no/such?id", "%20"):
        done = grid.cli("boost", verb, prefix)
        assert done.returncode == 3, done.stderr
        assert "No boost with the id" in done.stderr
        assert "grid boost status" in done.stderr


def test_an_ambiguous_id_prefix(grid: LiveGrid) -> None:
    boosts: list[dict] = []
    while True:  # until two ids share their first character: seventeen boosts at most
        boosts.append(grid.boost("head", "cpu", "0.01"))
        firsts = [boost["boost_id"][0] for boost in boosts]
        shared = next((first for first in firsts if firsts.count(first) > 1), None)
        if shared:
            break

    done = grid.cli("boost", "release", shared)

    assert done.returncode == 3
    assert "Give more characters" in done.stderr
    assert len(grid.client.boost_status()["boosts"]) == len(boosts)
