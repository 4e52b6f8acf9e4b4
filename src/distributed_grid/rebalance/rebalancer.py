"""The rebalancing loop: observe, decide, take a few actions, and say why.

Actions take the same path as users' requests, so every limit is checked again. Suggestions are computed in every round
and announced once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from distributed_grid.decide.monitoring.trends import Trend
from distributed_grid.decide.rebalance.observed import kinds_asked
from distributed_grid.decide.rebalance.round import OWN_LEASE_S, Forecasts, Observed, Streaks, rebalance
from distributed_grid.decide.rebalance.suggestions import HORIZONS_S, Suggestion, suggest
from distributed_grid.errors import GridError
from distributed_grid.leases.reclaim import by_policy, reclaim
from distributed_grid.leases.release import begin_release
from distributed_grid.leases.rules import numbers, rules_of_one_look
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.model.endings import EndCause
from distributed_grid.model.lease_changes import KeyTaken
from distributed_grid.model.leases import Cause, Lease, LeaseState
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.plans import Action, Borrow, Move, Relieve, Renew, Return, RulesFor
from distributed_grid.model.resources import BUILT_IN, amount_of, describe
from distributed_grid.model.series import Forecast
from distributed_grid.monitoring.collector import Collector
from distributed_grid.queue.service import BoostService

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import SuggestionStatus


_FIRST_S: Final = (900.0, 3600.0)
"""A node that is not expected to be pressed at one of these is not examined further: a short peak is no need."""
_AT_ONCE: Final = 50
"""How many nodes are examined before the event loop goes on: a forecast takes a thirtieth of a millisecond."""
_TREND: Final = "15m"
_FORGOTTEN_AFTER: Final = timedelta(minutes=10)
"""A suggestion that was gone for less is not announced again."""


class Suggestions:
    """The suggestions of the last round."""

    def __init__(self, parts: EngineContext, collector: Collector) -> None:
        self._p = parts
        self._collector = collector
        self.current: tuple[Suggestion, ...] = ()
        self._announced: dict[tuple[NodeName, str, Cause], datetime] = {}

    async def renew(self, seen: Observed, rules_for: RulesFor) -> None:
        ahead = await self._ahead(seen)
        self.current = suggest(seen, ahead, self._trends(seen, ahead), rules_for)
        self._announce(seen.now)

    async def _ahead(self, seen: Observed) -> dict[tuple[NodeName, str], tuple[Forecast, ...]]:
        found: dict[tuple[NodeName, str], tuple[Forecast, ...]] = {}
        for number, name in enumerate(seen.snapshots):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            for kind in BUILT_IN:
                high = seen.thresholds[kind].high
                if any(one.value >= high for one in self._forecasts(name, kind, _FIRST_S)):
                    found[name, kind] = self._forecasts(name, kind, HORIZONS_S)
        return found

    def _forecasts(self, name: NodeName, kind: str, horizons_s: tuple[float, ...]) -> tuple[Forecast, ...]:
        found = (self._collector.forecast(name, kind, horizon_s) for horizon_s in horizons_s)
        return tuple(one for one in found if one is not None)

    def _trends(
        self, seen: Observed, ahead: dict[tuple[NodeName, str], tuple[Forecast, ...]]
    ) -> dict[tuple[NodeName, str], Trend]:
        return {key: self._collector.trends(*key)[_TREND] for key in {*seen.pressed, *ahead}}

    def _announce(self, now: datetime) -> None:
        for one in self.current:
            if one.key not in self._announced:
                message = f"{one.what}: {one.command}" if one.command else one.what
                self._p.journal.note("suggested", message, node=one.node, suggestion=suggestion_dict(one))
            self._announced[one.key] = now
        self._announced = {key: at for key, at in self._announced.items() if now - at < _FORGOTTEN_AFTER}


def suggestion_dict(one: Suggestion) -> SuggestionStatus:
    """As the API and `--json` show it."""
    return {
        "node": one.node,
        "resource_type": one.kind,
        "cause": str(one.cause),
        "what": one.what,
        "reason": one.reason,
        "confidence": round(one.confidence, 3),
        "how_sure": one.how_sure,
        "in_seconds": one.in_s,
        "amount": None if one.ask is None else amount_of(one.kind, one.ask.units),
        "source_node": None if one.ask is None else one.ask.source,
        "command": one.command,
        "by_itself": one.by_itself,
    }


class ActionRunner:
    """Carries out one action at a time. An action is not forced if things have changed since it was decided."""

    def __init__(self, parts: EngineContext, service: BoostService) -> None:
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
        if (lease := self._p.ledger.active(action.lease)) is not None:
            begin_release(self._p, lease, action.reason, ending=by_policy(self._p, EndCause.UNNEEDED))
            self._note("return", f"returned {lease.describe()}", action.reason, lease)
            await self._done()

    async def _move(self, action: Move) -> None:
        """Make before break: the target has its capacity from the new lender before the old one takes its own back.

        The new lease's key contains the old lease's id, so a move that a crash interrupted resumes where it was.
        """
        p = self._p
        if self._p.ledger.active(action.lease) is None:
            return
        new = await self._service.request(replace(action.grant.ask, idempotency_key=f"moved:{action.lease.id}"))
        old = self._p.ledger.active(action.lease)
        new = self._p.ledger.active(new) or new
        if new.state is not LeaseState.ACTIVE:
            return
        if old is None:  # it ended meanwhile: the new one is not needed
            begin_release(p, new, "the lease that it was to replace has ended", ending=by_policy(p, EndCause.UNNEEDED))
        else:
            why = f"moved to {new.source} as boost {new.id[:8]}: {action.reason}"
            begin_release(p, old, why, is_reclaimed=True, ending=by_policy(p, EndCause.MOVED))
            # A repeated request with the key of the old lease now gets the new one.
            p.ledger.apply(new, KeyTaken(old.idempotency_key))
            what = describe(new.kind, new.units)
            message = f"{what} for {new.target} now come from {new.source}, not {old.source}, as boost {new.id[:8]}"
            self._note("move", message, action.reason, new, moved_from=old.id, old_source=old.source)
        await self._done()

    async def _relieve(self, action: Relieve) -> None:
        for victim in action.victims:
            if (lease := self._p.ledger.active(victim)) is not None:
                why, ending = f"its lender needs it: {action.reason}", by_policy(self._p, EndCause.LENDER)
                reclaim(self._p, victim, why, ending, units=action.takes.get(victim.id))
                self._note("relieve", f"reclaims {lease.describe()} for {action.node}", action.reason, lease)
        await self._done()

    async def _done(self) -> None:
        await self._p.try_commit()
        self._p.something_changed()

    def _note(self, action: str, what: str, reason: str, lease: Lease, **details: str) -> None:
        node = lease.source if action == "relieve" else lease.target
        self._p.journal.note(
            "rebalanced", f"{what}: {reason}", lease=lease, node=node, action=action, reason=reason, **details
        )


log = logger()

_HORIZON_S = OWN_LEASE_S / 2
"""The middle of a lease that would be made now."""


class Rebalancing:
    """Runs beside the reconciler and the measuring, on the same parts."""

    def __init__(self, parts: EngineContext, service: BoostService, collector: Collector) -> None:
        self._p = parts
        self._collector = collector
        self._actions = ActionRunner(parts, service)
        self._streaks: Streaks = {}
        self._seen_at: datetime | None = None
        self.suggestions = Suggestions(parts, collector)
        interval_s = float(parts.config.resource_sharing.rebalance_interval_seconds)
        self._loop = Loop("rebalancing", self._round, lambda: interval_s, waits_first=True)

    def start(self) -> None:
        if self._p.config.resource_sharing.enabled:
            self._loop.start()

    async def stop(self) -> None:
        """Stop after the current round."""
        await self._loop.stop()

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Pause rebalancing while all capacity is returned; if that succeeds, stop it for good."""
        async with self._loop.one_turn:
            yield
            self._loop.end()

    async def round(self) -> tuple[Action, ...]:
        """Look, decide, act. One measurement counts as one round, however often it is looked at."""
        async with self._loop.one_turn:
            return await self._round()

    async def _round(self) -> tuple[Action, ...]:
        if self._loop.is_stopping:
            return ()
        measured = max((one.taken_at for one in self._collector.snapshots().values()), default=None)
        if measured is None or measured == self._seen_at:
            return ()
        self._seen_at = measured
        nodes = await self._p.look_to_decide()
        rules = rules_of_one_look(self._p)
        seen = self._observe(nodes)
        actions, self._streaks = rebalance(seen, self._streaks, rules)
        await self.suggestions.renew(seen, rules)
        for action in actions:
            await self._try(action)
        return actions

    def _observe(self, nodes: NodeTable) -> Observed:
        p, collector = self._p, self._collector
        return Observed(
            nodes=nodes,
            snapshots=collector.snapshots(),
            pressed=collector.pressed,
            demand=collector.demand,
            leases=p.ledger.parts(),
            usage=p.ledger.usage,
            thresholds=collector.thresholds,
            numbers=numbers(p),
            mode=p.sharing.mode,
            now=p.now(),
            forecasts=self._forecasts(nodes) if numbers(p).foresees else {},
            queued=kinds_asked(p.sharing.waiting.values()),
            teams=p.teams,
        )

    def _forecasts(self, nodes: NodeTable) -> Forecasts:
        found = {(name, kind): self._collector.forecast(name, kind, _HORIZON_S) for name in nodes for kind in BUILT_IN}
        return {key: forecast for key, forecast in found.items() if forecast is not None}

    async def _try(self, action: Action) -> None:
        """Carry out one action. A failure is reported, and the other actions go on."""
        try:
            await self._actions.do(action)
        except GridError as error:
            self._not_done(action, error, "; ".join([error.message, *error.because]))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other actions go on
            self._not_done(action, error, repr(error))

    def _not_done(self, action: Action, error: Exception, message: str) -> None:
        what = type(action).__name__.lower()
        log.warning("a rebalancing action failed", action=what, reason=action.reason, error=message)
        self._p.journal.note(
            "not_rebalanced", f"{what}: {message}", action=what, reason=action.reason, error=repr(error)
        )
