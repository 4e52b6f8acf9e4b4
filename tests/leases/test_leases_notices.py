"""How holders hear that a boost is asked back, and what comes of what they answer."""

import json
import stat
from collections.abc import Callable
from typing import Any

import pytest
from builders import FOR_ANA, ask
from hook_server import HookServer
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import InvalidRequest
from distributed_grid.leases.reclaim import reclaim, take_reply
from distributed_grid.model.leases import WATCHED, Lease, LeaseState
from distributed_grid.model.notices import Reply
from distributed_grid.model.principals import THE_OWNER
from distributed_grid.model.resources import CPU, scale

ACTIVE = LeaseState.ACTIVE
CPUS = scale(CPU)
GRACE_S = 10.0

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> WholeGrid:
    return make_grid(policy="aggressive")


def asked_back(lab: WholeGrid, hook: str, cpus: int = 2, **changes: Any) -> Lease:
    """Three CPUs are lent from `a` to `b`, and some are asked back."""
    boost = lab.run(lab.service.request(ask("b", amount=3, source="a", grace_s=GRACE_S, reclaim_hook=hook, **changes)))

    async def asking() -> None:
        reclaim(lab.parts, boost, "ana needs it", FOR_ANA, units=cpus * CPUS)
        await lab.parts.try_commit()

    lab.run(asking())
    lab.wait(0.5)
    return boost


def files(lab: WholeGrid) -> list[str]:
    return sorted(path.name for path in lab.home.reclaim.glob("*"))


# -- the file ----------------------------------------------------------------------------------------------


def test_a_notice_is_a_file_for_its_owner_alone_while_it_is_open(lab: WholeGrid) -> None:
    boost = asked_back(lab, WATCHED)

    path = lab.home.reclaim / f"{boost.id}.json"
    reported = json.loads(path.read_text())
    assert {key: reported[key] for key in ("boost_id", "resource_type", "amount", "reason")} == {
        "boost_id": boost.id,
        "resource_type": "cpu",
        "amount": 2,
        "reason": "ana needs it",
    }
    assert reported["deadline"] > reported["asked_at"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert files(lab) == [path.name]

    lab.run(lab.service.release(boost.id, units=CPUS))
    lab.wait(0.1)
    assert json.loads(path.read_text())["amount"] == 1  # the rest of it
    lab.run(lab.service.release(boost.id, units=CPUS))
    lab.wait(0.1)
    assert not files(lab)


def test_the_file_is_gone_once_the_boost_is_taken(lab: WholeGrid) -> None:
    asked_back(lab, WATCHED)
    lab.wait(GRACE_S / 2)
    assert not files(lab)


def test_files_that_a_crash_left_are_removed_and_those_of_open_notices_stay(lab: WholeGrid) -> None:
    boost = asked_back(lab, WATCHED)
    lab.bury()
    (lab.home.reclaim / "of-long-ago.json").write_text("{}")

    lab.start()

    assert files(lab) == [f"{boost.id}.json"]


def test_a_file_that_cannot_be_written_changes_nothing_else(lab: WholeGrid) -> None:
    lab.home.reclaim.write_text("a user's file, where the folder should be")
    boost = asked_back(lab, WATCHED)
    lab.wait(GRACE_S)
    assert lab.leases[boost.id].units == CPUS
    assert not lab.failures


# -- the URL -----------------------------------------------------------------------------------------------


def test_a_hook_is_told_once_what_is_wanted_until_when_and_why(lab: WholeGrid) -> None:
    with HookServer() as holder:
        boost = asked_back(lab, holder.url)
        lab.wait(2.0)

    (reported,) = holder.asked
    assert (reported["boost_id"], reported["amount"], reported["resource_type"]) == (boost.id, 2, "cpu")
    assert reported["reason"] == "ana needs it"
    assert reported["deadline"]
    assert lab.leases[boost.id].notice is not None  # told is not given


def test_a_hook_gives_up_a_part(lab: WholeGrid) -> None:
    with HookServer({"give_up": 2}) as holder:
        boost = asked_back(lab, holder.url)
        lab.wait(1.0)

    assert len(holder.asked) == 1
    assert (lab.leases[boost.id].units, lab.leases[boost.id].notice) == (CPUS, None)
    assert lab.cluster.true_totals()["b"][CPU] == 5 * CPUS


def test_a_hook_gives_up_less_and_is_not_asked_twice_for_the_rest(lab: WholeGrid) -> None:
    with HookServer({"give_up": 1, "checkpointed": True}) as holder:
        boost = asked_back(lab, holder.url)
        lab.wait(2.0)

    assert len(holder.asked) == 1
    left = lab.leases[boost.id]
    assert (left.units, left.notice.units) == (2 * CPUS, CPUS)
    assert left.checkpointed_at is not None


@pytest.mark.parametrize("answer", [{"release": True}, {"give_up": 1000}])
def test_a_hook_gives_everything_up(lab: WholeGrid, answer: dict[str, Any]) -> None:
    with HookServer(answer) as holder:
        asked_back(lab, holder.url)
        lab.wait(1.0)
    at_home(lab)


def test_a_hook_that_has_saved_its_work_may_keep_on_until_the_deadline(lab: WholeGrid) -> None:
    with HookServer({"checkpointed": True}) as holder:
        boost = asked_back(lab, holder.url)
        lab.wait(1.0)
    kept = lab.leases[boost.id]
    assert (kept.state, kept.units) == (ACTIVE, 3 * CPUS)
    assert kept.checkpointed_at is not None
    assert lab.events("checkpointed")


def test_a_hook_is_told_again_when_more_is_asked_and_after_a_restart(lab: WholeGrid) -> None:
    with HookServer() as holder:
        boost = asked_back(lab, holder.url, 1)

        async def more() -> None:
            reclaim(lab.parts, boost, "bo needs it, too", FOR_ANA, units=2 * CPUS)

        lab.run(more())
        lab.wait(1.0)
        assert [reported["amount"] for reported in holder.asked] == [1, 2]
        lab.crash()
        lab.wait(1.0)
        assert len(holder.asked) == 3


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": 500}, "it answered 500"),
        ({"status": 302, "headers": {"Location": "http://169.254.169.254/"}}, "it answered 302"),
        ({"answer": b"<html>"}, "could not be notified"),
        ({"answer": [1]}, "not a JSON object"),
        ({"answer": {"give_up": "all"}}, "must be a number"),
        ({"answer": {"give_up": -1}}, "must be zero or more"),
        ({"answer": {"go": "away"}}, "is unknown"),
        ({"answer": {"release": 1}}, "must be true or false"),
        ({"answer": b" " * 100_000}, "more than"),
    ],
)
def test_a_hook_that_does_not_make_sense_changes_nothing_and_is_reported(
    lab: WholeGrid, answer: dict[str, Any], why: str
) -> None:
    with HookServer(**answer) as holder:
        boost = asked_back(lab, holder.url)
    assert lab.leases[boost.id].notice is not None
    assert lab.leases[boost.id].units == 3 * CPUS
    (reported,) = lab.events("reclaim_hook_failed")
    assert why in reported
    lab.wait(GRACE_S / 2 + 0.5)
    assert lab.leases[boost.id].units == CPUS  # taken
    assert not lab.failures


def test_a_hook_that_is_down_costs_its_holder_nothing_but_the_notice(lab: WholeGrid) -> None:
    with HookServer() as holder:
        url = holder.url
    boost = asked_back(lab, url)
    assert lab.leases[boost.id].notice is not None
    assert len(lab.events("reclaim_hook_failed")) == 1
    lab.wait(GRACE_S)
    assert lab.leases[boost.id].units == CPUS


def test_a_reservation_whose_hook_offers_a_part_comes_back_whole_at_the_deadline(lab: WholeGrid) -> None:
    with HookServer({"give_up": 1}) as holder:
        boost = asked_back(lab, holder.url, delivery="reserve")
        assert "cannot be released in part" in lab.events("reclaim_hook_failed")[0]
        assert lab.leases[boost.id].notice.units == 3 * CPUS
    lab.wait(GRACE_S)
    at_home(lab)


def test_an_answer_that_comes_too_late_gives_nothing_more_up(lab: WholeGrid) -> None:
    """What was asked is taken by then; the rest is still the holder's."""
    boost = asked_back(lab, WATCHED)
    asked = lab.leases[boost.id]
    lab.wait(GRACE_S / 2)

    lab.run(take_reply(lab.parts, asked, Reply(give_up=CPUS, checkpointed=True), who="ana"))

    kept = lab.leases[boost.id]
    assert (kept.state, kept.units) == (ACTIVE, CPUS)
    assert kept.checkpointed_at is not None


def request(lab: WholeGrid, url: str) -> Lease:
    keys = ("duration_seconds", "source_node", "delivery", "grace_seconds", "on_grace_end")
    body = dict.fromkeys(keys) | {"target_node": "b", "resource_type": "cpu", "amount": 1}
    body |= {"priority": "normal", "wait_seconds": 0, "reclaim_url": url}
    return lab.run(lab.engine.request(body, caller=THE_OWNER.claiming("ana")))


def test_a_url_that_leads_out_of_the_cluster_is_refused_when_it_is_given(lab: WholeGrid) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request(lab, "http://169.254.169.254/latest/meta-data")
    assert "neither this machine's loopback nor a node" in refused.value.because[0]
    assert not lab.leases


@pytest.mark.parametrize("url", [WATCHED, "http://127.0.0.1:1/", "http://10.0.0.1:9000/x", "http://b:9000/x"])
def test_a_url_on_this_machine_or_a_node_is_kept_with_the_boost(lab: WholeGrid, url: str) -> None:
    assert request(lab, url).reclaim_hook == url


def test_a_url_that_leads_out_of_the_cluster_by_now_is_not_called(lab: WholeGrid) -> None:
    boost = asked_back(lab, "http://10.9.9.9:1/")  # of a node that has left since
    assert "cannot be used" in lab.events("reclaim_hook_failed")[0]
    assert lab.leases[boost.id].notice is not None
