"""What a run asks for, from what its user said; and how it keeps the lease."""

from types import SimpleNamespace
from typing import Any

import pytest
from live_grid import until

from distributed_grid.errors import GridError, InvalidRequest
from distributed_grid.model.requests import make_ask
from distributed_grid.run import held_lease, progress
from distributed_grid.run.held_lease import HeldLease, Wanted
from distributed_grid.run.progress import Progress


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


class Controller:
    """A client whose controller renews a lease that is always due. One answer fails in an unforeseen way."""

    home = None

    def __init__(self, *, fails_at: int) -> None:
        self._fails_at = fails_at
        self.asked = self.renewed = 0

    def boost(self) -> Any:
        at = "2026-01-01T10:00:00Z"
        where = {"source_node": "gpu1", "parts": [], "at_most": None, "capacity": {"cpu": 1}}
        return {"boost_id": "b1", "state": "active", "ending": None, "allocated_at": at, "expires_at": at, **where}

    def _answered(self) -> None:
        self.asked += 1
        if self.asked == self._fails_at:
            raise RuntimeError("unforeseen")

    def report_program(self, *_: object, **__: object) -> Any:
        self._answered()
        return {"boost": self.boost(), "ends_in_seconds": None}

    def work_in(self, *_: object) -> Any:
        self._answered()
        return {"drivers": []}

    def renew_boost(self, _boost_id: str) -> None:
        self.renewed += 1

    def leave(self, *_: object) -> None: ...
    def release_boost(self, *_: object) -> None: ...
    def close(self) -> None: ...


def test_the_lease_is_renewed_after_an_unforeseen_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller: Any = Controller(fails_at=2)
    monkeypatch.setattr(held_lease, "GridClient", lambda _: controller)
    lease = HeldLease(controller, controller.boost(), "p1", "train.py", is_ours=True)
    until(lambda: controller.asked > 3, what="it is looked at after the error")
    renewed = controller.renewed
    until(lambda: controller.renewed > renewed, what="it is renewed after the error")
    lease.give_back()
    assert lease.ended is None
    assert "RuntimeError: unforeseen" in "".join(capsys.readouterr())


def test_the_progress_is_shown_after_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    controller: Any = Controller(fails_at=2)
    monkeypatch.setattr(progress, "GridClient", lambda _, **__: controller)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    monkeypatch.setattr(progress, "SETTLED_S", 0.0)
    shown: list[str] = []
    reports: Any = SimpleNamespace(jobs=())
    reported = Progress(controller, controller.boost, "r1", lambda *_: False, reports, shown.append, is_private=True)
    until(lambda: controller.asked > 3 and len(shown) > 1, what="it is shown after the error")
    reported.finish()
