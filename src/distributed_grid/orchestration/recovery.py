"""What the state files tell at the start, and what is still to be read from them.

A file that cannot be read keeps no controller from starting. What was before its last change serves until it can be
read; grid then ends what expires, and grants nothing new, since it writes over nothing that it could not read. The
reconciler tries again every second. Where both versions are silent, grid changes nothing for a while: the file may come
back. After that it takes the capacity home, as after a lost file, for capacity that stays out harms more.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid import threads
from distributed_grid.errors import StoreBroken
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.nodes import NodeTable
from distributed_grid.orchestration.belonging import Belongings
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.returning import begin_release
from distributed_grid.store.boost_file import Loaded
from distributed_grid.store.set_aside import SetAside

log = logger()

HOLD: Final = timedelta(seconds=60)
"""For so long nothing of a cluster is changed whose leases are not known."""

_ENDED_BEFORE: Final = "it had ended before the controller started again; only an older state file still had it"

_TOLD_FOR: Final = timedelta(seconds=10)
"""A damaged file that was replaced by a good one is told of for so long, so that somebody who looks can see it."""


@dataclass
class Damage:
    """A file that could not be understood, and since when there is a good one in its place."""

    told: str
    healed_at: datetime | None = None


class Recovery:
    """Fills the ledger and the sharing state of one engine."""

    def __init__(self, parts: Parts, *, adopt: bool = False) -> None:
        self._p = parts
        self._adopt = adopt
        self.belongings = Belongings()
        self._damage: list[Damage] = []
        self._unread: StoreBroken | None = None
        self._sharing_unread: StoreBroken | None = None
        self._instead: Loaded | None = None
        """What `.previous` told while the file itself cannot be read."""
        self._unlocked: StoreBroken | None = None
        self._unsettled = True
        self._began = parts.now()

    @property
    def holds(self) -> bool:
        """True while nothing is known of the leases and nothing may be changed."""
        is_unknown = self._unread is not None and (self._instead is None or self._instead.came_from == "nothing")
        return is_unknown and self._p.now() - self._began < HOLD

    @property
    def is_degraded(self) -> bool:
        return any(each is not None for each in (self._unread, self._sharing_unread, self._unlocked))

    def problems(self) -> tuple[str, ...]:
        told = [] if self._unread is None else [f"{self._why(self._unread)}. {self._what_serves()}"]
        if self._sharing_unread is not None:
            told.append(f"{self._why(self._sharing_unread)}. Waiting requests are unknown until then; grid tries again")
        if self._unlocked is not None:
            told.append(f"{self._why(self._unlocked)}. grid goes on without the lock and tries again")
        damage = [each.told for each in self._damage]
        return (*damage, *told, *self.belongings.unreadable, *self.belongings.problems)

    def lock(self, *, strict: bool) -> None:
        """Take the writer's lock. `AlreadyRunning` if another process has it; a lock that none can have is told."""
        try:
            self._p.home.create()
            self._p.lock.acquire()
        except StoreBroken as error:
            if strict:
                raise
            self._unlocked = error  # no other process can have what cannot be opened

    async def load(self, nodes: NodeTable, *, strict: bool) -> None:
        """Read all state files. With `strict`, raises `StoreBroken` for one that cannot be read."""
        try:
            self._take(await threads.DISK.run(self._load_file), nodes)
        except StoreBroken as error:
            if strict:
                raise
            self._tell_unread(error)
            await self._take_previous(nodes)
        await self._load_sharing(strict=strict)

    async def go_on(self) -> None:
        """Read again what could not be read, and forget what has healed. Never raises."""
        try:
            self._relock()
            if self._unread is not None:
                await self._read_again()
            elif self.belongings.unreadable:
                await self._look_aside_again()
            if self._sharing_unread is not None:
                await self._load_sharing(strict=False)
            self.settle()
        except Exception:
            log.exception("recovery: trying again")
        self._forget_healed()

    def settle(self) -> None:
        """What is in the ledger, and the ledger on disk, is no longer kept aside."""
        if self._unsettled and self._p.unwritten is None and self._unread is None:
            self.belongings.settle(self._p)
            self._unsettled = False

    # -- boosts --------------------------------------------------------------------------------------------

    def _load_file(self) -> Loaded:
        """A folder that is not there and cannot be made says nothing of the boosts: they may be back with it."""
        try:
            self._p.home.create()
        except StoreBroken as error:
            self._p.file.leave_alone(error)
            raise
        return self._p.file.load()

    def _take(self, loaded: Loaded, nodes: NodeTable, ended: frozenset[str] = frozenset()) -> None:
        self.belongings = Belongings()
        self._damage += [Damage(problem) for problem in loaded.problems]
        try:
            self.belongings.take(self._p, loaded, nodes, adopt=self._adopt, ended=ended)
        except StoreBroken as error:  # boosts of another cluster cannot be kept elsewhere: so they stay where they are
            self._p.file.leave_alone(error)
            raise

    async def _take_previous(self, nodes: NodeTable) -> None:
        """Go on from `.previous`, if that can be read. Nothing on disk is changed."""
        p = self._p
        try:
            self._instead = await threads.DISK.run(p.file.load_previous)
        except StoreBroken:
            self._instead = None
            return
        loaded = self._instead
        if loaded.cluster is None or loaded.cluster.same_cluster(p.identity):
            for lease in loaded.leases:
                p.ledger.put(lease)

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
                begin_release(p, lease, _ENDED_BEFORE, grace_s=0.0, wanted_back=False, ending=before)
        self._unread = self._instead = None
        p.journal.note("store_read", f"{p.file.path.name} can be read again; {len(p.ledger)} boosts are known")
        await p.try_commit()
        p.something_changed()

    async def _look_aside_again(self) -> None:
        """Files of other clusters that can be read again; boosts of this one may be among them."""
        p = self._p
        _, unreadable = await threads.DISK.run(SetAside(p.file.path).all)
        if unreadable == self.belongings.unreadable:
            return
        before, self.belongings = self.belongings, Belongings()
        self.belongings.notes += before.notes
        self.belongings.take(p, Loaded((), None, (), "nothing"), await p.look(), adopt=self._adopt)
        self._unsettled = True
        await p.try_commit()
        p.something_changed()

    def _tell_unread(self, error: StoreBroken) -> None:
        self._unread = error
        self._p.journal.note("store_unreadable", self._why(error))

    def _what_serves(self) -> str:
        name = self._p.file.previous.name
        if self._instead is not None and self._instead.came_from == "previous":
            return f"{name} serves meanwhile: boosts end on time, and no new ones are granted. grid tries again"
        if self.holds:
            until = HOLD - (self._p.now() - self._began)
            return (
                f"No boosts are known. grid tries again, and takes all capacity home in {until.total_seconds():.0f} s "
                "if it cannot be read by then"
            )
        return "No boosts are known, and all capacity was taken home. grid tries again"

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
            self._damage.append(Damage(problem))
        for lease in p.ledger:  # it was granted, and the crash came before that was put down
            p.sharing.waiting.pop(lease.id, None)
        if problems:  # so that there is a good one from now on
            await self._replace_sharing()

    async def _replace_sharing(self) -> None:
        try:
            await self._p.commit_sharing()
        except StoreBroken as error:
            self._p.journal.note("store_unwritable", self._why(error))

    def _relock(self) -> None:
        if self._unlocked is not None:
            try:
                self._p.lock.keep()
            except StoreBroken as error:
                self._unlocked = error
            else:
                self._unlocked = None

    def _forget_healed(self) -> None:
        now = self._p.now()
        is_good = self._unread is None and self._sharing_unread is None and self._p.unwritten is None
        for each in self._damage:
            each.healed_at = (each.healed_at or now) if is_good else None
        self._damage = [each for each in self._damage if each.healed_at is None or now - each.healed_at < _TOLD_FOR]

    @staticmethod
    def _why(error: StoreBroken) -> str:
        return "; ".join((error.message, *error.because))
