"""What is foreseen for a request is what then happens to it: over many states of small clusters."""

from dataclasses import replace
from datetime import timedelta

from builders import NOON, lease_of
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from sharing_worlds import TARGET, World, asks, owners, rule_sets, worlds

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.queue.answers import CHOSEN, Outlook, considered, look_ahead
from distributed_grid.decide.queue.claims import Account, ordered
from distributed_grid.decide.queue.preemption import plan_preemption
from distributed_grid.model.plans import Grant, Refused, Rules
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import GPU, scale

MANY = settings(max_examples=examples(300))
requests = st.tuples(asks(), rule_sets()) | owners()
policies = st.sampled_from(list(POLICIES.values()))
Request = tuple[Ask, Rules]


@st.composite
def queues(draw: st.DrawFn) -> tuple[Waiting, ...]:
    """Requests that came before, some of them long ago."""
    found = draw(st.lists(st.tuples(asks((TARGET, "a")), st.sampled_from((1, 60, 2000, 9000))), max_size=4))
    return tuple(Waiting(f"w{n}", one, NOON - timedelta(seconds=age)) for n, (one, age) in enumerate(found))


accounts = st.dictionaries(
    st.sampled_from(("red", "blue")), st.builds(Account, st.floats(0, 1e5), st.just(NOON)), max_size=2
)


@MANY
@given(worlds(), requests, queues(), accounts, policies)
def test_what_grid_plan_says_is_what_the_queue_then_does(
    world: World, request: Request, waiting: tuple[Waiting, ...], used: dict[str, Account], numbers: object
) -> None:
    asked, rules = request
    said = look_ahead(
        asked,
        world.nodes(),
        world.leases,
        world.usage(),
        waiting,
        used,
        lambda _: rules,
        numbers,
        NOON,  # type: ignore[arg-type]
    )
    mine = Waiting("zz-mine", asked, NOON)
    queue = ordered((*waiting, mine), world.usage(), used, rules.teams, NOON)
    verdicts = plan_queue(
        queue,
        world.nodes(),
        world.leases,
        world.usage(),
        lambda _: rules,
        NOON,
        numbers=numbers,  # type: ignore[arg-type]
    )
    verdict = verdicts[queue.index(mine)]
    assert (said.grant, said.expected_start) == (verdict.grant, verdict.expected_start)
    assert said.preemption == verdict.preemption
    assert said.grant is not None or verdict.reason in said.summary
    assert said.ahead == verdict.position - 1
    # Those ahead get theirs first; then the request is decided in the cluster as it is then.
    leases = list(world.leases)
    for other in verdicts[: said.ahead]:
        if other.grant is not None:
            leases.append(lease_of(other.grant, other.waiting.id))
    nodes, usage = world.nodes(leases), world.usage(leases)
    if said.grant is not None:
        allowed = plan_grant(replace(asked, sources=(said.grant.source,)), nodes, usage, rules)
        assert isinstance(allowed, Grant)
        assert said.preemption is None
    elif not said.ahead:
        then = plan_preemption(asked, Snapshot(nodes, usage, leases), rules, numbers, NOON)  # type: ignore[arg-type]
        assert then is None or said.preemption == then or said.expected_start <= then.back_by  # type: ignore[operator]
    _names_every_node_once(said, world)


def _names_every_node_once(said: Outlook, world: World) -> None:
    assert [reason.node for reason in said.considered] == sorted(world.bases)
    chosen = [reason.node for reason in said.considered if reason.verdict == CHOSEN]
    assert chosen == [grant.source for grant in said.grants]
    assert said.summary


@MANY
@given(worlds(), requests, st.integers(1, 12))
def test_the_largest_amount_that_fits_is_granted_and_nothing_above_it(
    world: World, request: Request, more: int
) -> None:
    asked, rules = request
    numbers = next(iter(POLICIES.values()))
    said = look_ahead(asked, world.nodes(), world.leases, world.usage(), (), {}, lambda _: rules, numbers, NOON)

    def granted(units: int) -> Grant | Refused:
        return plan_grant(replace(asked, units=units), world.nodes(), world.usage(), rules)

    if said.largest_now:
        largest = granted(said.largest_now)
        assert isinstance(largest, Grant)
        assert largest.source == said.largest_source
    step = scale(asked.kind)
    least = step if asked.kind == GPU else step // 10_000 + 1  # what people can write
    assert all(isinstance(granted(said.largest_now + extra), Refused) for extra in (least, more * step))
    if said.grant is not None:
        assert said.largest_now >= asked.units


@MANY
@given(worlds(), requests)
def test_where_no_request_waits_the_outlook_is_what_is_granted_at_once(world: World, request: Request) -> None:
    asked, rules = request
    numbers = next(iter(POLICIES.values()))
    said = look_ahead(asked, world.nodes(), world.leases, world.usage(), (), {}, lambda _: rules, numbers, NOON)
    usage = world.usage()
    plan = plan_grant(asked, world.nodes(), usage, rules)
    if isinstance(plan, Grant) and any(usage.moved_in(plan.source, kind) for kind in plan.resources):
        return  # the queue does not count on what a lender has only borrowed, and must give back meanwhile
    assert said.grant == (plan if isinstance(plan, Grant) else None)


@MANY
@given(worlds(), requests)
def test_every_reason_is_the_one_for_which_the_request_is_refused(world: World, request: Request) -> None:
    asked, rules = request
    plan = plan_grant(asked, world.nodes(), world.usage(), rules)
    chosen = (plan.source,) if isinstance(plan, Grant) else ()
    reasons = {one.node: one for one in considered(asked, world.nodes(), world.usage(), rules, chosen)}
    assert list(reasons) == sorted(world.bases)
    if isinstance(plan, Grant):
        assert reasons[plan.source].verdict == CHOSEN
        assert reasons[plan.source].could_lend >= asked.units
    else:
        for refusal in plan.refusals:
            one = reasons[refusal.node]
            assert (one.verdict, one.detail, one.could_lend) == (refusal.code, refusal.detail, refusal.could_lend)
    for reason in reasons.values():
        if reason.verdict not in list(RefusalCode):
            assert reason.could_lend >= asked.units
