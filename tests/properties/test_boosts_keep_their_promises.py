"""Whatever is asked and whatever breaks: no lease is half there, nothing is lent twice, what was promised stays
promised, and in the end everything is returned.
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import FOR_ANA, ask
from fake_cluster import Crashed, FakeCluster, LostReply
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from whole_grid import WholeGrid, raising, together

from distributed_grid.config import GridConfig
from distributed_grid.errors import GridError, StoreBroken
from distributed_grid.faults import Point
from distributed_grid.leases.reclaim import reclaim
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import WATCHED, Delivery, Lease, LeaseState
from distributed_grid.model.resources import GB, ResourceVector, total
from distributed_grid.store.boost_file import BoostFile

NODES = {
    "a": {"cpus": 4, "memory": 4, "gpus": 1},
    "b": {"cpus": 2, "memory": 2, "license": 3},
    "c": {"cpus": 3, "memory": 4, "gpus": 1},
}
CONFIG = GridConfig.from_dict(
    {
        "name": "machine",
        "resource_sharing": {"enabled": True, "grace_seconds": 1},
        "nodes": [{"name": "a", "resource_sharing": {"max_share_cpu": 3}}, {"name": "b"}, {"name": "c"}],
    }
)
CALLS = ("resize", "reserve", "remove_group")
MOVING_POINTS = [point for point in Point if point.startswith(("capacity.", "markers."))]
GRANT_POINTS = [Point.GROUP_MADE, *MOVING_POINTS, *(point for point in Point if point.startswith("grant."))]
RELEASE_POINTS = [
    *(point for point in Point if point.startswith("release.")),
    Point.GROUP_CANCELLED,
    Point.GROUP_REMOVED,
    *MOVING_POINTS,
]
STORE_POINTS = [point for point in Point if point.startswith("store.")]
names = st.sampled_from(sorted(NODES))
asks = st.one_of(
    st.builds(
        ask,
        names,
        st.just("cpu"),
        st.integers(1, 3),
        source=st.none() | names,
        delivery=st.sampled_from([None, None, "reserve"]),
        reclaim_hook=st.sampled_from([None, WATCHED]),
        duration_s=st.sampled_from([3600.0, 3600.0, 5.0]),
        on_grace_end=st.sampled_from(OnGraceEnd),
    ),
    st.builds(ask, names, st.just("memory"), st.integers(1, 4), delivery=st.sampled_from([None, "reserve"])),
    st.builds(ask, names, st.just("gpu"), st.just(1)),
    st.builds(
        ask,
        names,
        st.just("cpu"),
        st.integers(3, 6),
        max_sources=st.integers(2, 3),
        delivery=st.sampled_from([None, None, "reserve"]),
        on_grace_end=st.sampled_from(OnGraceEnd),
    ),
    st.builds(ask, names, st.just("gpu"), st.just(2), max_sources=st.just(2)),
    st.builds(ask, names, st.just("license"), st.integers(1, 3)),
).filter(lambda a: a.source != a.target)


class BoostMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.cluster = FakeCluster.lagging(seed)
        for name, base in NODES.items():
            self.cluster.add_node(name, **base)
        self.folder = Path(tempfile.mkdtemp())
        self.grid = WholeGrid(self.cluster, CONFIG, self.folder / "home", seed)
        self.promised: dict[str, Lease] = {}
        self.disturbed = False
        self.keys = 0

    def do(self, doing):
        """What a user asks; None if the answer never came, or was no."""
        try:
            return self.grid.run(doing)
        except Crashed:
            self.bury()
            self.grid.start()
        except (LostReply, GridError):
            pass
        return None

    def bury(self) -> None:
        """A boost that ended while the disk was full is back after a crash, though its source may be busy by then."""
        self.disturbed = self.disturbed or self.grid.parts.unwritten is not None
        self.grid.bury()

    # -- what users do -------------------------------------------------------------------------------------

    @rule(asked=asks)
    def request(self, asked) -> None:
        granted = self.do(self.grid.service.request(asked))
        if granted is not None:
            assert granted.state is LeaseState.ACTIVE
            self.promised[granted.id] = granted

    @rule(asked=asks)
    def request_until_there_is_an_answer(self, asked) -> None:
        """As the client does: with a key, so that no crash and no lost answer makes two boosts of one."""
        self.keys += 1
        keyed = replace(asked, idempotency_key=f"key {self.keys}")
        for _ in range(4):
            try:
                granted = self.grid.run(self.grid.service.request(keyed))
            except Crashed:
                self.bury()
                self.grid.start()
            except LostReply:
                continue
            except GridError:
                break
            else:
                if granted.state is LeaseState.ACTIVE:
                    self.promised[granted.id] = granted
                break

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), grace=st.sampled_from([None, 0.0]))
    def release(self, data: st.DataObject, grace: float | None) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.grid.leases)))
        self.promised.pop(chosen, None)
        self.do(self.grid.service.release(chosen, grace_s=grace, wait_s=0.0))

    @precondition(lambda self: self._transfers())
    @rule(data=st.data(), part=st.sampled_from([0.1, 0.5, 1.0]))
    def give_up_a_part(self, data: st.DataObject, part: float) -> None:
        """What is lent stays the same to the last unit: kept, on its way home, or home."""
        chosen = data.draw(st.sampled_from(self._transfers()))
        before = self.grid.leases[chosen]
        self.do(self.grid.service.release(chosen, units=max(1, int(before.units * part)), wait_s=0.0))
        self._promise_what_is_left(chosen)

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), part=st.sampled_from([None, 0.3, 1.0]))
    def another_request_needs_it(self, data: st.DataObject, part: float | None) -> None:
        """Holders with a hook have their notice first; the others lose it at once, if need be a part."""
        chosen = data.draw(st.sampled_from(sorted(self.grid.leases)))
        self.do(self._reclaim(self.grid.leases[chosen], part))
        self._promise_what_is_left(chosen)

    async def _reclaim(self, lease: Lease, part: float | None) -> None:
        reclaim(self.grid.parts, lease, "a test", FOR_ANA, units=None if part is None else int(lease.units * part))
        await self.grid.parts.try_commit()

    def _transfers(self) -> list[str]:
        active = (x for x in self.grid.leases.values() if x.state is LeaseState.ACTIVE)
        return sorted(x.id for x in active if x.delivery is Delivery.TRANSFER)

    def _promise_what_is_left(self, lease_id: str) -> None:
        """No holder is promised what is asked of it; what was split off is promised to no one."""
        if (left := self.grid.leases.get(lease_id)) is None or left.state is not LeaseState.ACTIVE or left.notice:
            self.promised.pop(lease_id, None)
        elif lease_id in self.promised:
            self.promised[lease_id] = left

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), seconds=st.sampled_from([None, 5.0, 60.0]))
    def renew(self, data: st.DataObject, seconds: float | None) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.grid.leases)))
        was = self.promised.pop(chosen, None)
        renewed = self.do(self.grid.service.renew(chosen, seconds))
        if was is not None and renewed is not None:
            self.promised[chosen] = renewed

    @rule(first=asks, second=asks)
    def request_two_at_once(self, first, second) -> None:
        both = self.do(together(self.grid.service.request(first), self.grid.service.request(second)))
        for granted in both or ():
            if isinstance(granted, Lease):
                self.promised[granted.id] = granted
            else:
                assert isinstance(granted, LostReply | GridError), repr(granted)

    @rule(seconds=st.sampled_from([0.02, 0.3, 1.2, 2.5, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule()
    def remove_the_file(self) -> None:
        """The boosts end; reconciler sees it within a second or so."""
        self.grid.home.boosts.unlink(missing_ok=True)
        self.promised.clear()
        self.wait(1.5)

    # -- what goes wrong -----------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self.bury()
        self.grid.start()

    @rule()
    def restart(self) -> None:
        """As when asked to end; boosts stay."""
        try:
            self.grid.stop()
            self.disturbed = self.disturbed or self.grid.parts.unwritten is not None
        except Crashed:
            self.bury()
        self.grid.start()

    @rule()
    def everything_restarts(self) -> None:
        """The head, with the controller, and all raylets."""
        self.cluster.nothing_upcoming()
        self.bury()
        for name in NODES:
            if self.cluster.is_up(name):
                self.cluster.kill_node(name)
            self.cluster.return_node(name)
        self.disturbed = True
        self.grid.start()

    @rule(asked=asks, point=st.sampled_from([*GRANT_POINTS, *STORE_POINTS]), at=st.integers(0, 1))
    def crash_in_a_grant(self, asked, point: Point, at: int) -> None:
        self._ahead(Crashed(), at, point, False)
        self.request_until_there_is_an_answer(asked)

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), point=st.sampled_from([*RELEASE_POINTS, *STORE_POINTS]), at=st.integers(0, 1))
    def crash_in_a_release(self, data: st.DataObject, point: Point, at: int) -> None:
        self._ahead(Crashed(), at, point, False)
        self.release(data, grace=0.0)

    @precondition(lambda self: self._transfers())
    @rule(data=st.data(), point=st.sampled_from([*RELEASE_POINTS, *STORE_POINTS]), at=st.integers(0, 1))
    def crash_while_a_part_is_given_up(self, data: st.DataObject, point: Point, at: int) -> None:
        self._ahead(Crashed(), at, point, False)
        self.give_up_a_part(data, part=0.5)

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), point=st.sampled_from([Point.NOTICE_GIVEN, Point.RELEASE_SPLIT, *STORE_POINTS]))
    def crash_during_a_request(self, data: st.DataObject, point: Point) -> None:
        self._ahead(Crashed(), 0, point, False)
        self.another_request_needs_it(data, part=0.3)

    @precondition(lambda self: self.grid.leases)
    @rule(data=st.data(), point=st.sampled_from([Point.RENEW_BEGUN, Point.RENEW_WRITTEN, *STORE_POINTS]))
    def crash_in_a_renewal(self, data: st.DataObject, point: Point) -> None:
        self._ahead(Crashed(), 0, point, False)
        self.renew(data, seconds=60.0)

    @rule(cut=st.floats(0, 1), flip=st.integers(0, 255))
    def damage_the_file(self, cut: float, flip: int) -> None:
        """While no writer runs: what the version before knows is still promised."""
        was_active = {x.id for x in self.grid.leases.values() if x.state is LeaseState.ACTIVE}
        self.bury()
        path = self.grid.home.boosts
        if path.exists() and len(data := path.read_bytes()) > 3:  # it may be cut off already, on a full disk
            at = min(int(len(data) * cut), len(data) - 3)
            damaged = bytes([data[at] ^ flip]) + data[at + 1 :] if flip else b""
            if not re.search(rb'"version": [2-9]', data[:at] + damaged):  # a later version keeps this one out
                path.write_bytes(data[:at] + damaged)
            known = {x.id: x for x in BoostFile(path).load().leases if x.state is LeaseState.ACTIVE}
            self.promised = {k: known[k] for k in self.promised if k in known}
            self.disturbed = self.disturbed or not known.keys() <= was_active
        self.grid.start()

    @rule()
    def disk_fills_or_is_freed(self) -> None:
        self.grid.disk_is_full = not self.grid.disk_is_full

    @rule(
        at=st.integers(0, 5), call=st.sampled_from(["resize", "reserve", "remove_group", "save"]), after=st.booleans()
    )
    def crash_ahead(self, at: int, call: str, after: bool) -> None:
        self._ahead(Crashed(), at, call, after)

    @rule(at=st.integers(0, 5), call=st.sampled_from(CALLS), after=st.booleans())
    def connection_breaks_ahead(self, at: int, call: str, after: bool) -> None:
        self._ahead(LostReply(), at, call, after)

    @rule(at=st.integers(0, 5))
    def disk_is_full_ahead(self, at: int) -> None:
        self._ahead(StoreBroken("no space"), at, "save", False)

    def _ahead(self, error: BaseException, at: int, call: str, after: bool) -> None:
        self.cluster.upcoming(at, raising(error), call=call, after=after)

    @rule(name=names)
    def node_dies(self, name: str) -> None:
        if self.cluster.is_up(name):
            self.cluster.kill_node(name)
            self.disturbed = True
            self.promised = {k: x for k, x in self.promised.items() if name not in (*x.sources, x.target)}

    @rule(name=names)
    def node_returns(self, name: str) -> None:
        if not self.cluster.is_up(name):
            self.cluster.return_node(name)

    # -- what runs there -----------------------------------------------------------------------------------

    @rule(name=names, cpus=st.integers(0, 4), memory=st.integers(0, 3), actor=st.booleans())
    def work_starts(self, name: str, cpus: int, memory: int, actor: bool) -> None:
        """Each resource has its own users, so a shrink stops at another point for each."""
        if self.cluster.is_up(name):
            self.cluster.start(name, cpus, actor=actor, memory=memory * GB)

    @rule(name=names, count=st.integers(1, 3))
    def work_queues(self, name: str, count: int) -> None:
        if self.cluster.is_up(name):
            self.cluster.queue(name, count)

    @precondition(lambda self: self.cluster.running())
    @rule(data=st.data(), what=st.sampled_from(["finish", "finish", "block", "unblock"]))
    def work_goes_on(self, data: st.DataObject, what: str) -> None:
        self.disturbed = self.disturbed or what == "unblock"
        getattr(self.cluster, what)(data.draw(st.sampled_from(self.cluster.running())))

    @precondition(lambda self: any(x.placement_group for x in self.grid.leases.values()))
    @rule(data=st.data())
    def work_in_a_group(self, data: st.DataObject) -> None:
        groups = [x.placement_group for x in self.grid.leases.values() if x.placement_group]
        chosen = data.draw(st.sampled_from(groups))
        if self.cluster.has_place(chosen):
            self.cluster.start_in_group(chosen)

    @rule(at=st.integers(0, 4), after=st.booleans(), name=names, what=st.sampled_from(["work", "queue", "end"]))
    def meanwhile(self, at: int, after: bool, name: str, what: str) -> None:
        def happen() -> None:
            if not self.cluster.is_up(name):
                return
            if what == "work":
                self.cluster.start(name, 1)
            elif what == "queue":
                self.cluster.queue(name, 2)
            elif running := self.cluster.running(name):
                self.cluster.finish(running[0])

        self.cluster.upcoming(at, happen, after=after)

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "grid"):
            self.no_observer_adds_up_more_than_there_is()
            self.reconciler_stumbles_over_nothing()
            self.nothing_is_lent_twice_or_beyond_a_limit()
            self.no_request_has_two_boosts()
            self.the_sums_are_those_of_the_leases()
            self.promises_are_kept()

    def no_observer_adds_up_more_than_there_is(self) -> None:
        assert not self.cluster.violations, self.cluster.violations[0]

    def reconciler_stumbles_over_nothing(self) -> None:
        assert not self.grid.failures, repr(self.grid.failures[0])

    def nothing_is_lent_twice_or_beyond_a_limit(self) -> None:
        leases = self._parts()
        for name, base in self.cluster.bases().items():
            lent = _sum(x for x in leases if x.source == name)
            assert base.covers(lent), f"{name} has {base} and lent {lent}"
            assert base.covers(self.cluster.reserved(name))
            limit = CONFIG.limits_for(name).max_share_cpu
            assert limit is None or lent["cpu"] <= limit, f"{name} lent {lent}"

    def no_request_has_two_boosts(self) -> None:
        keys = [x.idempotency_key for x in self.grid.leases.values() if x.idempotency_key is not None]
        assert len(keys) == len(set(keys)), keys

    def the_sums_are_those_of_the_leases(self) -> None:
        """Splits, too, leave them as they were."""
        usage = self.grid.parts.ledger.usage
        for name in NODES:
            assert usage.lent_by(name) == _sum(x for x in self._parts() if x.source == name)
            assert usage.borrowed_by(name) == _sum(x for x in self.grid.leases.values() if x.target == name)

    def _parts(self) -> tuple[Lease, ...]:
        """One lease for each lender."""
        return tuple(part for lease in self.grid.leases.values() for part in lease.parts)

    def promises_are_kept(self) -> None:
        for promised in self.promised.values():
            if promised.expires_at > self.grid.now():
                kept = self.grid.leases.get(promised.id)
                assert kept is not None, f"{promised.describe()} is gone"
                assert kept.state is LeaseState.ACTIVE, f"{promised.describe()} is {kept.state}"
                assert kept.units >= promised.units, f"{promised.describe()} is {kept.describe()}"

    @rule()
    def all_is_as_the_ledger_says_when_nothing_is_under_way(self) -> None:
        """No lease is half there: what is active is on both sides, to the last unit."""
        self.cluster.nothing_upcoming()
        self.wait(4.0)
        leases = tuple(self.grid.leases.values())
        assert not any(x.state is LeaseState.GRANTING for x in leases)
        for lease in leases:
            if lease.delivery is Delivery.RESERVE and lease.state is LeaseState.ACTIVE:
                assert self.cluster.has_place(lease.placement_group) or not all(map(self.cluster.is_up, lease.sources))
        if self.disturbed or any(x.is_winding_down for x in leases):
            return
        transfers = tuple(x for x in self._parts() if x.delivery is Delivery.TRANSFER)
        for name, has in self.cluster.true_totals().items():
            lent = _sum(x for x in transfers if x.source == name)
            borrowed = _sum(x for x in transfers if x.target == name)
            expected = self.cluster.bases()[name] - lent + borrowed
            assert has == expected, f"{name} has {has}, its leases say {expected}"

    def teardown(self) -> None:
        if not hasattr(self, "grid"):
            return
        try:
            self.cluster.nothing_upcoming()
            self.grid.disk_is_full = False
            for name in NODES:
                self.node_returns(name)
            self.cluster.finish_everything()
            for found in self.grid.leases.values():
                self.do(self.grid.service.release(found.id, grace_s=0.0, wait_s=0.0))
            self.wait(5.0)
            self.no_observer_adds_up_more_than_there_is()
            self.reconciler_stumbles_over_nothing()
            assert not self.grid.leases, self.grid.leases
            assert not self.grid.on_disk()
            assert self.cluster.is_at_base(), self.cluster.differences()
            assert not self.cluster.groups()
        finally:
            self.grid.close()
            shutil.rmtree(self.folder)


def _sum(leases: Iterable[Lease]) -> ResourceVector:
    return total([x.resources for x in leases])


TestBoostsKeepTheirPromises = pytest.mark.filterwarnings("ignore")(BoostMachine.TestCase)
TestBoostsKeepTheirPromises.settings = settings(
    stateful_step_count=30, deadline=None, phases=[Phase.explicit, Phase.generate]
)
