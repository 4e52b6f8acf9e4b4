"""Members in memory for tests of handles: what each answers is a function, and in which order they end is a choice."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry, EndpointUnavailable
from distributed_grid.roles.calls.failures import member_failed, member_lost, timed_out
from distributed_grid.roles.calls.groups import CallOptions, RoleGroup

HANGS = object()
"""An answer that never comes."""
FIRST: Callable[[int], int] = lambda _: 0  # noqa: E731


class Dies(Exception):
    """The process ends during the call."""


class Sent:
    """A call that was sent; it is over once a caller has seen it end."""

    def __init__(self, endpoint: Endpoint, method: str, args: Sequence[Any], found: Any) -> None:
        self.endpoint, self.method, self.args, self.found = endpoint, method, args, found
        self.over = False


class ScriptedTransport:
    def __init__(self, answer: Callable[..., Any], ends: Callable[[int], int] = FIRST) -> None:
        """`answer(endpoint, *args)`; `ends(n)`: which of n calls that can end ends next."""
        self._answer, self._ends = answer, ends
        self.sent: list[Sent] = []
        self.when_away: Callable[[Endpoint], None] = lambda endpoint: None

    def submit(self, endpoint: Endpoint, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sent:
        try:
            endpoint.current_target()
        except EndpointUnavailable:
            self.when_away(endpoint)
            raise
        try:
            found = self._answer(endpoint, *args, **kwargs)
        except Exception as error:  # noqa: BLE001
            found = error.with_traceback(None)  # as if it came from another process
        self.sent.append(Sent(endpoint, method, args, found))
        return self.sent[-1]

    def collect(self, refs: Sequence[Sent], within_s: float | None) -> list[Any]:
        for ref in refs:
            if ref.found is HANGS or isinstance(ref.found, Exception):
                raise RuntimeError("not all is well")
        return [self._end(ref) for ref in refs]

    def outcome(self, ref: Sent, endpoint: Endpoint, method: str, within_s: float | None) -> Any:
        if ref.found is HANGS:
            assert within_s is not None, "this would wait for ever"
            raise timed_out(endpoint, method, within_s)
        found = self._end(ref)
        if isinstance(found, Dies):
            raise member_lost(endpoint, method, str(found))
        if isinstance(found, Exception):
            raise member_failed(endpoint, method, found, f"Traceback of {found!r}")
        return found

    def first_done(self, refs: Sequence[Sent], within_s: float | None) -> int | None:
        can_end = [index for index, ref in enumerate(refs) if ref.found is not HANGS]
        assert can_end or within_s is not None, "this would wait for ever"
        if not can_end:
            return None
        index = can_end[self._ends(len(can_end))]
        self._end(refs[index])
        return index

    def unfinished(self, refs: Sequence[Sent]) -> list[Sent]:
        return [ref for ref in refs if not ref.over]

    def ranks(self) -> list[int]:
        """To whom calls were sent, in order."""
        return [ref.endpoint.rank for ref in self.sent]

    def _end(self, ref: Sent) -> Any:
        ref.over = True
        return ref.found


def workers(
    size: int, transport: ScriptedTransport, *, concurrency: int = 1, deadline_s: float | None = None
) -> tuple[RoleGroup[Any], tuple[Endpoint, ...]]:
    """A group `worker` of so many members that are up, with the methods `step` and `stop`."""
    registry = EndpointRegistry("run")
    registry.add_role("worker")
    for rank in range(size):
        endpoint = Endpoint("worker", rank, node=f"n{rank}", methods=("step", "stop"), concurrency=concurrency)
        endpoint.connect(object())
        registry.put(endpoint)
    return RoleGroup(registry, transport, "worker", CallOptions(deadline_s=deadline_s)), registry.endpoints("worker")
