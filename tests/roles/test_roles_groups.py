"""Groups and handles, whatever carries their calls."""

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.errors import (
    CallTimedOut,
    InvalidRequest,
    MemberFailed,
    MemberLost,
    UnknownMethod,
    error_from_dict,
)
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointRegistry
from distributed_grid.roles.calls.groups import RoleGroup
from tests.support.scripted_transport import HANGS, Dies, ScriptedTransport, Sent, workers


def rank_of(endpoint: Endpoint, *_: Any, **__: Any) -> int:
    return endpoint.rank


def only(bad: dict[int, Any]) -> Any:
    """Members answer their rank; some do this instead."""

    def answer(endpoint: Endpoint, *_: Any) -> Any:
        found = bad.get(endpoint.rank, endpoint.rank)
        if isinstance(found, Exception):
            raise found
        return found

    return answer


def test_a_call_goes_to_all_and_results_are_in_rank_order() -> None:
    group, _ = workers(4, ScriptedTransport(lambda endpoint, a, *, b: (endpoint.rank, a, b)))

    assert group.call("step", 1, b=2) == [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 2)]


def test_arguments_of_a_method_never_clash_with_options() -> None:
    transport = ScriptedTransport(lambda endpoint, **given: given)
    group, _ = workers(1, transport)

    assert group.call("step", method=1, deadline_s=2, errors=3) == [{"method": 1, "deadline_s": 2, "errors": 3}]
    assert group[0].call("step", self=1, method=2) == {"self": 1, "method": 2}


def test_a_group_is_a_sequence_of_members_in_rank_order() -> None:
    group, _ = workers(5, ScriptedTransport(rank_of))

    assert (len(group), group.size, group.rank_zero.rank, group[-1].rank) == (5, 5, 0, 4)
    assert [member.rank for member in group] == [0, 1, 2, 3, 4]
    assert group[1:4].call("step") == [1, 2, 3]
    assert [member.rank for member in group[::2]] == [0, 2, 4]
    with pytest.raises(IndexError, match="5 members"):
        group[5]


def test_a_group_has_those_that_are_there_now_and_a_slice_keeps_its_own() -> None:
    group, endpoints = workers(3, ScriptedTransport(rank_of))
    first_two = group[:2]

    endpoints[1].retire("it died too often")

    assert group.call("step") == [0, 2]
    with pytest.raises(MemberLost, match=r"worker 1 on n1 is gone.*died too often") as caught:
        first_two.call("step")
    assert (caught.value.role, caught.value.rank, caught.value.why) == ("worker", 1, "it died too often")


def test_an_unknown_method_is_reported_before_anything_is_sent() -> None:
    transport = ScriptedTransport(rank_of)
    group, _ = workers(2, transport)

    for wrong in (
        lambda: group.call("stepp"),
        lambda: group.submit("stepp"),
        lambda: group.map("stepp", [1]),
        lambda: group[0].call("stepp"),
        lambda: group[0].stepp,
    ):
        with pytest.raises(UnknownMethod, match="did you mean 'step'") as caught:
            wrong()
        assert caught.value.because == ("it has step, stop",)
    assert transport.sent == []
    assert not hasattr(group[0], "stepp")


def test_a_method_of_a_member_is_not_called_like_a_function() -> None:
    transport = ScriptedTransport(rank_of)
    group, _ = workers(2, transport)

    with pytest.raises(TypeError, match=r"step\.remote"):
        group[1].step(1)
    ref = group[1].step.remote(7)

    assert isinstance(ref, Sent)
    assert (ref.endpoint.rank, ref.args) == (1, (7,))


def test_a_failure_says_who_where_and_what_with_the_traceback() -> None:
    boom = ValueError("bad weights")
    group, _ = workers(3, ScriptedTransport(only({1: boom})))

    with pytest.raises(MemberFailed, match=r"worker 1 on n1 failed in step\(\): ValueError: bad weights") as caught:
        group.call("step")

    error = caught.value
    assert (error.role, error.rank, error.node, error.cause) == ("worker", 1, "n1", boom)
    assert "Traceback of ValueError" in error.remote_traceback
    assert error.remote_traceback in error.because
    assert error.remote_traceback in error.__notes__, "Python shows it where the error is not caught"


def test_of_several_failures_the_first_by_rank_is_raised_and_the_others_are_reported() -> None:
    group, _ = workers(4, ScriptedTransport(only({1: ValueError("b"), 3: KeyError("d"), 0: HANGS})))

    with pytest.raises(MemberFailed) as caught:
        group.options(deadline_s=0.01).call("step")

    assert caught.value.rank == 1, "a failure may be why others do not answer"
    reported = "\n".join(caught.value.because)
    assert "1 more of 4 failed, too" in reported
    assert "worker 3 on n3" in reported
    assert "1 more of 4 had not answered" in reported


def test_the_first_failure_can_be_raised_at_once_since_others_may_wait_for_the_failed_member() -> None:
    transport = ScriptedTransport(only({0: HANGS, 2: ValueError("out of memory")}))
    group, endpoints = workers(3, transport)

    with pytest.raises(MemberFailed, match="worker 2 on n2") as caught:
        group.options(errors="first").call("step")  # without a deadline
    assert "worker 0 on n0 had not answered step() when another one failed" in caught.value.because

    endpoints[1].disconnect("it restarts")
    transport.when_away = lambda endpoint: endpoint.retire("killed")
    with pytest.raises(MemberLost, match="killed"):
        group[:2].options(errors="first").call("step")

    with pytest.raises(CallTimedOut, match="did not answer"):
        group[:1].options(errors="first", deadline_s=0.01).call("step")


def test_errors_as_values_stand_in_their_places() -> None:
    group, _ = workers(4, ScriptedTransport(only({1: ValueError("b"), 2: Dies("killed"), 3: HANGS})))

    found = group.options(errors="values", deadline_s=0.01).call("step")

    assert found[0] == 0
    assert [type(one) for one in found[1:]] == [MemberFailed, MemberLost, CallTimedOut]
    assert found[3].ranks == (3,)


def test_a_deadline_says_how_many_answered_and_who_did_not() -> None:
    group, _ = workers(5, ScriptedTransport(only({1: HANGS, 4: HANGS})), deadline_s=0.01)

    with pytest.raises(
        CallTimedOut, match=r"3 of 5 answered step\(\) within 0.01 s; of worker, ranks 1 and 4"
    ) as caught:
        group.call("step")

    assert caught.value.ranks == (1, 4)
    with pytest.raises(CallTimedOut, match=r"worker 1 on n1 did not answer step\(\) within 0.01 s"):
        group[1].call("step")


def test_options_are_a_view_and_nonsense_is_refused() -> None:
    group, _ = workers(2, ScriptedTransport(only({1: ValueError("x")})))
    quiet = group.options(errors="values")

    assert isinstance(quiet[:].call("step")[1], MemberFailed)
    with pytest.raises(MemberFailed):
        group.call("step")
    with pytest.raises(InvalidRequest, match="raise"):
        group.options(errors="ignore")
    with pytest.raises(InvalidRequest, match="at_once"):
        group.options(at_once=0)


def test_a_call_waits_for_members_that_are_away_and_reaches_each_once() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(3, transport)
    endpoints[0].disconnect("it restarts")
    asked: list[int] = []

    def comes_back_when_asked_again(endpoint: Endpoint) -> None:
        asked.append(endpoint.rank)
        if len(asked) == 3:
            endpoint.connect("anew", node="n9")

    transport.when_away = comes_back_when_asked_again

    assert group.call("step") == [0, 1, 2]
    assert transport.ranks() == [1, 2, 0], "those that are there do not wait for who is away"
    assert group[0].node == "n9"


def test_a_member_that_does_not_come_back_in_time_is_late_and_the_others_have_answered() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(3, transport)
    endpoints[1].disconnect("it restarts")

    found = group.options(deadline_s=0.01, errors="values").call("step")

    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], CallTimedOut)
    assert "worker 1 on n1 is not running" in found[1].message
    assert found[1].because == ("it restarts",)
    with pytest.raises(CallTimedOut):
        group[1].options(deadline_s=0.01).step.remote()


def test_a_member_that_goes_for_good_while_a_caller_waits_is_lost_and_was_never_called() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(2, transport)
    endpoints[1].disconnect("it restarts")
    transport.when_away = lambda endpoint: endpoint.retire("it has died 4 times")

    with pytest.raises(MemberLost, match=r"worker 1 on n1 is gone, so step\(\) was not called: it has died 4 times"):
        group.call("step")
    assert transport.ranks() == [0]


def test_a_call_in_flight_when_the_process_dies_is_not_repeated() -> None:
    transport = ScriptedTransport(only({1: Dies("exit code 9")}))
    group, _ = workers(3, transport)

    with pytest.raises(MemberLost, match=r"worker 1 on n1 was lost during step\(\): exit code 9"):
        group.call("step")
    assert transport.ranks() == [0, 1, 2]


def test_what_cannot_be_sent_raises_as_it_is() -> None:
    class Picky(ScriptedTransport):
        def submit(self, *_: Any) -> Sent:
            raise TypeError("cannot pickle")

    group, endpoints = workers(2, Picky(rank_of))

    with pytest.raises(TypeError, match="cannot pickle"):
        group.call("step", object())
    assert [endpoint.outstanding for endpoint in endpoints] == [0, 0]


def test_an_empty_role_answers_nothing_but_a_run_that_is_over_says_so() -> None:
    transport = ScriptedTransport(rank_of)
    group, _ = workers(0, transport)
    assert group.call("step") == []
    for wrong in (group.choose, lambda: group[0], lambda: group.map("step", [1])):
        with pytest.raises(MemberLost, match="worker has no members"):
            wrong()

    others, endpoints = workers(2, transport)
    for endpoint in endpoints:
        endpoint.retire("killed")
    with pytest.raises(MemberLost):
        others.call("step")


@given(st.data(), st.integers(1, 6), st.integers(0, 20), st.integers(1, 3))
def test_map_gives_each_shard_out_once_and_keeps_their_order_whichever_is_done_first(
    data: st.DataObject, members: int, shards: int, at_once: int
) -> None:
    working: Counter[int] = Counter()
    most: Counter[int] = Counter()

    class Watched(ScriptedTransport):
        def submit(self, endpoint: Endpoint, *rest: Any) -> Sent:
            working[endpoint.rank] += 1
            most[endpoint.rank] = max(most[endpoint.rank], working[endpoint.rank])
            return super().submit(endpoint, *rest)

        def _end(self, ref: Sent) -> Any:
            if not ref.over:
                working[ref.endpoint.rank] -= 1
            return super()._end(ref)

    transport = Watched(lambda endpoint, shard, plus: shard + plus, lambda n: data.draw(st.integers(0, n - 1)))
    group, endpoints = workers(members, transport, concurrency=2)

    assert group.options(at_once=at_once).map("step", range(shards), 100) == [100 + i for i in range(shards)]
    assert [ref.args[0] for ref in transport.sent] == list(range(shards))
    assert transport.ranks()[:members] == list(range(min(members, shards))), "shard i goes to member i"
    assert all(count <= min(at_once, 2) for count in most.values())
    assert [endpoint.outstanding for endpoint in endpoints] == [0] * members


def test_after_a_failure_map_gives_out_no_more_and_waits_for_what_is_under_way() -> None:
    transport = ScriptedTransport(lambda endpoint, shard: 1 // shard)
    group, _ = workers(2, transport)

    with pytest.raises(MemberFailed, match="ZeroDivisionError"):
        group.map("step", [0, 1, 1, 1, 1])
    assert len(transport.sent) == 2
    assert all(ref.over for ref in transport.sent)

    found = group.options(errors="values").map("step", [0, 1, 1, 0])
    assert [type(one) for one in found] == [MemberFailed, int, int, MemberFailed]


def test_a_lost_member_gets_no_more_shards_until_it_is_back() -> None:
    """It fails at once, so it would be done first each time, and fail them all."""
    dead = {1}

    def answer(endpoint: Endpoint, shard: int) -> int:
        if endpoint.rank in dead:
            raise Dies("killed")
        if shard == 5:  # its keeper has noticed
            dead.clear()
            endpoints[1].disconnect("it restarts")
            endpoints[1].connect("anew")
        return endpoint.rank

    transport = ScriptedTransport(answer)
    group, endpoints = workers(2, transport)

    found = group.options(errors="values").map("step", range(9))

    assert [type(one) for one in found].count(MemberLost) == 1
    assert found[2:6] == [0, 0, 0, 0]
    assert 1 in found[6:]


def test_map_waits_for_a_member_to_come_back_where_all_are_away() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(2, transport)
    for endpoint in endpoints:
        endpoint.disconnect("it restarts")

    found = group.options(errors="values", deadline_s=0.01).map("step", range(3))
    assert [type(one) for one in found] == [CallTimedOut] * 3
    with pytest.raises(CallTimedOut, match=r"No member of worker was free for step\(\) within 0.01 s"):
        group.options(deadline_s=0.01).map("step", range(3))

    view = group[:]
    for endpoint in endpoints:
        endpoint.retire("killed")
    for whichever in (group, view):
        with pytest.raises(MemberLost, match="worker has no members: killed"):
            whichever.map("step", [1])


def test_a_member_added_during_a_map_gets_its_part_and_a_leaving_one_gets_no_more() -> None:
    registry = EndpointRegistry("run")
    added = Endpoint("worker", 1, methods=("step",))

    def answer(endpoint: Endpoint, shard: int) -> int:
        if shard == 2:
            added.connect(object())
            registry.put(added)
        if shard == 6:
            registry.drop("worker", 0, "it was scaled down")
        return endpoint.rank

    first = Endpoint("worker", 0, methods=("step",))
    first.connect(object())
    registry.put(first)
    group: RoleGroup[Any] = RoleGroup(registry, ScriptedTransport(answer), "worker")

    found = group.map("step", range(12))

    assert found[:3] == [0, 0, 0] and 1 in found[3:7] and {*found[8:]} == {1}
    assert group[:].map("step", range(2)) == [1, 1]


def test_map_goes_on_when_a_member_is_back() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(2, transport)
    for endpoint in endpoints:
        endpoint.disconnect("it restarts")

    def shards() -> Iterator[int]:
        yield 1
        yield 2

    back = threading.Thread(target=endpoints[1].connect, args=("anew",))
    back.start()
    assert group.map("step", shards()) == [1, 1]
    back.join()


def test_a_late_shard_keeps_its_member_busy_and_the_others_do_the_rest() -> None:
    transport = ScriptedTransport(lambda endpoint, shard: HANGS if shard == 0 else endpoint.rank)
    group, _ = workers(2, transport)

    found = group.options(errors="values", deadline_s=0.01).map("step", range(5))

    assert isinstance(found[0], CallTimedOut)
    assert found[1:] == [1, 1, 1, 1]


@given(st.integers(1, 6), st.integers(0, 30))
def test_choose_is_fair_to_all_members_that_are_equally_busy(members: int, calls: int) -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(members, transport)

    for _ in range(calls):
        group.choose().step.remote()

    counts = [endpoint.outstanding for endpoint in endpoints]
    if calls:
        assert sum(counts) == calls
    assert max(counts) - min(counts) <= 1


def test_choose_goes_by_own_calls_then_by_what_was_told_then_by_rank() -> None:
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(4, transport)
    endpoints[0].busy, endpoints[1].busy, endpoints[2].busy = 5, 2, 2
    endpoints[3].disconnect("it restarts")

    assert group.choose().rank == 1
    ref = group.choose().step.remote()
    assert group.choose().rank == 2
    ref.over = True
    assert group.choose().rank == 1, "a call that is over counts no more"

    for endpoint in endpoints[:3]:
        endpoint.disconnect("all restart")
    assert group.choose().rank in (0, 1, 2, 3), "who is away is chosen where all are: its calls wait"


def test_references_are_held_only_for_callers_of_choose() -> None:
    """A reference keeps its result alive."""
    transport = ScriptedTransport(rank_of)
    group, endpoints = workers(2, transport)

    group.submit("step")
    assert [endpoint.outstanding for endpoint in endpoints] == [0, 0]

    group.choose()
    group.submit("step")
    assert [endpoint.outstanding for endpoint in endpoints] == [1, 1]
    for ref in transport.sent:
        ref.over = True
    for endpoint in endpoints:
        endpoint.forget_finished(transport.unfinished)
    assert [endpoint.outstanding for endpoint in endpoints] == [0, 0]


def test_a_single_call_of_choose_does_not_keep_references_that_are_over() -> None:
    transport = ScriptedTransport(rank_of)
    group, (endpoint,) = workers(1, transport)
    group.choose()
    for number in range(1000):
        group.submit("step")
        if number >= 100:  # a hundred are under way at a time
            transport.sent[number - 100].over = True

    assert 100 <= endpoint.outstanding <= 202


def test_a_member_that_joins_a_run_that_is_over_cannot_be_called() -> None:
    registry = EndpointRegistry("run")
    registry.close("it was shut down")
    late = Endpoint("worker", 0)
    registry.put(late)
    late.connect(object())

    assert late.retired and late.target is None


def test_a_handle_stays_in_its_process_and_is_equal_to_another_of_the_same_member() -> None:
    group, _ = workers(2, ScriptedTransport(rank_of))

    assert group[0] == group.rank_zero
    assert group[0] != group[1]
    with pytest.raises(TypeError, match="on_peers"):
        pickle.dumps(group[0])


def test_errors_of_calls_travel_as_json_and_as_pickles() -> None:
    group, _ = workers(2, ScriptedTransport(only({1: ValueError("b")})))
    found = group.options(errors="values").call("step")[1]

    again = error_from_dict(found.to_dict())
    assert isinstance(again, MemberFailed)
    assert again.because == found.because

    sent = pickle.loads(pickle.dumps(found))
    assert (sent.rank, sent.remote_traceback, sent.message) == (1, found.remote_traceback, found.message)
