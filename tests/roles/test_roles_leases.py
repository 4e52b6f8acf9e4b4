"""The leases of a run of roles: kept while it lives, and watched for what takes them back."""

from typing import Any

import pytest
import ray
from builders import cpu
from live_grid import until

from distributed_grid.errors import Unavailable
from distributed_grid.model.roles.plan import Holding
from distributed_grid.model.roles.processes import Held
from distributed_grid.roles.supervision import places
from distributed_grid.roles.supervision.places import Leases

AT = "2026-01-01T10:00:00Z"
ENDING = {"cause": "lender", "by": "grid", "reason": "n1 needs it", "claimant": None, "deadline": None}


class Controller:
    """A client whose controller grants leases that are always due for renewal."""

    home = None

    def __init__(self) -> None:
        self.boosts: dict[str, Any] = {}
        self.errors: list[Exception] = []
        self.hidden: set[str] = set()
        """Left out of the list, as in one that is cut."""
        self.renewed: list[str] = []
        self.released: list[str] = []

    def request_boost(self, body: Any, **_: object) -> Any:
        boost_id = f"b{len(self.boosts) + 1}"
        boost = {"boost_id": boost_id, "state": "active", "ending": None, "placement_group": "g"}
        self.boosts[boost_id] = {**boost, "allocated_at": AT, "expires_at": AT}
        return self.boosts[boost_id]

    def boost_status(self) -> Any:
        if self.errors:
            raise self.errors.pop()
        return {"boosts": [boost for name, boost in self.boosts.items() if name not in self.hidden]}

    def boost(self, boost_id: str) -> Any:
        return self.boosts[boost_id]

    def renew_boost(self, boost_id: str) -> None:
        self.renewed.append(boost_id)

    def release_boost(self, boost_id: str, _: Any) -> None:
        self.released.append(boost_id)

    def close(self) -> None: ...


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Any:
    controller = Controller()
    monkeypatch.setattr(places, "GridClient", lambda _: controller)
    monkeypatch.setattr(places, "LOOK_S", 0.01)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: type("C", (), {"get_worker_id": lambda _: "w"})())
    return controller


def take(leases: Leases, count: int = 1) -> list[Held]:
    return leases.take([Holding("n1", None, cpu(1), ()) for _ in range(count)], {"n1": "id"}, 1.0)


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("unforeseen")])
def test_leases_are_renewed_after_an_error(controller: Any, error: Exception) -> None:
    controller.errors = [error]
    leases = Leases("run-1", controller)
    take(leases)
    until(lambda: not controller.errors and len(controller.renewed) > 1, what="it is renewed")
    leases.close()


def test_a_lease_that_the_list_leaves_out_is_renewed_too(controller: Any) -> None:
    controller.hidden = {"b1"}
    leases = Leases("run-1", controller)
    take(leases, 2)
    until(lambda: {*controller.renewed} == {"b1", "b2"}, what="both are renewed")
    leases.close()


def test_a_lease_is_asked_back_then_lost_and_is_then_not_released(controller: Any) -> None:
    leases = Leases("run-1", controller)
    [held] = take(leases)
    assert (leases.ending_of(held), leases.lost(held, ask=True)) == (None, None)
    controller.boosts["b1"] |= {"state": "releasing", "ending": ENDING}
    until(lambda: leases.ending_of(held) == ENDING, what="it is asked back")
    assert leases.lost(held, ask=True) is None
    controller.boosts["b1"]["state"] = "released"
    assert leases.lost(held, ask=True) == "n1 needs it"
    assert leases.ending_of(held) is None
    leases.give_back([held])
    assert controller.released == []
    leases.close()
