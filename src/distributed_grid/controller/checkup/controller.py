"""Facts about the controller: from its own API, and from the Ray cluster that it is in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from distributed_grid.client.connections import Call, Connections, Trust, Unreachable
from distributed_grid.decide.monitoring.naming import ConfiguredName
from distributed_grid.errors import CertificateUntrusted
from distributed_grid.model.checkup_facts import ActorState, ControllerFacts, in_one_line
from distributed_grid.store.durable import record_of, text_in, text_of
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostStatus
    from distributed_grid.wire.controller import RunningConfig
    from distributed_grid.wire.nodes import NodeList

_ANSWER_S: Final = 5.0


def look_at_controller(home: GridHome) -> tuple[ControllerFacts, tuple[ConfiguredName, ...]]:
    """The answer of the recorded controller, and the nodes that it was configured with."""
    try:
        record = record_of(text_of(home.controller))
        found = ControllerFacts(recorded=True, url=text_in(record, "url"), ray_address=text_in(record, "ray_address"))
        trust = Trust(sha256=text_in(record, "tls_sha256") if record.get("tls_sha256") else "")
    except FileNotFoundError:
        return ControllerFacts(), ()
    except (OSError, ValueError) as error:
        return ControllerFacts(recorded=True, record_error=in_one_line(error)), ()
    try:
        token = text_of(home.token)
    except OSError as error:
        found, token = replace(found, token_error=f"{home.token} cannot be read: {error.strerror}"), ""
    _, health_error = _get(found.url, "/api/v1/health", trust)
    if health_error or found.token_error:
        return replace(found, health_error=health_error), ()
    # Any key may be missing: another program, or another version of grid, may answer.
    running, token_error = _get(found.url, "/api/v1/config", trust, token)
    shown, no_answer = _get(found.url, "/api/v1/nodes", trust, token)
    nodes = cast("NodeList", shown).get("nodes", [])
    in_use = tuple(f"{node['name']}: {one}" for node in nodes for one in node.get("warnings", ()))
    status, _ = _get(found.url, "/api/v1/boosts", trust, token)
    problems = tuple(str(each) for each in cast("BoostStatus", status).get("problems", ()))
    in_use_now = None if no_answer else in_use
    found = replace(found, token_error=token_error, in_use=in_use_now, problems=problems)
    return found, _configured(cast("RunningConfig", running).get("config", {}))


def _configured(config: Mapping[str, object]) -> tuple[ConfiguredName, ...]:
    nodes = config.get("nodes")
    return tuple(ConfiguredName(node["name"], node.get("host")) for node in nodes) if isinstance(nodes, list) else ()


def _get(url: str, path: str, trust: Trust, token: str = "") -> tuple[dict[str, object], str]:
    """The answer, or why there is none."""
    try:
        at_door = Connections(url, {"Authorization": f"Bearer {token}"} if token else {}, trust)
        answer = at_door.ask(Call("GET", path, answer_s=_ANSWER_S))
        at_door.close()
        if not answer.is_success:
            return {}, f"it answered {answer.status} to {url}{path}"
        return dict(answer.json()), ""
    except (Unreachable, CertificateUntrusted, ValueError, TypeError) as error:
        return {}, in_one_line(error)


def ask_for_controller() -> tuple[ActorState, str]:
    """The Ray cluster's own report about the controller, and where it answers."""
    import ray

    from distributed_grid.controller import actor

    controller = actor.existing()
    if controller is None:
        return ActorState.ABSENT, ""
    try:
        where = ray.get(controller.where.remote(), timeout=_ANSWER_S)
    except ray.exceptions.RayError:
        return ActorState.SILENT, ""
    return ActorState.THERE, where["url"]
