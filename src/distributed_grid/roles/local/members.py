"""The members of a run in local mode: they join, learn of their peers, and leave."""

import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from distributed_grid.errors import CallTimedOut, GridError, InvalidRole, Refused
from distributed_grid.model.roles.spec import Colocation, RoleSpec
from distributed_grid.model.roles.workload import Workload
from distributed_grid.roles.calls.failures import not_up
from distributed_grid.roles.calls.roster import Roster, Seat, SeatAway
from distributed_grid.roles.local.refs import LocalRef, Packed, Stays
from distributed_grid.roles.local.transport import LocalMember, LocalTransport, fetch
from distributed_grid.roles.on_node.making import ON_PEERS
from distributed_grid.roles.on_node.peers import Identity, Peer, Peers
from distributed_grid.roles.role_class import class_of


class LocalPeer(Peer, Stays):
    """The current member with the role and the rank, as with Ray, where peers are found by name."""

    __slots__ = ("_roster", "_seat", "_transport")

    def __init__(self, transport: LocalTransport, roster: Roster, seat: Seat) -> None:
        super().__init__(seat.role, seat.rank)
        self._transport, self._roster, self._seat = transport, roster, seat

    def _method(self, name: str) -> "LocalPeerMethod":
        if name not in self._seat.methods:
            raise AttributeError(name)
        return LocalPeerMethod(self, name)

    def _send(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LocalRef:
        seat = self._roster.seat(self.role, self.rank) or self._seat
        try:
            return self._transport.submit(seat, name, args, kwargs)
        except SeatAway:
            ref = LocalRef()
            ref.lose(seat.why or f"{self.role} {self.rank} is gone")
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
            f"{self._name}() of a peer runs elsewhere: use {self._name}.remote(...), which gives a reference"
        )


class Load(NamedTuple):
    """The load of one member: waiting calls and running calls."""

    queue: int
    running: int


class LocalCrew:
    def __init__(self, workload: Workload, run: str) -> None:
        self.roster, self.transport = Roster(run), LocalTransport()
        self._specs = {spec.name: spec for spec in workload.roles}
        self._classes = {spec.name: class_of(spec) for spec in workload.roles}
        self._configs = {spec.name: _packed(spec) for spec in workload.roles}
        self._together = {spec.name: _names_in_process(group) for group in workload.together for spec in group}
        self._members: dict[Seat, LocalMember] = {}
        self._changing = threading.Lock()
        for role in self._specs:
            self.roster.add_role(role)

    def grow(self, sizes: Mapping[str, int]) -> list[Seat]:
        """Add members until each role has its size: all new ones come up, or none does. They are not introduced yet."""
        new: list[Seat] = []
        try:
            for role, size in sizes.items():
                new += [self._hire(role, rank) for rank in self._free_ranks(role, size)]
            self._wait([(seat, self._members[seat].make()) for seat in new], "__init__")
        except BaseException:
            self._dismiss(new, "another one did not come up", finish=False)
            raise
        for seat in new:
            self.roster.put(seat)
            seat.came(self._members[seat])
        return new

    def shrink(self, sizes: Mapping[str, int]) -> None:
        """Remove the members with the highest ranks, after the calls that they already have."""
        for role, size in sizes.items():
            for seat in self.roster.seats(role)[size:]:
                why = f"{role} was scaled down to {size}"
                self.roster.drop(role, seat.rank, why)
                self._dismiss([seat], why, finish=True)

    def introduce(self, new: Sequence[Seat], note: Callable[[str], None]) -> None:
        """Tell all members that define `on_peers` of their peers.

        New members that fail here are removed. Failures of other members are noted.
        """
        seats = [seat for role in self.roster.roles for seat in self.roster.seats(role)]
        told = [seat for seat in seats if self._members[seat].wants_peers]
        begun = [(seat, self._members[seat].tell(self._peers(seat))) for seat in told]
        try:
            self._wait([(seat, ref) for seat, ref in begun if seat in new], ON_PEERS)
        except BaseException:
            for seat in new:
                self.roster.drop(seat.role, seat.rank, "it did not come up")
            self._dismiss(new, "it did not come up", finish=False)
            raise
        for seat, ref in begun:
            if seat not in new:
                try:
                    self._wait([(seat, ref)], ON_PEERS)
                except GridError as error:
                    note(error.message)

    def close(self, why: str) -> bool:
        """End all members and lose their calls. False: they had ended before."""
        with self._changing:
            if self.roster.closed:
                return False
            self.roster.close(why)
        self._dismiss(list(self._members), why, finish=False)
        return True

    def actor(self, seat: Seat) -> str:
        """The name that its actor would have."""
        return f"{self.roster.run}/{'+'.join(self._together[seat.role] or [seat.role])}/{seat.rank}"

    def load(self, seat: Seat) -> Load:
        member = self._members.get(seat)
        return Load(0, 0) if member is None else Load(member.worker.waiting, member.worker.running)

    def count(self, role: str) -> int:
        return len(self.roster.seats(role))

    def of_roles(self, roles: Iterable[str]) -> list[Load]:
        return [self.load(seat) for role in roles for seat in self.roster.seats(role)]

    def _hire(self, role: str, rank: int) -> Seat:
        spec = self._specs[role]
        with self._changing:
            if self.roster.closed:
                raise Refused(f"The run {self.roster.run} is over", because=[self.roster.closed])
            name = f"{self.roster.run}/{role}/{rank}"
            member = LocalMember(name, self._classes[role], self._configs[role], spec.max_concurrency)
            seat = Seat(role, rank, node=platform.node(), methods=member.methods, concurrency=member.concurrency)
            self._members[seat] = member
        return seat

    def _free_ranks(self, role: str, size: int) -> Sequence[int]:
        taken = {seat.rank for seat in self.roster.seats(role)}
        return [rank for rank in range(size) if rank not in taken]

    def _dismiss(self, seats: Sequence[Seat], why: str, *, finish: bool) -> None:
        for seat in seats:
            member = self._members.pop(seat, None)
            if member is not None:
                member.worker.close(why, finish=finish)

    def _wait(self, begun: Sequence[tuple[Seat, LocalRef]], method: str) -> None:
        since = time.monotonic()
        for seat, ref in begun:
            within = self._specs[seat.role].startup_deadline_seconds
            try:
                self.transport.outcome(ref, seat, method, max(0.0, since + within - time.monotonic()))
            except CallTimedOut:
                raise not_up(seat, within) from None

    def _peers(self, seat: Seat) -> Peers:
        roster = self.roster
        listed = {role: roster.seats(role) for role in roster.roles}
        me = Identity(seat.role, seat.rank, len(listed[seat.role]), seat.node, self.roster.run)
        members = {
            role: [LocalPeer(self.transport, self.roster, one) for one in seats] for role, seats in listed.items()
        }
        near = [role for role in self._together[seat.role] if role != seat.role]
        siblings = {role: self._members[one].instance for role in near for one in listed[role] if one.rank == seat.rank}
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
            f"The config of the role {spec.name} cannot be copied, so no member could have its own",
            because=[f"{type(error).__name__}: {error}"],
            try_next="Make what cannot travel (locks, connections, open files) in the constructor.",
        ) from error
