"""Recovery: what the state files say at the start, whose boosts they hold, and what is still unreadable.

Boosts of this cluster are applied; those of another cluster only if the user adopts them.

An unreadable file does not keep the controller from starting. The previous version serves until the file can be read:
grid ends what expires and grants nothing new, since it never overwrites what it could not read. The reconciler tries
again every second. If neither version can be read, grid changes nothing for a while, because the file may come back;
after that it takes all capacity back, as after a lost file.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from distributed_grid import threads
from distributed_grid.decide.leases.adoption import is_over, plan_adoption
from distributed_grid.errors import StoreBroken
from distributed_grid.leases.release import begin_release
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.store.boost_file import Loaded
from distributed_grid.store.set_aside import Kept, SetAside


@dataclass
class Adoption:
    """The leases that were loaded into the ledger, and the steps and reports that follow once the ledger is on disk."""

    notes: list[str] = field(default_factory=list)
    """For the user who started grid: boosts that were taken over or came back."""
    problems: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Problems with files of other clusters."""
    _settled: list[tuple[Kept, tuple[Lease, ...]]] = field(default_factory=list)

    def take(
        self,
        p: EngineContext,
        loaded: Loaded,
        nodes: NodeTable,
        *,
        adopt: bool,
        ended: frozenset[str] = frozenset(),
    ) -> None:
        """Fill the ledger with the boosts of this cluster. Others are kept for their own cluster.

        `ended`: boosts that have ended since the file was written, while it could not be read.
        """
        aside = SetAside(p.file.path)
        if loaded.cluster is None or loaded.cluster.same_cluster(p.identity):
            for lease in loaded.leases:
                known = p.ledger.get(lease.id)
                if lease.id not in ended and not (known is not None and known.is_winding_down):
                    p.ledger.restore(lease)
        elif loaded.leases:
            aside.keep(loaded.leases, loaded.cluster)
        for problem in loaded.problems:
            p.journal.note("store_problem", problem)
        kept, self.unreadable = aside.all()
        for problem in self.unreadable:
            p.journal.note("store_problem", problem)
        for each in kept:
            if each.cluster.same_cluster(p.identity):
                self._return(p, each)
            elif adopt:
                self._adopt(p, each, nodes)
            else:
                self._leave_alone(p, each)

    def settle(self, p: EngineContext) -> None:
        """Drop the set-aside copies of what is in the ledger. Call only once the ledger is on disk; safe to repeat."""
        for kept, left in self._settled:
            SetAside(p.file.path).leave(kept, left)

    def _return(self, p: EngineContext, kept: Kept) -> None:
        back = [p.ledger.restore(lease) for lease in kept.leases if p.ledger.get(lease.id) is None]
        self._settled.append((kept, ()))
        if back:
            self.notes.append(f"{_boosts(len(back))} of this cluster came back from {kept.path.name}")
            p.journal.note("came_back", self.notes[-1])

    def _adopt(self, p: EngineContext, kept: Kept, nodes: NodeTable) -> None:
        plan = plan_adoption(kept.leases, p.ledger, nodes, now=p.now())
        for lease in plan.taken:
            p.ledger.restore(lease)
        self._settled.append((kept, tuple(lease for lease, _ in plan.left)))
        if plan.taken:
            self.notes.append(f"took over {_boosts(len(plan.taken))} of the {_name(kept)}")
            p.journal.note("adopted", self.notes[-1])
        for lease, reason in plan.left:
            message = (
                f"{lease.describe()}, of the {_name(kept)}, is not taken over and stays in {kept.path.name}: {reason}"
            )
            self._not_ours(p, message)

    def _leave_alone(self, p: EngineContext, kept: Kept) -> None:
        live = [lease for lease in kept.leases if not is_over(lease, p.now()) and p.ledger.get(lease.id) is None]
        if live:
            message = (
                f"The {_name(kept)} has {_boosts(len(live))} in this GRID_HOME, which do not apply to this cluster, "
                f"{p.identity.name!r}. They are kept in {kept.path.name} until that cluster is started here again. "
                "To adopt those that fit here: stop grid, then start it with --adopt"
            )
            self._not_ours(p, message)

    def _not_ours(self, p: EngineContext, message: str) -> None:
        self.problems.append(message)
        p.journal.note("other_cluster", message)


def _boosts(count: int) -> str:
    return "1 boost" if count == 1 else f"{count} boosts"


def _name(kept: Kept) -> str:
    return f"cluster {kept.cluster.name!r} (nodes {', '.join(sorted(kept.cluster.nodes))})"


log = logger()

HOLD: Final = timedelta(seconds=60)
"""How long grid changes nothing in a cluster whose leases are unknown."""

_ENDED_BEFORE: Final = "it had ended before the controller started again; only an older state file still had it"

_REPORTED_FOR: Final = timedelta(seconds=10)
"""How long a damaged file is still reported after a good one has replaced it, so that users can notice it."""


@dataclass
class Damage:
    """A damaged file, and since when a good one is in its place."""

    text: str
    is_healed: Callable[[], bool]
    healed_at: datetime | None = None


class Recovery:
    """Fills the ledger and the sharing state of one engine."""

    def __init__(self, parts: EngineContext, *, adopt: bool = False) -> None:
        self._p = parts
        self._adopt = adopt
        self.adoption = Adoption()
        self._damage: list[Damage] = []
        self._unread: StoreBroken | None = None
        self._sharing_unread: StoreBroken | None = None
        self._sharing_damaged = False
        """A damaged file is still in its place: no good one could be written yet."""
        self._instead: Loaded | None = None
        """The contents of `.previous`, used while the file itself cannot be read."""
        self._unlocked: StoreBroken | None = None
        self._unsettled = True
        self._began = parts.now()

    @property
    def holds(self) -> bool:
        """True while the leases are unknown and nothing may be changed."""
        is_unknown = self._unread is not None and (self._instead is None or self._instead.came_from == "nothing")
        return is_unknown and self._p.now() - self._began < HOLD

    @property
    def is_degraded(self) -> bool:
        return any(each is not None for each in (self._unread, self._sharing_unread, self._unlocked))

    def problems(self) -> tuple[str, ...]:
        problems = [] if self._unread is None else [f"{self._why(self._unread)}. {self._what_serves()}"]
        if self._sharing_unread is not None:
            problems.append(
                f"{self._why(self._sharing_unread)}. Waiting requests are unknown until then; grid tries again"
            )
        if self._unlocked is not None:
            problems.append(f"{self._why(self._unlocked)}. grid continues without the lock, and retries")
        damage = [each.text for each in self._damage]
        return (*damage, *problems, *self.adoption.unreadable, *self.adoption.problems)

    def lock(self, *, strict: bool) -> None:
        """Take the writer's lock; raises `AlreadyRunning` if another process has it.

        A lock that cannot be opened raises `StoreBroken` with `strict`, and is reported as a problem without.
        """
        try:
            self._p.home.create()
            self._p.lock.acquire()
        except StoreBroken as error:
            if strict:
                raise
            self._unlocked = error  # no other process can hold a lock that cannot be opened

    async def load(self, nodes: NodeTable, *, strict: bool) -> None:
        """Read all state files. With `strict`, raises `StoreBroken` for one that cannot be read."""
        try:
            self._take(await threads.DISK.run(self._load_file), nodes)
        except StoreBroken as error:
            if strict:
                raise
            self._tell_unread(error)
            await self._take_previous()
        await self._load_sharing(strict=strict)

    async def go_on(self) -> None:
        """Retry unreadable files, and forget resolved problems. Never raises."""
        try:
            self._relock()
            if self._unread is not None:
                await self._read_again()
            elif self.adoption.unreadable:
                await self._look_aside_again()
            if self._sharing_unread is not None:
                await self._load_sharing(strict=False)
            elif self._sharing_damaged:
                await self._replace_sharing()
            self.settle()
        except Exception:
            log.exception("recovery: trying again")
        self._forget_healed()

    def settle(self) -> None:
        """Drop the set-aside copies of what is in the ledger, once the ledger is on disk."""
        if self._unsettled and self._p.unwritten is None and self._unread is None:
            self.adoption.settle(self._p)
            self._unsettled = False

    # -- boosts --------------------------------------------------------------------------------------------

    def _load_file(self) -> Loaded:
        """A missing folder that cannot be created says nothing about the boosts: they may return with it."""
        try:
            self._p.home.create()
        except StoreBroken as error:
            self._p.file.leave_alone(error)
            raise
        return self._p.file.load()

    def _take(self, loaded: Loaded, nodes: NodeTable, ended: frozenset[str] = frozenset()) -> None:
        self.adoption = Adoption()
        self._damage += [Damage(problem, self._boosts_are_good) for problem in loaded.problems]
        try:
            self.adoption.take(self._p, loaded, nodes, adopt=self._adopt, ended=ended)
        except StoreBroken as error:  # boosts of another cluster cannot be set aside, so they stay where they are
            self._p.file.leave_alone(error)
            raise

    async def _take_previous(self) -> None:
        """Load `.previous` instead, if it can be read. Nothing on disk changes."""
        p = self._p
        try:
            self._instead = await threads.DISK.run(p.file.load_previous)
        except StoreBroken:
            self._instead = None
            return
        loaded = self._instead
        if loaded.cluster is None or loaded.cluster.same_cluster(p.identity):
            for lease in loaded.leases:
                p.ledger.restore(lease)

    async def _read_again(self) -> None:
        p = self._p
        try:
            loaded = await threads.DISK.run(self._load_file)
        except StoreBroken as error:
            if self._unread is None or error.message != self._unread.message:
                self._tell_unread(error)
            self._unread = error
            return
        known = frozenset(lease.id for lease in self._instead.leases) if self._instead else frozenset()
        there = {lease.id for lease in loaded.leases}
        ended = frozenset(known - {lease.id for lease in p.ledger})
        try:
            self._take(loaded, await p.look(), ended)
        except StoreBroken as error:
            self._unread = error
            return
        for lease in p.ledger:
            if lease.id not in there and lease.id in known and not lease.is_winding_down:
                before = lease.ending or Ending(EndCause.ENDED_BEFORE, "grid")
                begin_release(p, lease, _ENDED_BEFORE, grace_s=0.0, is_reclaimed=False, ending=before)
        self._unread = self._instead = None
        p.journal.note("store_read", f"{p.file.path.name} can be read again; {len(p.ledger)} boosts are known")
        await p.try_commit()
        p.something_changed()

    async def _look_aside_again(self) -> None:
        """Load files of other clusters that have become readable; they may hold boosts of this one."""
        p = self._p
        _, unreadable = await threads.DISK.run(SetAside(p.file.path).all)
        if unreadable == self.adoption.unreadable:
            return
        before, self.adoption = self.adoption, Adoption()
        self.adoption.notes += before.notes
        self.adoption.take(p, Loaded((), None, (), "nothing"), await p.look(), adopt=self._adopt)
        self._unsettled = True
        await p.try_commit()
        p.something_changed()

    def _tell_unread(self, error: StoreBroken) -> None:
        self._unread = error
        self._p.journal.note("store_unreadable", self._why(error))

    def _what_serves(self) -> str:
        name = self._p.file.previous.name
        if self._instead is not None and self._instead.came_from == "previous":
            return f"Using {name} meanwhile: boosts end on time, and no new ones are granted. grid keeps retrying"
        if self.holds:
            until = HOLD - (self._p.now() - self._began)
            return (
                f"No boosts are known. grid tries again, and returns all capacity in {until.total_seconds():.0f} s "
                "if it cannot be read by then"
            )
        return "No boosts are known, and all capacity was returned. grid tries again"

    # -- the rest ------------------------------------------------------------------------------------------

    async def _load_sharing(self, *, strict: bool) -> None:
        p = self._p
        was_unread = self._sharing_unread is not None
        try:
            problems = await threads.DISK.run(p.load_sharing)
        except StoreBroken as error:
            if strict:
                raise
            if not was_unread:
                p.journal.note("store_unreadable", self._why(error))
            self._sharing_unread = error
            return
        self._sharing_unread = None
        if was_unread:
            p.journal.note("store_read", "sharing.json can be read again")
            p.something_changed()
        for problem in problems:
            p.journal.note("store_problem", problem)
            self._damage.append(Damage(problem, self._sharing_is_good))
        for lease in p.ledger:  # granted, but the crash came before the queue was written
            p.sharing.waiting.pop(lease.id, None)
        if problems:
            await self._replace_sharing()

    async def _replace_sharing(self) -> None:
        """Replace the damaged file with a good one; if that fails, the next turn tries again."""
        was_damaged, self._sharing_damaged = self._sharing_damaged, True
        try:
            await self._p.commit_sharing()
        except StoreBroken as error:
            if not was_damaged:
                self._p.journal.note("store_unwritable", self._why(error))
        else:
            self._sharing_damaged = False

    def _relock(self) -> None:
        if self._unlocked is not None:
            try:
                self._p.lock.keep()
            except StoreBroken as error:
                self._unlocked = error
            else:
                self._unlocked = None

    def _boosts_are_good(self) -> bool:
        return self._unread is None and self._p.unwritten is None

    def _sharing_is_good(self) -> bool:
        return self._sharing_unread is None and not self._sharing_damaged

    def _forget_healed(self) -> None:
        now = self._p.now()
        for each in self._damage:
            each.healed_at = (each.healed_at or now) if each.is_healed() else None
        self._damage = [each for each in self._damage if each.healed_at is None or now - each.healed_at < _REPORTED_FOR]

    @staticmethod
    def _why(error: StoreBroken) -> str:
        return "; ".join((error.message, *error.because))
