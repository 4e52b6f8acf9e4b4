"""One member of a role, as the caller's handle."""

from typing import Any, Generic, NoReturn, TypeVar

from distributed_grid.roles.calls.calling import Call, Transport
from distributed_grid.roles.calls.endpoints import Endpoint, Ref
from distributed_grid.roles.calls.failures import Failed, check_method

T = TypeVar("T")


class MemberMethod:
    """`member.step`: `.remote(...)` calls it."""

    __slots__ = ("_member", "_name")

    def __init__(self, member: "MemberHandle[Any]", name: str) -> None:
        self._member, self._name = member, name

    def remote(self, *args: Any, **kwargs: Any) -> Ref:
        """Call the method without waiting for the answer. Returns a reference; with Ray, an ObjectRef."""
        return self._member.submit(self._name, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._name
        raise TypeError(
            f"{name}() of a member runs elsewhere and cannot be called like a function; "
            f'use member.{name}.remote(...) for a reference, or member.call("{name}", ...) for the answer'
        )


class MemberHandle(Generic[T]):
    """One member of a role, of the class `T`. The handle stays valid when the member restarts.

    `call` waits and returns the answer; `member.step.remote(x)` returns a reference. To call a method whose name the
    handle itself uses (`call`, `submit`, `options`, `role`, `rank`, `node`), use `call` or `submit`.
    """

    __slots__ = ("_deadline_s", "_endpoint", "_transport")

    def __init__(self, transport: Transport, endpoint: Endpoint, deadline_s: float | None = None) -> None:
        self._transport, self._endpoint, self._deadline_s = transport, endpoint, deadline_s

    @property
    def role(self) -> str:
        return self._endpoint.role

    @property
    def rank(self) -> int:
        return self._endpoint.rank

    @property
    def node(self) -> str:
        """The member's node, which may change with a restart."""
        return self._endpoint.node

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method and return the answer. Raises `MemberFailed`, `MemberLost` or `CallTimedOut`.

        While the member is away (it restarts), this waits for it, within the deadline.
        """
        self._check(method)
        found = Call(self._transport, method, args, kwargs, self._deadline_s).on_all((self._endpoint,))[0]
        if isinstance(found, Failed):
            raise found.error
        return found

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> Ref:
        """Call the method and return a reference. Waits only for a member that is away, within the deadline."""
        self._check(method)
        ref = Call(self._transport, method, args, kwargs, self._deadline_s).send(self._endpoint)
        self._endpoint.remember(ref)
        return ref

    def options(self, *, deadline_s: float | None) -> "MemberHandle[T]":
        """The same member with another deadline for each call; None: no limit."""
        return MemberHandle(self._transport, self._endpoint, deadline_s)

    def __getattr__(self, name: str) -> MemberMethod:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check(name)
        return MemberMethod(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._endpoint.methods]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemberHandle) and other._endpoint is self._endpoint

    def __hash__(self) -> int:
        return hash((self._endpoint.role, self._endpoint.rank))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the handle of {self.role} {self.rank} belongs to this process; members know each other by "
            "on_peers(peers), and another process has handles by attach(name)"
        )

    def __repr__(self) -> str:
        return f"<member {self._endpoint!r}>"

    def _check(self, method: str) -> None:
        known = self._endpoint.methods
        if method not in known and known:  # a member that was never up has not reported its methods yet
            check_method(self._endpoint.role, method, known)
