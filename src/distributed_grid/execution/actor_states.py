"""How far an actor is that does not answer yet."""

from typing import Any

import ray._private.state as ray_state


def how_far(handle: Any) -> str:
    """In words, from what Ray's control service knows of it."""
    told = ray_state.actors(handle._actor_id.hex())
    state = told.get("State")
    if not told:
        return "Ray does not know it"
    if state == "DEPENDENCIES_UNREADY":
        return "it waits for its arguments"
    if state == "PENDING_CREATION":
        if told["Pid"] or told["Address"]["Port"]:
            return "its process is up, and its constructor has not ended"
        return "its process has not started: Ray has not found it a worker yet"
    if state == "ALIVE":
        return "it is up, and has not answered"
    return f"Ray says that it is {str(state).lower()}"
