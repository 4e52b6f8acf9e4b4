"""Capacity moves and is never made: whatever happens, all totals together are never more than there is.

The two exceptions are the stated ones: what a node that died had lent, and what Ray itself oversubscribed.
"""

from dataclasses import replace
from datetime import timedelta

from builders import NOON, lease
from fake_cluster import Crashed, FakeCluster, LostReply
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from property_examples import examples

from distributed_grid.execution.capacity import Capacity, Convergence
from distributed_grid.execution.port import RayletSilent
from distributed_grid.model.leases import Lease, LeaseState

NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)


class CapacityMachine(RuleBasedStateMachine):
    """A ledger, a `Capacity` and a cluster, with everything that may go wrong between them."""

    @initialize(seed=st.integers(0, 2**16), cpus=st.tuples(*[st.integers(1, 4)] * 3))
    def begin(self, seed: int, cpus: tuple[int, int, int]) -> None:
        self.cluster = FakeCluster.lagging(seed)
        for name, amount in zip(NAMES, cpus, strict=True):
            self.cluster.add_node(name, cpus=amount)
        self.leases: dict[str, Lease] = {}
        self.pressed: set[str] = set()
        self.count = 0
        self.new_process()

    def new_process(self) -> None:
        """The old one is gone; a controller is back half a second later at the earliest."""
        self.cluster.forget_process()
        self.pressed.clear()
        self.cluster.clock.sleep(0.5)
        self.capacity = Capacity(self.cluster, clock=self.cluster.clock, sleep=self.cluster.clock.sleep)

    def converge(self, *, tidy: bool = False) -> Convergence | None:
        """One round; None if it broke off."""
        try:
            done = self.capacity.converge(
                self.cluster.ids(), self.cluster.bases(), self.leases.values(), frozenset(self.pressed)
            )
            if tidy:
                self.capacity.tidy()
        except LostReply:
            return None
        except Crashed:
            self.new_process()
            return None
        if not done.unsettled and not done.growth.unexplained:
            self.cluster.settle_excuses()
        return done

    # -- what grid does ------------------------------------------------------------------------------------

    @rule(source=names, borrower=names, amount=st.integers(1, 3))
    def grant(self, source: str, borrower: str, amount: int) -> None:
        lent = sum(x.units for x in self.leases.values() if x.source == source)
        borrows = any(x.target == source for x in self.leases.values())
        up = self.cluster.is_up(source) and self.cluster.is_up(borrower)
        if source == borrower or not up or borrows or lent + amount * 10_000 > self.cluster.bases()[source]["cpu"]:
            return
        self.count += 1
        new = lease(
            f"b{self.count}",
            source,
            borrower,
            amount=amount,
            state=LeaseState.GRANTING,
            allocated_at=NOON + timedelta(seconds=self.count),
        )
        self.leases[new.id] = new
        done = self.converge()
        if done is not None:
            state = LeaseState.ACTIVE if done.delivered(new) else LeaseState.RELEASING
            self.leases[new.id] = replace(new, state=state)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(sorted(self.leases)))
        if not self.leases[chosen].is_winding_down:
            self.leases[chosen] = replace(self.leases[chosen], state=LeaseState.RELEASING)
        self.turn()

    @rule()
    def turn(self) -> None:
        done = self.converge(tidy=True)
        if done is None:
            return
        for found in list(self.leases.values()):
            if found.state is LeaseState.GRANTING:
                state = LeaseState.ACTIVE if done.delivered(found) else LeaseState.RELEASING
                self.leases[found.id] = replace(found, state=state)
            elif found.is_winding_down and done.returned(found):
                del self.leases[found.id]

    @rule(name=names)
    def press(self, name: str) -> None:
        """Let nothing new start there, and insist."""
        if not self.cluster.is_up(name):
            return
        node_id = self.cluster.ids()[name]
        (self.cluster.lift_gate if name in self.pressed else lambda id: self.cluster.gate(id, 1))(node_id)
        self.pressed ^= {name}

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.15, 1.1]))
    def wait(self, seconds: float) -> None:
        self.cluster.clock.sleep(seconds)

    # -- what goes wrong -----------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self.new_process()

    @rule(at=st.integers(0, 4), fails=st.sampled_from([LostReply, Crashed, RayletSilent]), after=st.booleans())
    def trouble_ahead(self, at: int, fails: type[BaseException], after: bool) -> None:
        """One of the next resizes fails, before or after it was carried out."""

        def fail() -> None:
            if fails is RayletSilent:
                self.cluster.clock.sleep(3.0)  # so long one waits for its answer
            raise fails

        self.cluster.upcoming(at, fail, after=after)

    @rule(at=st.integers(0, 4), after=st.booleans(), name=names, what=st.sampled_from(["work", "queue", "end", "die"]))
    def meanwhile(self, at: int, after: bool, name: str, what: str) -> None:
        """The cluster's own life does not wait for a round to end."""

        def happen() -> None:
            if not self.cluster.is_up(name):
                return
            if what == "work":
                self.cluster.start(name, 1)
            elif what == "queue":
                self.cluster.queue(name, 2)
            elif what == "die":
                self.node_dies(name)
            elif running := self.cluster.running(name):
                self.cluster.finish(running[0])

        self.cluster.upcoming(at, happen, after=after)

    @rule()
    def wipe_the_store(self) -> None:
        self.leases.clear()
        self.new_process()

    @rule(name=names)
    def node_dies(self, name: str) -> None:
        if self.cluster.is_up(name):
            self.cluster.kill_node(name)
            for found in list(self.leases.values()):
                if name in (found.source, found.target) and found.state is not LeaseState.LOST:
                    self.leases[found.id] = replace(found, state=LeaseState.LOST)

    @rule(name=names)
    def node_returns(self, name: str) -> None:
        if not self.cluster.is_up(name):
            self.cluster.return_node(name)

    # -- what runs there -----------------------------------------------------------------------------------

    @rule(name=names, cpus=st.integers(1, 4))
    def work_starts(self, name: str, cpus: int) -> None:
        if self.cluster.is_up(name):
            self.cluster.start(name, cpus)

    @rule(name=names, count=st.integers(1, 3))
    def work_queues(self, name: str, count: int) -> None:
        if self.cluster.is_up(name):
            self.cluster.queue(name, count)

    @precondition(lambda self: self.cluster.running())
    @rule(data=st.data(), what=st.sampled_from(["finish", "finish", "block", "unblock"]))
    def work_goes_on(self, data: st.DataObject, what: str) -> None:
        getattr(self.cluster, what)(data.draw(st.sampled_from(self.cluster.running())))

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def no_observer_adds_up_more_than_there_is(self) -> None:
        if hasattr(self, "cluster"):
            assert not self.cluster.violations, self.cluster.violations[0]

    @invariant()
    def what_is_lent_or_borrowed_is_marked(self) -> None:
        """So that a grid that has lost its ledger knows what is its own to undo."""
        if not hasattr(self, "cluster"):
            return
        for name, has in self.cluster.true_totals().items():
            borrowed = (has["cpu"] - self.cluster.bases()[name]["cpu"]) / 10_000
            marks = self.cluster.markers(name)
            assert marks.get("grid:borrowed:cpu", 0.0) >= borrowed, f"{name}: {borrowed} borrowed, {marks}"
            assert marks.get("grid:lent:cpu", 0.0) >= -borrowed, f"{name}: {-borrowed} lent, {marks}"

    def teardown(self) -> None:
        """Once the work has ended and everything is released, every node is exactly at its base."""
        if not hasattr(self, "cluster"):
            return
        self.cluster.nothing_upcoming()
        self.new_process()
        self.cluster.clock.sleep(1.5)
        self.cluster.clear_gates()
        self.cluster.finish_everything()
        for name in NAMES:
            self.node_returns(name)
        for found in list(self.leases.values()):
            if not found.is_winding_down:
                self.leases[found.id] = replace(found, state=LeaseState.RELEASING)
        for _ in range(5):
            self.cluster.clock.sleep(1.5)
            self.turn()
        self.no_observer_adds_up_more_than_there_is()
        assert not self.leases
        assert self.cluster.is_at_base(), self.cluster.differences()


TestCapacityIsConserved = CapacityMachine.TestCase
TestCapacityIsConserved.settings = settings(max_examples=examples(300), stateful_step_count=30, deadline=None)
