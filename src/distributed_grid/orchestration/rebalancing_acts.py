"""What rebalancing decided, done by the same ways as what people ask for, and told with its reason."""

from dataclasses import replace

from distributed_grid.model.actions import Action, Borrow, Move, Relieve, Renew, Return
from distributed_grid.model.endings import EndCause
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.resources import describe
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.reclaiming import ask_back, by_policy
from distributed_grid.orchestration.returning import begin_release


class Hands:
    """Does one action at a time. What has changed since it was decided is not forced."""

    def __init__(self, parts: Parts, service: BoostService) -> None:
        self._p = parts
        self._service = service

    async def do(self, action: Action) -> None:
        match action:
            case Borrow():
                lease = await self._service.request(action.ask)
                self._note("borrow", f"lent {lease.describe()}", action.reason, lease)
            case Renew():
                lease = await self._service.renew(action.lease.id, who="grid")
                self._note("renew", f"renewed {lease.describe()}", action.reason, lease)
            case Return():
                await self._return(action)
            case Move():
                await self._move(action)
            case Relieve():
                await self._relieve(action)

    async def _return(self, action: Return) -> None:
        if (lease := self._still_active(action.lease)) is not None:
            begin_release(self._p, lease, action.reason, ending=by_policy(self._p, EndCause.UNNEEDED))
            self._note("return", f"gives {lease.describe()} back", action.reason, lease)
            await self._done()

    async def _move(self, action: Move) -> None:
        """Make before break: the target has its capacity from the new lender before the old one takes its own back.

        The new loan is known by the old one's id: a move that a crash cut off in between is taken up where it was.
        """
        p = self._p
        if self._still_active(action.lease) is None:
            return
        new = await self._service.request(replace(action.grant.ask, idempotency_key=f"moved:{action.lease.id}"))
        old = self._still_active(action.lease)
        if old is None:  # it ended meanwhile: nobody wants the new one
            begin_release(p, new, "what it was to replace has ended", ending=by_policy(p, EndCause.UNNEEDED))
        else:
            told = f"moved to {new.source} as boost {new.id[:8]}: {action.reason}"
            begin_release(p, old, told, wanted_back=True, ending=by_policy(p, EndCause.MOVED))
            # Whoever asks again with the key of the old one means the loan as it is now.
            p.ledger.put(replace(new, idempotency_key=old.idempotency_key))
            what = describe(new.kind, new.units)
            told = f"{what} for {new.target} now come from {new.source}, not {old.source}, as boost {new.id[:8]}"
            self._note("move", told, action.reason, new, moved_from=old.id, old_source=old.source)
        await self._done()

    async def _relieve(self, action: Relieve) -> None:
        for victim in action.victims:
            if (lease := self._still_active(victim)) is not None:
                told, ending = f"its lender needs it: {action.reason}", by_policy(self._p, EndCause.LENDER)
                ask_back(self._p, lease, told, ending, units=action.takes.get(lease.id))
                self._note("relieve", f"asks {lease.describe()} back for {action.node}", action.reason, lease)
        await self._done()

    def _still_active(self, lease: Lease) -> Lease | None:
        current = self._p.ledger.get(lease.id)
        return current if current is not None and current.state is LeaseState.ACTIVE else None

    async def _done(self) -> None:
        await self._p.try_commit()
        self._p.something_changed()

    def _note(self, action: str, what: str, reason: str, lease: Lease, **details: str) -> None:
        node = lease.source if action == "relieve" else lease.target
        self._p.journal.note(
            "rebalanced", f"{what}: {reason}", lease=lease, node=node, action=action, reason=reason, **details
        )
