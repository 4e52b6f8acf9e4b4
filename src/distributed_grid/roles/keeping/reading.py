"""Reading the signals that roles follow."""

from collections.abc import Callable
from typing import Any

from distributed_grid.client.prometheus import instant_query
from distributed_grid.errors import GridError
from distributed_grid.model.roles.signals import CallableSignal, MethodSignal, PrometheusSignal, QueueSignal
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.calls.groups import RoleGroup
from distributed_grid.roles.keeping.followed import Followed
from distributed_grid.roles.keeping.following import ANSWER_S


class SignalReader:
    def __init__(self, parts: Followed, group: Callable[[str], RoleGroup[Any]]) -> None:
        self._p = parts
        self._group = group

    def read(self, role: RoleSpec) -> float:
        """The value now; raises what keeps it from being read."""
        assert role.follows is not None
        source = role.follows.source
        if isinstance(source, QueueSignal):
            calls = [post.running + post.queue for post in self._p.crew.of_roles([role.name])]
            return sum(calls) / len(calls) if calls else 0.0
        if isinstance(source, MethodSignal):
            told = self._group(source.role).options(deadline_s=ANSWER_S).call(source.method)
            if not told:
                raise GridError(f"{source.role} has no members")
            return sum(map(float, told)) / len(told)
        if isinstance(source, CallableSignal):
            return float(source.function())
        return _ask(source)


def _ask(source: PrometheusSignal) -> float:
    """One number: the only sample of a vector, or a scalar."""
    data = instant_query(source.prometheus, source.query, ANSWER_S)
    if data["resultType"] == "scalar":
        return float(data["result"][1])
    if data["resultType"] != "vector" or len(data["result"]) != 1:
        raise GridError(f"the query gave {len(data['result'])} series, and a signal is one number")
    return float(data["result"][0]["value"][1])
