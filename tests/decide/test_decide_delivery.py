"""How a lease is delivered: as asked, else as configured, else transfer; and it always says why."""

import pytest
from builders import amounts, ask, cpu, node

from distributed_grid.decide.capacity.delivery import choose_delivery, lent_resources, most_within
from distributed_grid.errors import TransfersUnavailable
from distributed_grid.model.leases import Delivery
from distributed_grid.model.plans import Companions
from distributed_grid.model.resources import GB

RESERVE, TRANSFER = Delivery.RESERVE, Delivery.TRANSFER


@pytest.mark.parametrize("asked", [None, "reserve", "auto"])
@pytest.mark.parametrize("default", [None, "transfer", "reserve", "auto"])
def test_gpus_are_always_reserved(asked: str | None, default: str | None) -> None:
    choice = choose_delivery(ask(kind="gpu", amount=1, delivery=asked), node(hardware=(64, 512)), default)
    assert choice.delivery is RESERVE
    assert "GPU" in choice.reason


@pytest.mark.parametrize(
    ("asked", "default", "delivery", "reason"),
    [
        (None, None, TRANSFER, "transfer is the default for cpu"),
        (None, "transfer", TRANSFER, "transfer is the default for cpu"),
        (None, "reserve", RESERVE, "reserve"),
        (None, "auto", TRANSFER, "auto"),
        ("transfer", None, TRANSFER, "transfer was requested"),
        ("transfer", "reserve", TRANSFER, "transfer was requested"),
        ("reserve", "transfer", RESERVE, "reserve was requested"),
        ("auto", "reserve", TRANSFER, "auto"),
    ],
)
def test_what_is_asked_goes_before_what_is_configured(
    asked: str | None, default: str | None, delivery: Delivery, reason: str
) -> None:
    choice = choose_delivery(ask(delivery=asked), node("gpu-master", cpus=4, hardware=(64, 512)), default)
    assert choice.delivery is delivery
    assert reason in choice.reason
    assert choice.warnings == ()


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_auto_reserves_where_the_targets_hardware_cannot_carry_more(kind: str) -> None:
    target = node("gpu-master", cpus=4, memory=4, hardware=(5, 5))
    fits = choose_delivery(ask(kind=kind, amount=1, delivery="auto"), target, None)
    too_much = choose_delivery(ask(kind=kind, amount=2, delivery="auto"), target, None)
    assert (fits.delivery, too_much.delivery) == (TRANSFER, RESERVE)
    assert "machine has 5" in too_much.reason
    assert "already offers 4" in too_much.reason


def test_what_the_target_borrowed_already_counts_against_its_hardware() -> None:
    target = node("gpu-master", cpus=4, borrowed=cpu(2), hardware=(6, 64))
    assert choose_delivery(ask(amount=1, delivery="auto"), target, None).delivery is RESERVE


def test_auto_transfers_where_the_hardware_is_unknown() -> None:
    assert choose_delivery(ask(delivery="auto"), node(hardware=None), None).delivery is TRANSFER


def test_hardware_does_not_matter_for_a_custom_resource() -> None:
    assert choose_delivery(ask(kind="tape", delivery="auto"), node(hardware=(1, 1)), None).delivery is TRANSFER


@pytest.mark.parametrize("asked", [None, "transfer"])
def test_a_transfer_onto_hardware_that_cannot_carry_it_is_done_with_a_warning(asked: str | None) -> None:
    choice = choose_delivery(ask(amount=2, delivery=asked), node("gpu-master", cpus=4, hardware=(4, 64)), None)
    assert choice.delivery is TRANSFER
    (warning,) = choice.warnings
    assert "gpu-master's machine has 4 CPUs, and its Ray node already advertises more" in warning
    assert "--delivery reserve" in warning


def test_without_transfers_everything_is_reserved_and_says_so() -> None:
    for asked, default in ((None, None), ("auto", None), ("reserve", None), (None, "transfer")):
        choice = choose_delivery(ask(delivery=asked), node(), default, "Ray is old")
        assert choice.delivery is RESERVE
        assert "Ray is old" in choice.reason


def test_an_explicit_transfer_is_refused_where_there_are_none() -> None:
    with pytest.raises(TransfersUnavailable) as caught:
        choose_delivery(ask(delivery="transfer"), node(), None, "Ray is old")
    assert caught.value.because == ("Ray is old",)
    assert "reserve" in str(caught.value.try_next)


# -- what is lent ------------------------------------------------------------------------------------------

COMPANIONS = Companions(cpu_per_gpu=20_000, memory_per_gpu=GB, cpu_otherwise=10_000)


@pytest.mark.parametrize(
    ("kind", "amount", "delivery", "lent"),
    [
        ("cpu", 2, TRANSFER, amounts(cpu=2)),
        ("memory", 2, TRANSFER, amounts(memory=2)),
        ("tape", 2, TRANSFER, amounts(tape=2)),
        ("cpu", 2, RESERVE, amounts(cpu=2)),
        ("memory", 2, RESERVE, amounts(memory=2, cpu=1)),
        ("tape", 2, RESERVE, amounts(tape=2, cpu=1)),
        ("gpu", 1, RESERVE, amounts(gpu=1, cpu=2, memory=1)),
        ("gpu", 2, RESERVE, amounts(gpu=2, cpu=4, memory=2)),
        ("gpu", 0.5, RESERVE, amounts(gpu=0.5, cpu=2, memory=1)),
        ("gpu", 1.5, RESERVE, amounts(gpu=1.5, cpu=4, memory=2)),
    ],
)
def test_a_reservation_brings_along_what_a_default_task_needs(
    kind: str, amount: float, delivery: Delivery, lent: object
) -> None:
    assert lent_resources(ask(kind=kind, amount=amount), delivery, COMPANIONS) == lent


def test_several_kinds_together_are_reserved_and_come_as_they_were_asked() -> None:
    asked = ask(kind="gpu", amount=1, along=(("cpu", 40_000), ("memory", 2 * GB)))
    assert choose_delivery(ask(amount=2, along=(("memory", GB),)), node(), "transfer").delivery is RESERVE
    assert lent_resources(asked, RESERVE, Companions(cpu_per_gpu=10_000, memory_per_gpu=8 * GB)) == amounts(
        gpu=1, cpu=4, memory=2
    )


def test_no_part_fits_where_what_comes_along_does_not() -> None:
    asked, rooms = ask(kind="gpu", amount=2, along=(("cpu", 40_000),)), {"gpu": 20_000, "cpu": 30_000}
    assert most_within(asked, RESERVE, Companions(), rooms) == 0
    assert most_within(asked, RESERVE, Companions(), rooms | {"cpu": 40_000}) == 20_000
