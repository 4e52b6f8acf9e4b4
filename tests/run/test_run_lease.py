"""What a run asks for, from what its user said."""

import pytest

from distributed_grid.errors import GridError, InvalidRequest
from distributed_grid.model.requests import make_ask
from distributed_grid.run.held_lease import Wanted


@pytest.mark.parametrize(
    ("wanted", "leads", "along"),
    [
        (Wanted(), ("cpu", "1"), {}),
        (Wanted(cpus="4"), ("cpu", "4"), {}),
        (Wanted(memory="2"), ("memory", "2"), {}),
        (Wanted(cpus="4", gpus="1", memory="2"), ("gpu", "1"), {"cpu": "4", "memory": "2"}),
    ],
)
def test_what_is_scarce_leads_and_the_rest_comes_along(
    wanted: Wanted, leads: tuple[str, str], along: dict[str, str]
) -> None:
    wanted.check()
    body = wanted.body("head", "train.py")
    assert ((body["resource_type"], body["amount"]), body.get("along", {})) == (leads, along)
    ask = make_ask(body)
    assert (str(ask.purpose), ask.own_too) == ("run", True)


@pytest.mark.parametrize(("given", "wait_s"), [(None, 0.0), ("40", 40.0), ("30m", 1800.0)])
def test_a_run_waits_as_long_as_any_other_command(given: str | None, wait_s: float) -> None:
    wanted = Wanted(wait=given)
    wanted.check()
    assert wanted.body("head", "")["wait_seconds"] == wait_s


@pytest.mark.parametrize(
    "wrong",
    [
        Wanted(cpus="many"),
        Wanted(gpus="-1"),
        Wanted(priority="urgent"),
        Wanted(duration="0"),
        Wanted(wait="soon"),
        Wanted(boost="b1", cpus="2"),
    ],
)
def test_what_makes_no_sense_needs_no_cluster_to_say_so(wrong: Wanted) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wrong.check()
    assert isinstance(caught.value, GridError)
