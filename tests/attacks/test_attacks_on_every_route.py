"""Every route with every scope, by its owner and by others: what a caller must not do, it cannot.

The table has a row for every route. A new route fails the tests below until it has one: which scope it needs, and what
it changes of whom.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from builders import process
from fastapi import APIRouter
from fastapi.routing import APIRoute
from live_grid import until
from role_runs import a_role, a_run
from served_grid import ServedGrid

from distributed_grid.controller.access import OPEN, needs
from distributed_grid.controller.direct_route import DirectRoute
from distributed_grid.errors import NotFound
from distributed_grid.model.leases import Delivery
from distributed_grid.model.principals import Scope

ANY = "any token"
ALL = "no token"


class Route(NamedTuple):
    scope: Scope | str
    changes: str = ""
    """A thing of a caller that it changes, or shows to none but its owners: a method of `Things`."""
    body: Any = None
    makes: str = ""
    """What it makes for the caller itself, so that there is no other owner."""


def view() -> Route:
    return Route(Scope.VIEW)


def admin() -> Route:
    return Route(Scope.ADMIN)


DECIDED: dict[str, Route] = {
    "GET /api/v1/health": Route(ALL),
    "GET /api/v1/me": Route(ANY),
    "POST /api/v1/boosts": Route(Scope.LEND, makes="a boost"),
    "GET /api/v1/boosts": view(),
    "GET /api/v1/boosts/{boost_id}": view(),
    "POST /api/v1/boosts/{boost_id}/release": Route(Scope.LEND, "boost", {"amount": 1}),
    "GET /api/v1/boosts/{boost_id}/work": view(),
    "PUT /api/v1/boosts/{boost_id}/programs/{program_id}": Route(Scope.LEND, "new_program", {"label": "train.py"}),
    "DELETE /api/v1/boosts/{boost_id}/programs/{program_id}": Route(Scope.LEND, "program"),
    "POST /api/v1/boosts/{boost_id}/raylet": Route(Scope.RUN, "boost", {"head_address": "10.0.0.1:6400"}),
    "DELETE /api/v1/boosts/{boost_id}/raylet": Route(Scope.RUN, "boost"),
    "POST /api/v1/boosts/{boost_id}/renew": Route(Scope.LEND, "boost", {"duration_seconds": 900}),
    "POST /api/v1/boosts/{boost_id}/runs": Route(Scope.LEND, "boost", {"seconds": 1.0, "exit_code": 0}),
    "POST /api/v1/boosts/{boost_id}/checkpoint": Route(Scope.LEND, "boost"),
    "GET /api/v1/cluster": view(),
    "GET /api/v1/nodes": view(),
    "GET /api/v1/nodes/{name}": view(),
    "GET /api/v1/demand": view(),
    "GET /api/v1/suggestions": view(),
    "GET /metrics": view(),
    "GET /api/v1/resource-sharing": view(),
    "PUT /api/v1/resource-sharing/policy": admin(),
    "POST /api/v1/requests": Route(Scope.LEND, makes="a request"),
    "GET /api/v1/requests": view(),
    "GET /api/v1/requests/{request_id}": view(),
    "POST /api/v1/requests/{request_id}/release": Route(Scope.LEND, "request", {}),
    "POST /api/v1/plan": Route(Scope.VIEW, makes="nothing: it tells what would happen"),
    "GET /api/v1/why/{request_or_boost}": view(),
    "POST /api/v1/windows": Route(Scope.LEND, makes="a window"),
    "GET /api/v1/windows": view(),
    "GET /api/v1/windows/{name}": view(),
    "DELETE /api/v1/windows/{name}": Route(Scope.LEND, "window"),
    "POST /api/v1/nodes/{name}/cooldown": admin(),
    "GET /api/v1/offload/candidates": view(),
    "POST /api/v1/offload": Route(Scope.RUN, "process"),
    "GET /api/v1/offload": view(),
    "POST /api/v1/offload/{offload_id}/cancel": Route(Scope.RUN, "offload", {"grace_seconds": 0}),
    "GET /api/v1/offload/{offload_id}/log": Route(Scope.RUN, "offload_log"),
    "POST /api/v1/tasks": Route(Scope.LEND, "task_again"),
    "GET /api/v1/tasks": view(),
    "GET /api/v1/tasks/{task_id}": view(),
    "POST /api/v1/tasks/{task_id}/started": Route(Scope.LEND, "task"),
    "POST /api/v1/tasks/{task_id}/complete": Route(Scope.LEND, "task"),
    "GET /api/v1/roles": view(),
    "GET /api/v1/roles/{name}": view(),
    "POST /api/v1/roles/{name}/scale": Route(Scope.RUN, "run", {"role": "worker", "count": 3}),
    "DELETE /api/v1/roles/{name}": Route(Scope.RUN, "run"),
    "GET /api/v1/events": view(),
    "GET /api/v1/config": view(),
    "GET /api/v1/audit": view(),
    "GET /api/v1/audit/log": view(),
    "POST /api/v1/audit/repair": admin(),
    "POST /api/v1/controller/stop": admin(),
    "POST /api/v1/tokens": admin(),
    "GET /api/v1/tokens": admin(),
    "DELETE /api/v1/tokens/{id_or_name}": admin(),
}
OWNED = {call: route for call, route in DECIDED.items() if route.changes}
TOKENS = [None, "wrong", *Scope]
DENIED = [(401, "ACCESS_DENIED"), (429, "TOO_MANY_ATTEMPTS")]  # after some, so many here that it is the latter

NOW = {"grace_seconds": 0, "wait_seconds": 20}
LENDER = "b"
FROM_THE_LENDER = {"target_node": "a", "source_node": LENDER, "resource_type": "cpu", "amount": 1}
NODE_OWNERS = {LENDER: ["carl", "team:infra"]}
TEAMS = [{"name": name} for name in ("vision", "audio", "infra")]
CALLERS = {
    "owner": ("ana", "vision"),
    "owner's other token": ("ana", ""),
    "team-mate": ("bo", "vision"),
    "stranger": ("eve", "audio"),
    "stranger without a team": ("mallory", ""),
    "stranger of the team default": ("trudy", "default"),
    "lender's owner": ("carl", "audio"),
    "lender's owning team": ("dora", "infra"),
    "admin": ("root1", ""),
}
OWNERS = {"owner", "owner's other token", "admin"}
MAY = {
    # By thing: the callers that may change it.
    "boost": {*OWNERS, "team-mate", "lender's owner", "lender's owning team"},
    "program": {*OWNERS, "team-mate", "lender's owner", "lender's owning team"},
    "new_program": {*OWNERS, "team-mate", "lender's owner", "lender's owning team"},
    "offload": {*OWNERS, "team-mate", "lender's owner", "lender's owning team"},
    "offload_log": {*OWNERS, "team-mate"},
    "request": {*OWNERS, "team-mate"},
    "window": {*OWNERS, "team-mate"},
    "task": {*OWNERS, "team-mate"},
    "task_again": {*OWNERS, "team-mate"},
    "run": {*OWNERS, "team-mate"},
    "process": OWNERS,  # its user's, whatever that user's team is
}


CHANGES_NOTHING = {"task_again", "offload_log"}  # the same answer once more; what a process wrote


class Things:
    """Of ana, of the team vision: each call makes a new one, and gives the parts of a path and a body for it."""

    def __init__(self, grid: ServedGrid) -> None:
        self._grid = grid
        self._ana = grid.token("ana", "lend", "run", team="vision")
        self._number = itertools.count(1)

    def boost(self) -> tuple[dict[str, str], Any]:
        body = FROM_THE_LENDER | {"delivery": "reserve"}
        return {"boost_id": self._made("/boosts", body)["boost_id"]}, None

    def new_program(self) -> tuple[dict[str, str], Any]:
        body = FROM_THE_LENDER | {"delivery": "reserve", "amount": 0.01}
        return {"boost_id": self._made("/boosts", body)["boost_id"], "program_id": "p1"}, None

    def program(self) -> tuple[dict[str, str], Any]:
        parts, _ = self.new_program()
        path = "/boosts/{boost_id}/programs/{program_id}".format(**parts)
        status, answer = self._grid.ask("PUT", path, {}, token=self._ana)
        assert status < 300, answer
        return parts, None

    def request(self) -> tuple[dict[str, str], Any]:
        body = {"target_node": "a", "resource_type": "cpu", "amount": 100}
        return {"request_id": self._made("/requests", body)["request_id"]}, None

    def window(self) -> tuple[dict[str, str], Any]:
        name = f"window-{next(self._number)}"
        body = {"target_node": "a", "resource_type": "cpu", "amount": 0.01, "name": name, "at": "daily 09:00"}
        self._made("/windows", body)
        return {"name": name}, None

    def task(self) -> tuple[dict[str, str], Any]:
        body = self._task()
        self._made("/tasks", body)
        return {"task_id": body["task_id"]}, None

    def task_again(self) -> tuple[dict[str, str], Any]:
        body = self._task()
        self._made("/tasks", body)
        return {}, body

    def _task(self) -> dict[str, Any]:
        return {"task_id": f"task-{next(self._number)}", "target": "a", "cpu": 1}

    def process(self) -> tuple[dict[str, str], Any]:
        return {}, {"pid": self._a_process(), "to": LENDER, "grace_seconds": 0}

    def _a_process(self) -> int:
        ids = {raylet.labels["grid/name"]: raylet.node_id for raylet in self._grid.cluster.raylets()}
        pid = 4710 + next(self._number)
        machine = f"machine of {ids['a']}"
        self._grid.control.add(ids["a"], process(pid, "a", machine=machine, memory=0, environment=("HOME",)), HOME="/")
        return pid

    def offload(self) -> tuple[dict[str, str], Any]:
        body = {"pid": self._a_process(), "to": LENDER, "grace_seconds": 0}
        return {"offload_id": self._made("/offload", body)["offload"]["offload_id"]}, None

    offload_log = offload

    def run(self) -> tuple[dict[str, str], Any]:
        name = f"run-{next(self._number)}"
        record = a_run(name, roles=[a_role("worker", 1, 4)])
        record["owner"] |= {"user": "ana", "team": "vision"}
        self._grid.role_records.write_record(record)
        return {"name": name}, None

    def _made(self, path: str, body: Any) -> Any:
        status, answer = self._grid.ask("POST", path, body, token=self._ana)
        assert status < 300, answer
        return answer


def routes(grid: ServedGrid) -> set[str]:
    return {
        f"{method} {route.path}"
        for route in grid.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    grid = ServedGrid(tmp_path_factory.mktemp("attacked"), node_owners=NODE_OWNERS, teams=TEAMS)
    yield grid
    grid.close()


@pytest.fixture(scope="module")
def tokens(served: ServedGrid) -> dict[str | None, str | None]:
    made: dict[str | None, str | None] = {scope: served.token(f"only-{scope}", scope) for scope in Scope}
    return made | {None: None, "wrong": "wrong"}


@pytest.fixture(scope="module")
def callers(served: ServedGrid) -> dict[str, str]:
    """Each with every scope but admin, so that only ownership decides."""
    return {
        caller: served.token(name, *(["admin"] if caller == "admin" else ["view", "lend", "run"]), team=team)
        for caller, (name, team) in CALLERS.items()
    }


@pytest.fixture(scope="module")
def things(served: ServedGrid) -> Things:
    return Things(served)


def test_every_route_has_a_decision(served: ServedGrid) -> None:
    assert routes(served) == set(DECIDED)


def test_nothing_but_these_is_there_without_a_token(served: ServedGrid) -> None:
    others = {route.path for route in served.app.routes if not isinstance(route, APIRoute)}

    assert others == {"/api/v1/docs", "/api/v1/openapi.json"}
    assert {*OPEN} == others | {call.split()[1] for call, route in DECIDED.items() if route.scope == ALL}


def test_every_route_that_changes_something_is_an_admins_or_knows_whose_it_is() -> None:
    changing = {call: route for call, route in DECIDED.items() if not call.startswith("GET ")}

    assert [
        call for call, route in changing.items() if route.scope is not Scope.ADMIN and not route[1] + route[3]
    ] == []


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("call", OWNED)
def test_what_belongs_to_a_caller_is_changed_by_its_owners_alone(
    served: ServedGrid, callers: dict[str, str], things: Things, call: str, caller: str
) -> None:
    route, (name, _) = OWNED[call], CALLERS[caller]
    parts, body = getattr(things, route.changes)()
    method, _, path = call.partition(" ")
    before, noted = everything(served), len(served.audit())

    asked = served.ask(method, path.format(**parts), body or route.body, token=callers[caller], at="")

    try:
        if caller in MAY[route.changes]:
            assert asked[0] == 200, asked
            assert route.changes in CHANGES_NOTHING or name in [one["who"] for one in served.audit()[noted:]]
            return
        status, answer = asked
        assert (status, answer["error"]["code"], answer["error"]["exit_code"]) == (403, "NOT_OWNER", 6)
        assert "belongs to ana" in answer["error"]["message"] and f"you are {name}" in answer["error"]["message"]
        assert "scope admin" in answer["error"]["try_next"]
        assert everything(served) == before, "it was refused, and yet something happened"
        refused = [one for one in served.audit() if one["event"] in ("access_refused", "offload_refused")][-1]
        assert (refused["who"], refused["code"]) == (name, "NOT_OWNER")
    finally:
        clear(served)


def _boosts(grid: ServedGrid) -> list[dict[str, Any]]:
    return list(grid.client.boost_status()["boosts"])


def everything(grid: ServedGrid) -> Any:
    """All that callers can change, as it is."""
    # A moved process enters its lease by itself, a moment after it was moved.
    entered = {one["boost_id"]: [name for name in one["programs"] if name == "train.py"] for one in _boosts(grid)}
    boosts = [{**one, "warnings": [], "programs": entered.get(one["boost_id"])} for one in _boosts(grid)]
    waiting = [one["request_id"] for one in grid.client.queue()["requests"]]
    return boosts, waiting, grid.client.tasks()["tasks"], grid.client.offloads(), sorted(grid.store.kept.items())


def clear(grid: ServedGrid) -> None:
    """End all of it; some of that ends by itself meanwhile."""
    client = grid.client
    for one in client.boost_status()["boosts"]:
        # Otherwise the release waits until a program that was told has had time to answer.
        grid.ask("DELETE", f"/boosts/{one['boost_id']}/programs/p1", token=grid.home.token.read_text().strip())
    ends: list[Callable[[], Any]] = [
        *(partial(client.cancel_offload, one["offload_id"], 0) for one in client.offloads()["offloads"]),
        *(partial(client.complete_task, one["task_id"]) for one in client.tasks()["tasks"]),
        *(partial(client.release_allocation, one["request_id"]) for one in client.queue()["requests"]),
        *(partial(client.release_boost, one["boost_id"], NOW) for one in client.boost_status()["boosts"]),
    ]
    for end in ends:
        with suppress(NotFound):
            end()
    grid.store.kept.clear()


def test_what_grid_lends_by_itself_is_changed_by_admins_and_the_lenders_owners(
    served: ServedGrid, callers: dict[str, str]
) -> None:
    """The policy's loans belong to no token, and being in the team `default` is being in none."""
    found = {}
    for caller, token in callers.items():
        boost = served.client.request_boost(
            {"target_node": "a", "resource_type": "cpu", "amount": 1, "source_node": "b"}
        )
        served.in_its_loop(given_to_grid(served, boost["boost_id"]))
        status, answer = served.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=token)
        found[caller] = status == 200
        assert status == 200 or "belongs to grid" in answer["error"]["message"]
        clear(served)

    assert {caller for caller, may in found.items() if may} == {"lender's owner", "lender's owning team", "admin"}


def test_a_lease_without_a_known_owner_is_for_admins_and_the_lenders_owners(
    served: ServedGrid, callers: dict[str, str]
) -> None:
    boost = served.client.request_boost(FROM_THE_LENDER)
    served.in_its_loop(given_to_grid(served, boost["boost_id"], ""))

    status, answer = served.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=callers["stranger"])
    assert (status, answer["error"]["code"]) == (403, "NOT_OWNER")
    assert "no known user" in answer["error"]["message"]
    assert served.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=callers["lender's owner"])[0] == 200


async def given_to_grid(grid: ServedGrid, boost_id: str, requester: str = "grid") -> None:
    ledger = grid.engine.parts.ledger
    boost = ledger.find(boost_id)
    ledger.restore(replace(boost, requester=requester, team="default"))


def test_a_program_runs_inside_a_boost_of_its_own_and_not_of_anothers(
    served: ServedGrid, callers: dict[str, str], things: Things
) -> None:
    path = f"/boosts/{things.boost()[0]['boost_id']}?to_use=true"

    found = {caller for caller, token in callers.items() if served.ask("GET", path, token=token)[0] == 200}

    assert found == MAY["boost"]
    clear(served)


def test_a_retry_does_not_show_how_anothers_boost_ended(
    served: ServedGrid, callers: dict[str, str], things: Things
) -> None:
    boost_id = things.boost()[0]["boost_id"]
    path = f"/boosts/{boost_id}/release"
    assert served.ask("POST", path, {"wait_seconds": 20}, token=callers["owner"])[0] == 200

    assert served.ask("POST", path, {}, token=callers["owner"], X_Grid_Retry="1")[1]["boost_id"] == boost_id
    status, answer = served.ask("POST", path, {}, token=callers["stranger"], X_Grid_Retry="1")
    assert (status, answer["error"]["code"]) == (403, "NOT_OWNER")


LOOKS_LIKE_A_TASKS = {"resource_type": "cpu", "amount": 2, "delivery": "reserve", "purpose": "task"}


def test_a_strangers_task_of_the_same_name_ends_no_lease_of_others(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, eve = fresh.token("ana", "lend"), fresh.token("eve", "lend")
    busy = {name: fresh.cluster.start(name, 8) for name in "abc"}
    task = {"task_id": "train", "cpu": 6, "count": 2, "wait": True}
    assert fresh.ask("POST", "/tasks", task, token=eve)[1]["queued"]
    fresh.cluster.finish(busy["b"] or 0)
    wanted = LOOKS_LIKE_A_TASKS | {"target_node": "a", "source_node": "b", "label": "train", "wait_seconds": 20}
    status, boost = fresh.ask("POST", "/boosts", wanted, token=ana)
    assert status == 201, boost
    tried: list[str] = []

    def is_busy_after_all(lease: Any, *_: Any) -> None:
        tried.extend(lease.sources)

    monkeypatch.setattr(fresh.cluster.mechanisms[Delivery.RESERVE], "make", is_busy_after_all)
    fresh.cluster.finish(busy["c"] or 0)
    until(lambda: {"b", "c"} <= set(tried), 30, "eve's placement was tried, and failed")
    until(lambda: not fresh.engine.scheduling.flights, 30, "and is over")
    assert fresh.client.boost(boost["boost_id"])["state"] == "active"


def test_a_boost_that_looks_like_anothers_task_keeps_that_one_from_nothing(fresh: ServedGrid) -> None:
    ana, eve = fresh.token("ana", "lend"), fresh.token("eve", "lend")
    assert fresh.ask("POST", "/tasks", {"task_id": "job1", "cpu": 1}, token=ana)[1]["accepted"]
    wanted = LOOKS_LIKE_A_TASKS | {"target_node": "a", "label": "job1"}
    status, boost = fresh.ask("POST", "/boosts", wanted, token=eve, Idempotency_Key="job1")
    assert status == 201, boost
    assert fresh.ask("POST", "/tasks/job1/started", token=ana)[0] == 200
    assert fresh.ask("POST", "/tasks/job1/complete", token=ana)[0] == 200
    assert fresh.client.boost(boost["boost_id"])["state"] == "active", "it was not the task's"


def test_a_strangers_boost_carries_no_task(fresh: ServedGrid) -> None:
    ana, eve = fresh.token("ana", "lend"), fresh.token("eve", "lend")
    wanted = {"target_node": "a", "source_node": "b", "resource_type": "cpu", "amount": 4, "delivery": "reserve"}
    assert fresh.ask("POST", "/boosts", wanted, token=ana)[0] == 201
    fresh.cluster.start("a", 8)
    task = {"cpu": 3, "node": "a", "target": "a"}
    assert not fresh.ask("POST", "/tasks", task, token=eve)[1]["accepted"]
    assert fresh.ask("POST", "/tasks", task, token=ana)[1]["delivery"] == "boost"


@pytest.mark.parametrize("who", TOKENS, ids=str)
@pytest.mark.parametrize("call", DECIDED)
def test_each_scope_may_do_its_own_and_nothing_else(
    served: ServedGrid, tokens: dict[str | None, str | None], call: str, who: str | None
) -> None:
    decided = DECIDED[call].scope
    before = (served.left, served.audit(1)[-1])
    method, _, path = call.partition(" ")
    path = re.sub(r"{\w+}", "nobody", path)

    # A body that is no JSON: a caller that gets as far as having it read may call the route, and nothing is changed.
    status, answer = served.ask(method, path, "nonsense" if method == "POST" else None, token=tokens[who], at="")

    if decided == ALL:
        assert status == 200
    elif who in (None, "wrong"):
        assert (status, answer["error"]["code"]) in DENIED
        last = served.audit(1)[-1]
        # A line that sums up earlier ones may come at any moment.
        assert (served.left, last) == before or last["event"] == "address_blocked" or "count" in last
    elif decided == ANY or who in (decided, Scope.ADMIN):
        assert status in (200, 404, 422), answer
    else:
        assert status == 403
        assert answer["error"]["code"] == "SCOPE_MISSING"
        assert f"the scope {decided}" in answer["error"]["message"]
        assert f"grid token create only-{who}" in answer["error"]["try_next"]
        last = served.audit(1)[-1]
        assert (last["event"], last["who"]) == ("access_refused", f"only-{who}"), "it was refused, and that was noted"
        assert served.left == before[0], "it was refused, and yet something happened"


def test_a_token_with_several_scopes_has_each(served: ServedGrid) -> None:
    token = served.token("ana", "view", "lend")

    status, boost = served.ask(
        "POST", "/boosts", {"target_node": "a", "resource_type": "cpu", "amount": 1}, token=token
    )
    assert status == 201
    assert served.ask("GET", f"/boosts/{boost['boost_id']}", token=token)[0] == 200
    assert served.ask("POST", f"/boosts/{boost['boost_id']}/release", {}, token=token)[0] == 200
    assert served.ask("POST", "/controller/stop", {}, token=token)[0] == 403
    assert served.left == 0


def test_a_refused_call_is_not_even_read(served: ServedGrid) -> None:
    """The body is not parsed, and its mistakes are not told, to those who may not send one."""
    viewer = served.token("reader", "view")

    status, answer = served.ask("POST", "/boosts", {"target_node": 1, "unknown": True}, token=viewer)

    assert status == 403
    assert "unknown" not in str(answer)


def test_a_route_that_does_not_say_who_may_call_it_cannot_be_made() -> None:
    api = APIRouter(route_class=DirectRoute)

    async def forgotten() -> dict[str, Any]:
        return {}

    with pytest.raises(TypeError, match="does not say who may call it"):
        api.get("/forgotten")(forgotten)
    api.get("/decided")(needs(Scope.VIEW)(forgotten))


def test_the_openapi_document_says_which_scope_each_call_needs(served: ServedGrid) -> None:
    _, spec = served.ask("GET", "/openapi.json")
    reported = {
        f"{method.upper()} {path}": operation["security"]
        for path, operations in spec["paths"].items()
        for method, operation in operations.items()
    }

    for call, (decided, *_) in DECIDED.items():
        expected = {ALL: [], ANY: [{"token": []}]}.get(decided, [{"token": [decided]}])
        assert reported[call] == expected, call
