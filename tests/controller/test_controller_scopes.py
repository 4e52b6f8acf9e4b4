"""Every route against every scope: what each must not do, it cannot."""

from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from served_grid import ServedGrid

from distributed_grid.controller.access import OPEN, needs
from distributed_grid.controller.direct_route import DirectRoute
from distributed_grid.model.principals import Scope

ANY = "any token"
ALL = "no token"

# Who may do what. A new route fails the tests below until somebody has decided that for it, here and in the code.
DECIDED: dict[str, Scope | str] = {
    "GET /api/v1/health": ALL,
    "GET /api/v1/me": ANY,
    "POST /api/v1/boosts": Scope.LEND,
    "GET /api/v1/boosts": Scope.VIEW,
    "GET /api/v1/boosts/{boost_id}": Scope.VIEW,
    "POST /api/v1/boosts/{boost_id}/release": Scope.LEND,
    "GET /api/v1/boosts/{boost_id}/work": Scope.VIEW,
    "POST /api/v1/boosts/{boost_id}/raylet": Scope.RUN,
    "DELETE /api/v1/boosts/{boost_id}/raylet": Scope.RUN,
    "POST /api/v1/boosts/{boost_id}/renew": Scope.LEND,
    "POST /api/v1/boosts/{boost_id}/runs": Scope.LEND,
    "POST /api/v1/boosts/{boost_id}/checkpoint": Scope.LEND,
    "GET /api/v1/cluster": Scope.VIEW,
    "GET /api/v1/nodes": Scope.VIEW,
    "GET /api/v1/nodes/{name}": Scope.VIEW,
    "GET /api/v1/demand": Scope.VIEW,
    "GET /api/v1/suggestions": Scope.VIEW,
    "GET /metrics": Scope.VIEW,
    "GET /api/v1/resource-sharing": Scope.VIEW,
    "PUT /api/v1/resource-sharing/policy": Scope.ADMIN,
    "POST /api/v1/requests": Scope.LEND,
    "GET /api/v1/requests": Scope.VIEW,
    "GET /api/v1/requests/{request_id}": Scope.VIEW,
    "POST /api/v1/requests/{request_id}/release": Scope.LEND,
    "POST /api/v1/plan": Scope.VIEW,
    "GET /api/v1/why/{request_or_boost}": Scope.VIEW,
    "POST /api/v1/nodes/{name}/cooldown": Scope.ADMIN,
    "GET /api/v1/offload/candidates": Scope.VIEW,
    "POST /api/v1/offload": Scope.RUN,
    "GET /api/v1/offload": Scope.VIEW,
    "POST /api/v1/offload/{offload_id}/cancel": Scope.RUN,
    "GET /api/v1/offload/{offload_id}/log": Scope.RUN,
    "POST /api/v1/tasks": Scope.LEND,
    "GET /api/v1/tasks": Scope.VIEW,
    "GET /api/v1/tasks/{task_id}": Scope.VIEW,
    "POST /api/v1/tasks/{task_id}/started": Scope.LEND,
    "POST /api/v1/tasks/{task_id}/complete": Scope.LEND,
    "GET /api/v1/roles": Scope.VIEW,
    "GET /api/v1/roles/{name}": Scope.VIEW,
    "POST /api/v1/roles/{name}/scale": Scope.RUN,
    "DELETE /api/v1/roles/{name}": Scope.RUN,
    "GET /api/v1/events": Scope.VIEW,
    "GET /api/v1/config": Scope.VIEW,
    "GET /api/v1/audit": Scope.VIEW,
    "GET /api/v1/audit/log": Scope.VIEW,
    "POST /api/v1/audit/repair": Scope.ADMIN,
    "POST /api/v1/controller/stop": Scope.ADMIN,
    "POST /api/v1/tokens": Scope.ADMIN,
    "GET /api/v1/tokens": Scope.ADMIN,
    "DELETE /api/v1/tokens/{id_or_name}": Scope.ADMIN,
}
TOKENS = [None, "wrong", *Scope]
DENIED = [(401, "ACCESS_DENIED"), (429, "TOO_MANY_ATTEMPTS")]  # after some, so many here that it is the latter


def routes(grid: ServedGrid) -> set[str]:
    return {
        f"{method} {route.path}"
        for route in grid.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


@pytest.fixture(scope="module")
def tokens(served: ServedGrid) -> dict[str | None, str | None]:
    made: dict[str | None, str | None] = {scope: served.token(f"only-{scope}", scope) for scope in Scope}
    return made | {None: None, "wrong": "wrong"}


def test_every_route_has_a_decision(served: ServedGrid) -> None:
    assert routes(served) == set(DECIDED)


def test_nothing_but_these_is_there_without_a_token(served: ServedGrid) -> None:
    others = {route.path for route in served.app.routes if not isinstance(route, APIRoute)}

    assert others == {"/api/v1/docs", "/api/v1/openapi.json"}
    assert {*OPEN} == others | {call.split()[1] for call, decided in DECIDED.items() if decided == ALL}


@pytest.mark.parametrize("who", TOKENS, ids=str)
@pytest.mark.parametrize("call", DECIDED)
def test_each_scope_may_do_its_own_and_nothing_else(
    served: ServedGrid, tokens: dict[str | None, str | None], call: str, who: str | None
) -> None:
    decided = DECIDED[call]
    before = (served.left, served.audit()[-1])
    method, _, path = call.partition(" ")
    for name in ("boost_id", "id_or_name", "name"):
        path = path.replace(f"{{{name}}}", "nobody")

    # A body that is no JSON: whoever gets as far as having it read may call the route, and nothing is changed.
    status, answer = served.ask(method, path, "nonsense" if method == "POST" else None, token=tokens[who], at="")

    if decided == ALL:
        assert status == 200
    elif who in (None, "wrong"):
        assert (status, answer["error"]["code"]) in DENIED
        assert (served.left, served.audit()[-1]) == before or served.audit()[-1]["event"] == "put_off"
    elif decided == ANY or who in (decided, Scope.ADMIN):
        assert status in (200, 404, 422), answer
    else:
        assert status == 403
        assert answer["error"]["code"] == "SCOPE_MISSING"
        assert f"the scope {decided}" in answer["error"]["message"]
        assert f"grid token create only-{who}" in answer["error"]["try_next"]
        assert (served.left, served.audit()[-1]) == before, "it was refused, and yet something happened"


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
    told = {
        f"{method.upper()} {path}": operation["security"]
        for path, operations in spec["paths"].items()
        for method, operation in operations.items()
    }

    for call, decided in DECIDED.items():
        expected = {ALL: [], ANY: [{"token": []}]}.get(decided, [{"token": [decided]}])
        assert told[call] == expected, call
