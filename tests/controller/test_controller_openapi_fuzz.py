"""Schemathesis over the whole OpenAPI document, on the real server: with every kind of token, and without.

It sends what the document allows, what it does not allow, and what is absurd. Whatever comes: no answer is
a server's error, every answer is as described, and no caller is let in who should not be.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served_grid import ServedGrid

from distributed_grid.model.principals import Scope

pytestmark = pytest.mark.slow

EXAMPLES = 15
IF_REFUSED = 5
"""Who may not is told so before anything is read: what else was sent makes no difference, and if it did, this fails."""
AS_DESCRIBED = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LONGEST_LINE, LONGEST_ANSWER = 64 * 1024, 5 * 2**20
HTTP_LEVEL = (400, 404, 405)
"""What is answered before a route is found: a path that is none, a method that it does not have, or not even HTTP."""


@pytest.fixture(scope="module")
def tokens(served: ServedGrid) -> dict[str, str]:
    return {"nobody": "", **{scope: served.token(f"only-{scope}", scope) for scope in Scope}}


@pytest.fixture(scope="module")
def operations(served: ServedGrid) -> list[Any]:
    document = schemathesis.openapi.from_url(f"{served.url}/api/v1/openapi.json")
    return [found.ok() for found in document.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["sense", "nonsense"])
@pytest.mark.parametrize("who", ["nobody", *Scope])
def test_whatever_is_sent_is_answered_as_described_and_only_to_whom_it_may_be(
    served: ServedGrid, tokens: Mapping[str, str], operations: list[Any], who: str, mode: GenerationMode
) -> None:
    headers = {"Authorization": f"Bearer {tokens[who]}"} if tokens[who] else {}
    before = changes(served)
    statuses: set[int] = set()
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or [*operation.iter_parameters()]):
            continue  # there is nothing to get wrong
        security = operation.definition.raw["security"]
        allowed = may(who, (security[0]["token"] or ["any"])[0] if security else "nothing")

        def check(case: Any, allowed: bool = allowed) -> None:
            make_likely(case, served)
            if headers:  # it also tries tokens of its own
                case.headers = {k: v for k, v in (case.headers or {}).items() if k.lower() != "authorization"}
            answer = case.call(headers=headers)
            statuses.add(answer.status_code)
            reported = f"{answer.status_code} for {case.as_curl_command()}"
            assert answer.status_code < 500, f"{reported}: {answer.text}"
            if answer.status_code not in HTTP_LEVEL:
                case.validate_response(answer, checks=AS_DESCRIBED)
            if not allowed:
                assert answer.status_code in (*HTTP_LEVEL, 401, 403, 421, 429), reported

        for_all(operation.as_strategy(generation_mode=mode), check, EXAMPLES if allowed else IF_REFUSED)
    if who in (Scope.LEND, Scope.ADMIN):
        assert mode is GenerationMode.NEGATIVE or 201 in statuses, "nothing was ever granted: this shows little"
    else:
        assert changes(served) == before
    assert served.cluster.violations == []
    lines = served.home.audit_log.read_bytes().splitlines()
    assert max(map(len, lines)) < LONGEST_LINE, "whatever was sent, the log has it in few words"
    assert len(json.dumps(served.client.events())) < LONGEST_ANSWER


def for_all(cases: Any, check: Callable[[Any], None], examples: int) -> None:
    quietly = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    seed(1)(quietly(given(cases)(lambda case: check(case))))()


def may(who: str, needed: str) -> bool:
    return needed == "nothing" or (who != "nobody" and (needed == "any" or who in (needed, Scope.ADMIN)))


def changes(served: ServedGrid) -> tuple[Any, ...]:
    """Everything that a call could change."""
    return served.left, served.client.boost_status(), served.client.tokens()


def make_likely(case: Any, served: ServedGrid) -> None:
    """Some of it shall be about things that exist; and no call here waits for hours."""
    body = case.body
    if isinstance(body, dict):
        wait = body.get("wait_seconds")
        if type(wait) in (int, float):
            body["wait_seconds"] = min(wait, 0)
        elif isinstance(wait, str) and any(letter.isdigit() for letter in wait):
            body["wait_seconds"] = "0"
        if isinstance(node := body.get("target_node"), str) and len(node) % 2:
            body |= {"target_node": "abc"[len(node) % 3], "resource_type": ("cpu", "memory")[len(node) % 4 // 2]}
            if len(node) % 4 == 1:
                case.body = {key: body[key] for key in ("target_node", "resource_type")} | {"amount": 0.5}
        if isinstance(name := body.get("name"), str) and len(name) % 2:
            case.body = {"name": f"made-up-{len(name)}"}
    if isinstance(case.path_parameters, dict) and isinstance(given_id := case.path_parameters.get("boost_id"), str):
        known = [boost["boost_id"] for boost in served.client.boost_status()["boosts"]]
        if known and len(given_id) % 2:
            case.path_parameters["boost_id"] = known[0]
