"""How members in local mode reach each other: by the face that they have with Ray, and by no other."""

from typing import Any, NoReturn

from distributed_grid.roles.calls.roster import Roster, Seat, SeatAway
from distributed_grid.roles.local.packing import Stays
from distributed_grid.roles.local.refs import LocalRef
from distributed_grid.roles.local.transport import LocalTransport
from distributed_grid.roles.on_node.peers import Peer


class LocalPeer(Peer, Stays):
    """Whoever has the role and the rank now, as with Ray, where peers are found by name."""

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
        """Like a call with Ray, it raises nothing: who is gone is told by the reference."""
        return self._peer._send(self._name, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            f"{self._name}() of a peer runs elsewhere: use {self._name}.remote(...), which gives a reference"
        )
