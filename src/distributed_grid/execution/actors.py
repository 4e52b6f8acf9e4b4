"""Grid's own actors: detached, found by name; and the state of one that does not answer yet."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
import ray._private.state as ray_state

NAMESPACE: Final = "grid"
_WITHOUT_A_WORD: Final = "Worker unexpectedly exits with a connection error"
_LOOK_AGAIN_S: Final = 0.02


def names(prefix: str) -> list[str]:
    """The names of grid's actors that start with `prefix`."""
    named: list[Mapping[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in named if one["namespace"] == NAMESPACE and one["name"].startswith(prefix)]


def why_gone(error: Exception) -> str:
    """The cause at the end of Ray's error, without Ray's guesses about it."""
    last = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
    last = last.partition(" Some common causes include")[0].partition(" Placement group id:")[0]
    cause = last.rpartition("Worker exit detail: ")[2]
    return "its process ended without a message" if cause.startswith(_WITHOUT_A_WORD) else cause.rstrip(".")


def find(name: str) -> Any | None:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def once_its_name_is_free(make: Callable[[], Any], within_s: float = 15.0) -> Any:
    """Make an actor whose predecessor of the same name was killed: Ray may need a moment to free the name."""
    until = time.monotonic() + within_s
    while True:
        try:
            return make()
        except ray.exceptions.ActorAlreadyExistsError:
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_AGAIN_S)


def how_far(handle: Any) -> str:
    """The state of an actor in words, as Ray's control service has it."""
    record = ray_state.actors(handle._actor_id.hex())
    state = record.get("State")
    if not record:
        return "Ray does not know it"
    if state == "DEPENDENCIES_UNREADY":
        return "it waits for its arguments"
    if state == "PENDING_CREATION":
        if record["Pid"] or record["Address"]["Port"]:
            return "its process is up, and its constructor has not ended"
        return "its process has not started: Ray has not found it a worker yet"
    if state == "ALIVE":
        return "it is up, and has not answered"
    return f"Ray says that it is {str(state).lower()}"
