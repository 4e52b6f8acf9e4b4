"""Each policy's row: what lenders keep, whether any lease must yield, and how eager it is."""

from dataclasses import fields

import pytest
from builders import amounts, ask, cpu, lease_of
from sharing_worlds import World

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES, PolicyNumbers
from distributed_grid.model.leases import Lease
from distributed_grid.model.plans import Headroom, Refused, Rules
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, amount_of

CONSERVATIVE, BALANCED, AGGRESSIVE, PREDICTIVE = SharingPolicy
EXCESS = 0.2
"""The configured `excess_threshold`."""
FORESEEN = {("gpu1", CPU): 0.3, ("gpu1", GPU): 0.5, ("gpu1", MEMORY): 0.3}
"""What gpu1 will need itself."""


def headroom(policy: SharingPolicy) -> Headroom:
    numbers = POLICIES[policy]
    of_base = EXCESS if numbers.headroom_of_base is None else numbers.headroom_of_base
    return Headroom(policy, of_base, numbers.headroom_of_idle, FORESEEN if numbers.foresees else {})


def lent_in_all(policy: SharingPolicy, kind: str, amount: float, world: World, delivery: str) -> float | int:
    """How much of a kind gpu1 gives, if it is asked for this much again and again until it refuses."""
    asked, leases = ask(kind=kind, amount=amount, delivery=delivery), list[Lease]()
    while True:
        plan = plan_grant(asked, world.nodes(leases), Usage.of(leases), Rules(headroom=headroom(policy)))
        if isinstance(plan, Refused):
            lender = next(refusal for refusal in plan.refusals if refusal.node == "gpu1")
            assert lender.code in (RefusalCode.KEPT_FREE, RefusalCode.NO_CAPACITY)
            return amount_of(kind, sum(one.units for one in leases))
        leases.append(lease_of(plan, f"b{len(leases)}"))


def alone(base: ResourceVector, used: ResourceVector | None = None) -> World:
    """One lender, gpu1, and who borrows."""
    nothing = ResourceVector()
    return World({"gpu1": base, "gpu-master": nothing}, {"gpu1": used or nothing, "gpu-master": nothing}, ())


@pytest.mark.parametrize(
    ("policy", "used", "lends"),
    [
        (CONSERVATIVE, 0, 5),  # half of what is idle: asked ten times, it does not lend halves of halves
        (CONSERVATIVE, 4, 3),
        (BALANCED, 0, 8),  # all but the excess threshold
        (BALANCED, 4, 4),
        (BALANCED, 9, 0),
        (AGGRESSIVE, 0, 9.5),  # all but five in a hundred
        (AGGRESSIVE, 4, 5.5),
        (PREDICTIVE, 0, 7),  # what it will not need
        (PREDICTIVE, 4, 6),  # it needs more already than was foreseen
    ],
)
@pytest.mark.parametrize("delivery", ["transfer", "reserve"])
def test_each_policy_lets_a_lender_keep_its_part_however_often_it_is_asked(
    policy: SharingPolicy, used: float, lends: float, delivery: str
) -> None:
    assert lent_in_all(policy, CPU, 0.5, alone(cpu(10), cpu(used)), delivery) == lends


@pytest.mark.parametrize(
    ("policy", "gpus", "lends"),
    [
        (CONSERVATIVE, 4, 2),
        (CONSERVATIVE, 3, 2),  # half of three, and no halves
        (CONSERVATIVE, 1, 1),  # of a single GPU no part can be kept
        (BALANCED, 4, 4),
        (BALANCED, 10, 8),
        (AGGRESSIVE, 8, 8),
        (PREDICTIVE, 4, 2),
    ],
)
def test_gpus_are_lent_and_kept_whole(policy: SharingPolicy, gpus: float, lends: float) -> None:
    assert lent_in_all(policy, GPU, 1, alone(amounts(cpu=64, gpu=gpus)), "reserve") == lends


@pytest.mark.parametrize(("policy", "lends"), [(CONSERVATIVE, 10), (BALANCED, 16), (AGGRESSIVE, 19), (PREDICTIVE, 14)])
def test_memory_is_kept_in_the_same_way(policy: SharingPolicy, lends: float) -> None:
    assert lent_in_all(policy, MEMORY, 1, alone(amounts(memory=20)), "transfer") == lends


@pytest.mark.parametrize("policy", SharingPolicy)
def test_every_policy_has_its_numbers_and_they_make_sense(policy: SharingPolicy) -> None:
    numbers = POLICIES[policy]
    assert 0.0 <= (numbers.headroom_of_base or 0.0) < 1.0
    assert 0.0 <= numbers.headroom_of_idle < 1.0
    assert numbers.high_rounds >= 1
    assert numbers.low_rounds >= 1
    assert numbers.min_hold_s > 0
    assert numbers.changes_per_round > 0, "a lender is protected under every policy"


def test_the_rows_are_what_the_policies_promise() -> None:
    def column(name: str) -> dict[SharingPolicy, object]:
        return {policy: getattr(numbers, name) for policy, numbers in POLICIES.items()}

    assert {field.name for field in fields(PolicyNumbers)} >= {"preempts", "acts_by_itself", "foresees"}
    assert [p for p, yes in column("preempts").items() if not yes] == [CONSERVATIVE]
    assert [p for p, yes in column("acts_by_itself").items() if not yes] == [CONSERVATIVE]
    assert [p for p, yes in column("foresees").items() if yes] == [PREDICTIVE]
    assert POLICIES[AGGRESSIVE].high_rounds == 1, "it reacts at the first sample"
    assert POLICIES[BALANCED].high_rounds > 1, "it waits until the pressure has lasted"
    assert POLICIES[BALANCED].headroom_of_base is None, "it keeps what is configured"
    holds = column("min_hold_s")
    assert holds[AGGRESSIVE] < holds[BALANCED] < holds[CONSERVATIVE]  # type: ignore[operator]
