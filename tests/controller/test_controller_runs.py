"""What programs inside a boost ask of the controller."""

import pytest
from served_grid import ServedGrid

RESERVED = {"target_node": "a", "resource_type": "cpu", "amount": 1, "delivery": "reserve"}


def ask(served: ServedGrid, verb: str, path: str, body: dict | None = None) -> tuple[int, dict]:
    return served.ask(verb, path, body, token=served.token("somebody", "admin"))


@pytest.mark.parametrize("jobs", ["", "?jobs=01000000", "?jobs=01000000,02000000"])
def test_the_work_of_any_number_of_jobs_can_be_asked_for(served: ServedGrid, jobs: str) -> None:
    boost = ask(served, "POST", "/boosts", RESERVED)[1]["boost_id"]
    code, found = ask(served, "GET", f"/boosts/{boost}/work{jobs}")
    assert code == 200, found
    assert (found["running"], found["outside"]) == (0, {})


@pytest.mark.parametrize("jobs", ["?jobs=x", "?jobs=0100000g", "?jobs=" + ",".join(["01000000"] * 65)])
def test_what_is_no_job_is_refused(served: ServedGrid, jobs: str) -> None:
    boost = ask(served, "POST", "/boosts", RESERVED)[1]["boost_id"]
    assert ask(served, "GET", f"/boosts/{boost}/work{jobs}")[0] == 422


def test_a_private_cluster_needs_a_reservation_a_real_address_and_whole_cpus(served: ServedGrid) -> None:
    moved = ask(served, "POST", "/boosts", RESERVED | {"delivery": "transfer"})[1]["boost_id"]
    half = ask(served, "POST", "/boosts", RESERVED | {"amount": 0.5})[1]["boost_id"]
    whole = ask(served, "POST", "/boosts", RESERVED)[1]["boost_id"]
    at = {"head_address": "10.0.0.1:6379"}
    assert ask(served, "POST", f"/boosts/{moved}/raylet", at)[1]["error"]["code"] == "NOT_RESERVED"
    assert "whole numbers of CPUs" in ask(served, "POST", f"/boosts/{half}/raylet", at)[1]["error"]["message"]
    assert ask(served, "POST", f"/boosts/{whole}/raylet", {"head_address": "x; rm"})[0] == 422
    assert ask(served, "POST", f"/boosts/{whole}/raylet", at) == (200, {"noted": True})
    assert ask(served, "DELETE", f"/boosts/{whole}/raylet") == (200, {"noted": True})
