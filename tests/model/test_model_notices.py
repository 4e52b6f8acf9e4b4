"""What holders are told, and what their answers mean."""

import json
from datetime import timedelta

import pytest
from answer_checks import what_is_wrong
from builders import NOON, lease

from distributed_grid.model.leases import Notice
from distributed_grid.model.notices import Reply, asks_more, notice_body, notice_dict, notice_in, reply_of
from distributed_grid.wire.boosts import ReclaimMessage

NOTICE = Notice(15_000, "ana needs it", NOON, NOON + timedelta(seconds=15))


def test_a_notice_survives_its_json() -> None:
    asked = lease(notice=NOTICE)
    shown = {"boost_id": asked.id, "resource_type": "cpu", "notice": notice_dict("cpu", NOTICE), "ending": None}

    read = notice_in(shown)

    assert read is not None
    assert (read.amount, read.reason, read.asked_at, read.deadline) == (1.5, NOTICE.reason, NOON, NOTICE.deadline)
    assert notice_in(shown | {"notice": None}) is None
    assert notice_body(asked) == {"boost_id": "b1", "resource_type": "cpu", **shown["notice"]}
    assert what_is_wrong(ReclaimMessage, json.dumps(notice_body(asked)).encode()) is None


@pytest.mark.parametrize(
    ("data", "means"),
    [
        ({}, Reply()),
        ({"give_up": 0}, Reply()),
        ({"give_up": 1.5}, Reply(give_up=15_000)),
        ({"release": True}, Reply(release=True)),
        ({"checkpointed": True}, Reply(checkpointed=True)),
        ({"give_up": 2, "checkpointed": True}, Reply(give_up=20_000, checkpointed=True)),
        ({"release": False}, Reply()),
    ],
)
def test_what_a_hook_may_answer(data: object, means: Reply) -> None:
    assert reply_of("cpu", data) == means


@pytest.mark.parametrize(
    "data",
    [None, 1, "release", [], {"give_up": True}, {"give_up": "2"}, {"give_up": -1}, {"give_up": float("nan")},
     {"give_up": float("inf")}, {"give_up": None}, {"release": 1}, {"checkpointed": "yes"}, {"kill": True}],
)  # fmt: skip
def test_what_means_nothing_is_reported_and_nothing_is_guessed(data: object) -> None:
    with pytest.raises(ValueError):
        reply_of("cpu", data)


def test_only_another_or_a_larger_notice_is_news() -> None:
    assert asks_more(None, NOON, 1)
    assert asks_more((NOON, 1), NOON, 2)
    assert asks_more((NOON, 1), NOON + timedelta(seconds=1), 1)
    assert not asks_more((NOON, 2), NOON, 2)
    assert not asks_more((NOON, 2), NOON, 1)
