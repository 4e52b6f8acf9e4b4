"""Calls through Ray: an endpoint's target is the handle of the actor that hosts it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import ray

from distributed_grid.execution.actors import why_gone
from distributed_grid.roles.calls.endpoints import Endpoint, Ref
from distributed_grid.roles.calls.failures import member_failed, member_lost, timed_out
from distributed_grid.roles.on_node.peers import wire_name

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOST: Final = (
    ray.exceptions.RayActorError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.ActorPlacementGroupRemoved,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.OutOfMemoryError,
)


class RayTransport:
    def __init__(self, on_loss: Callable[[Endpoint], None] = lambda _: None) -> None:
        """`on_loss`: called when a call finds that its member is gone, possibly before the supervisor notices."""
        self._on_loss = on_loss

    def submit(self, endpoint: Endpoint, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        return getattr(endpoint.current_target(), wire_name(endpoint.role, method)).remote(*args, **kwargs)

    def collect(self, refs: Sequence[Ref], within_s: float | None) -> list[Any]:
        found: list[Any] = ray.get(list(refs), timeout=within_s)
        return found

    def outcome(self, ref: Ref, endpoint: Endpoint, method: str, within_s: float | None) -> Any:
        try:
            return ray.get(ref, timeout=within_s)
        except ray.exceptions.RayTaskError as error:
            # This comes first: the error is also of the class that the method raised, which may be any of those below.
            cause = _raised(error)
            raise member_failed(endpoint, method, cause, _plain(str(error))) from cause
        except ray.exceptions.GetTimeoutError:
            raise timed_out(endpoint, method, within_s) from None
        except _LOST as error:
            why = why_gone(error)
            if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_id == _actor_id(endpoint.target):
                endpoint.disconnect(why)  # the member is not back yet, and the next call must wait for it
                self._on_loss(endpoint)
            raise member_lost(endpoint, method, why) from None
        except ray.exceptions.RayError as error:
            # What the method raised or returned cannot be read here, or the call was cancelled. Calls to other members
            # continue.
            raise member_failed(endpoint, method, None, _plain(str(error)) or type(error).__name__) from None

    def first_done(self, refs: Sequence[Ref], within_s: float | None) -> int | None:
        waits = list(dict.fromkeys(refs))
        done, _ = ray.wait(waits, num_returns=1, timeout=within_s, fetch_local=False)
        return refs.index(done[0]) if done else None

    def unfinished(self, refs: Sequence[Ref]) -> list[Ref]:
        return unfinished(refs)


def unfinished(refs: Sequence[Ref]) -> list[Ref]:
    """The calls that have not ended. Neither waits nor fetches results."""
    if not refs:
        return []
    _, rest = ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)
    return list(rest)


def held_results(actor_ids: Iterable[str]) -> dict[str, list[Ref]]:
    """The references to results of these actors that this process holds, from any source, as Ray counts them.

    One pass over all references of this process: some 0.2 s for 100,000.
    """
    core = getattr(ray._private.worker.global_worker, "core_worker", None)
    found: dict[str, list[Ref]] = {actor_id: [] for actor_id in actor_ids}
    for object_id, count in core.get_all_reference_counts().items() if core is not None else ():
        made_by = object_id[16:48].decode()  # the task id comes first, and the actor id is its second part
        if made_by in found and count["local"]:
            found[made_by].append(ray.ObjectRef(bytes.fromhex(object_id.decode())))
    return found


def _raised(error: ray.exceptions.RayTaskError) -> BaseException | None:
    """The exception of the method, if it could travel. Otherwise Ray replaces it with a plain error of its own."""
    cause = error.__dict__.get("cause")
    return cause if isinstance(cause, BaseException) and type(cause) is not ray.exceptions.RayError else None


def _plain(text: str) -> str:
    return _COLOURS.sub("", text).strip()


def _actor_id(target: Any) -> str | None:
    return None if target is None else str(target._actor_id.hex())
