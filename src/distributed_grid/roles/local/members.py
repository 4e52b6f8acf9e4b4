"""The members of a run in local mode: they join, learn of their peers, and leave."""

import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from distributed_grid.errors import CallTimedOut, GridError, InvalidRole, Refused
from distributed_grid.model.roles.spec import Colocation, RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry, EndpointUnavailable
from distributed_grid.roles.calls.failures import not_up
from distributed_grid.roles.local.refs import LocalRef, Packed, Stays
from distributed_grid.roles.local.transport import LocalMember, LocalTransport, fetch
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.on_node.peers import Identity, Peer, Peers
from distributed_grid.roles.role_class import class_of


class LocalPeer(Peer, Stays):
    """The current member with the role and the rank, as with Ray, where peers are found by name."""

    __slots__ = ("_endpoint", "_registry", "_transport")

    def __init__(self, transport: LocalTransport, registry: EndpointRegistry, endpoint: Endpoint) -> None:
        super().__init__(endpoint.role, endpoint.rank)
        self._transport, self._registry, self._endpoint = transport, registry, endpoint

    def _method(self, name: str) -> "LocalPeerMethod":
        if name not in self._endpoint.methods:
            raise AttributeError(name)
        return LocalPeerMethod(self, name)

    def _send(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LocalRef:
        endpoint = self._registry.endpoint(self.role, self.rank) or self._endpoint
        try:
            return self._transport.submit(endpoint, name, args, kwargs)
        except EndpointUnavailable:
            ref = LocalRef()
            ref.lose(endpoint.why or f"{self.role} {self.rank} is gone")
            return ref


class LocalPeerMethod:
    __slots__ = ("_name", "_peer")

    def __init__(self, peer: LocalPeer, name: str) -> None:
        self._peer, self._name = peer, name

    def remote(self, *args: Any, **kwargs: Any) -> LocalRef:
        """Like a call with Ray, this raises nothing: the reference reports a member that is gone."""
        return self._peer._send(self._name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"{self._name}() of a peer cannot be called directly: {self._name}.remote(...) returns a reference"
        )


class Load(NamedTuple):
    """The load of one member: waiting calls and running calls."""

    queue: int
    running: int


class LocalProcessSet:
    def __init__(self, workload: Workload, run: str) -> None:
        self.registry, self.transport = EndpointRegistry(run), LocalTransport()
        self._specs = {spec.name: spec for spec in workload.roles}
        self._classes = {spec.name: class_of(spec) for spec in workload.roles}
        self._configs = {spec.name: _packed(spec) for spec in workload.roles}
        self._together = {spec.name: _names_in_process(group) for group in workload.together for spec in group}
        self._members: dict[Endpoint, LocalMember] = {}
        self._changing = threading.Lock()
        for role in self._specs:
            self.registry.add_role(role)

    def grow(self, sizes: Mapping[str, int]) -> list[Endpoint]:
        """Add members until each role has its size: all new ones come up, or none does. They are not introduced yet."""
        new: list[Endpoint] = []
        try:
            for role, size in sizes.items():
                new += [self._hire(role, rank) for rank in self._free_ranks(role, size)]
            self._wait([(endpoint, self._members[endpoint].make()) for endpoint in new], "__init__")
        except BaseException:
            self._end_all(new, "another one did not come up", finish=False)
            raise
        for endpoint in new:
            self.registry.put(endpoint)
            endpoint.connect(self._members[endpoint])
        return new

    def shrink(self, sizes: Mapping[str, int]) -> None:
        """Remove the members with the highest ranks, after the calls that they already have."""
        for role, size in sizes.items():
            for endpoint in self.registry.endpoints(role)[size:]:
                why = f"{role} was scaled down to {size}"
                self.registry.drop(role, endpoint.rank, why)
                self._end_all([endpoint], why, finish=True)

    def introduce(self, new: Sequence[Endpoint], note: Callable[[str], None]) -> None:
        """Tell all members that define `on_peers` of their peers.

        New members that fail here are removed. Failures of other members are noted.
        """
        endpoints = [endpoint for role in self.registry.roles for endpoint in self.registry.endpoints(role)]
        listeners = [endpoint for endpoint in endpoints if self._members[endpoint].wants_peers]
        begun = [(endpoint, self._members[endpoint].tell(self._peers(endpoint))) for endpoint in listeners]
        try:
            self._wait([(endpoint, ref) for endpoint, ref in begun if endpoint in new], ON_PEERS)
        except BaseException:
            for endpoint in new:
                self.registry.drop(endpoint.role, endpoint.rank, "it did not come up")
            self._end_all(new, "it did not come up", finish=False)
            raise
        for endpoint, ref in begun:
            if endpoint not in new:
                try:
                    self._wait([(endpoint, ref)], ON_PEERS)
                except GridError as error:
                    note(error.message)

    def close(self, why: str) -> bool:
        """End all members and lose their calls. False: they had ended before."""
        with self._changing:
            if self.registry.closed:
                return False
            self.registry.close(why)
        self._end_all(list(self._members), why, finish=False)
        return True

    def actor(self, endpoint: Endpoint) -> str:
        """The name that its actor would have."""
        return f"{self.registry.run}/{'+'.join(self._together[endpoint.role] or [endpoint.role])}/{endpoint.rank}"

    def load(self, endpoint: Endpoint) -> Load:
        member = self._members.get(endpoint)
        return Load(0, 0) if member is None else Load(member.worker.waiting, member.worker.running)

    def count(self, role: str) -> int:
        return len(self.registry.endpoints(role))

    def of_roles(self, roles: Iterable[str]) -> list[Load]:
        return [self.load(endpoint) for role in roles for endpoint in self.registry.endpoints(role)]

    def _hire(self, role: str, rank: int) -> Endpoint:
        spec = self._specs[role]
        with self._changing:
            if self.registry.closed:
                raise Refused(f"The run {self.registry.run} is over", because=[self.registry.closed])
            name = f"{self.registry.run}/{role}/{rank}"
            member = LocalMember(name, self._classes[role], self._configs[role], spec.max_concurrency)
            endpoint = Endpoint(
                role, rank, node=platform.node(), methods=member.methods, concurrency=member.concurrency
            )
            self._members[endpoint] = member
        return endpoint

    def _free_ranks(self, role: str, size: int) -> Sequence[int]:
        taken = {endpoint.rank for endpoint in self.registry.endpoints(role)}
        return [rank for rank in range(size) if rank not in taken]

    def _end_all(self, endpoints: Sequence[Endpoint], why: str, *, finish: bool) -> None:
        for endpoint in endpoints:
            member = self._members.pop(endpoint, None)
            if member is not None:
                member.worker.close(why, finish=finish)

    def _wait(self, begun: Sequence[tuple[Endpoint, LocalRef]], method: str) -> None:
        since = time.monotonic()
        for endpoint, ref in begun:
            within = self._specs[endpoint.role].startup_deadline_seconds
            try:
                self.transport.outcome(ref, endpoint, method, max(0.0, since + within - time.monotonic()))
            except CallTimedOut:
                raise not_up(endpoint, within) from None

    def _peers(self, endpoint: Endpoint) -> Peers:
        registry = self.registry
        listed = {role: registry.endpoints(role) for role in registry.roles}
        me = Identity(endpoint.role, endpoint.rank, len(listed[endpoint.role]), endpoint.node, self.registry.run)
        members = {
            role: [LocalPeer(self.transport, self.registry, one) for one in endpoints]
            for role, endpoints in listed.items()
        }
        near = [role for role in self._together[endpoint.role] if role != endpoint.role]
        siblings = {
            role: self._members[one].instance for role in near for one in listed[role] if one.rank == endpoint.rank
        }
        return Peers(me, members, siblings, fetch)


def _names_in_process(group: Sequence[RoleSpec]) -> list[str]:
    """The roles of the group, if they share a process."""
    return [spec.name for spec in group] if group[0].colocation is Colocation.PROCESS else []


def _packed(spec: RoleSpec) -> Packed:
    """Packed once: every member gets a copy as of the start of the run."""
    try:
        return Packed(spec.config, frozen=False)
    except Exception as error:  # (pickling runs user code, which raises anything)
        raise InvalidRole(
            f"The config of the role {spec.name} cannot be copied, and every member needs its own copy",
            because=[f"{type(error).__name__}: {error}"],
            try_next="Create locks, connections and open files in the constructor instead.",
        ) from error
