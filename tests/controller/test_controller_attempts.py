"""The limit on failed attempts: whom it puts off, whom never, and how much it remembers."""

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.controller.limits import BLOCKED_S, MOST_FAILURES, WINDOW_S, FailedAttempts
from distributed_grid.model.listening import is_loopback

AWAY = "192.0.2.7"


def fail(
    attempts: FailedAttempts, times: int, address: str = AWAY, *, now: float = 0.0, guessing: bool = True
) -> float:
    return [attempts.failed(address, f"{n if guessing else 0}".encode(), now=now) for n in range(times)][-1]


def test_an_address_that_fails_too_often_waits_for_a_while_and_then_has_a_new_start() -> None:
    attempts = FailedAttempts()

    assert fail(attempts, MOST_FAILURES - 1) == 0.0
    assert fail(attempts, 1) == BLOCKED_S
    assert attempts.failed(AWAY, b"x", now=10.0) == BLOCKED_S - 10
    assert attempts.failed(AWAY, b"x", now=BLOCKED_S) == 0.0


def test_failures_that_are_far_apart_do_not_add_up() -> None:
    attempts = FailedAttempts()

    assert all(attempts.failed(AWAY, b"x", now=n * WINDOW_S) == 0.0 for n in range(3 * MOST_FAILURES))


def test_a_caller_that_guesses_is_put_off_even_with_a_right_token_but_not_on_loopback() -> None:
    attempts = FailedAttempts()
    for address in (AWAY, "127.0.0.1", "::1", "::ffff:127.0.0.1"):
        fail(attempts, MOST_FAILURES, address)

    assert attempts.guesses(AWAY, now=1.0) == BLOCKED_S - 1
    assert attempts.guesses("192.0.2.8", now=1.0) == 0.0
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert attempts.guesses(address, now=1.0) == 0.0


def test_a_job_with_a_revoked_token_does_not_lock_out_others_on_its_machine() -> None:
    attempts = FailedAttempts()

    assert fail(attempts, 10 * MOST_FAILURES, guessing=False) > 0
    assert attempts.guesses(AWAY, now=1.0) == 0.0
    assert attempts.failed(AWAY, b"", now=1.0) > 0


def test_calls_without_any_token_are_no_guesses() -> None:
    attempts = FailedAttempts()
    for _ in range(3 * MOST_FAILURES):
        attempts.failed(AWAY, b"", now=0.0)

    assert attempts.guesses(AWAY, now=1.0) == 0.0


def test_one_machine_has_many_ipv6_addresses() -> None:
    attempts = FailedAttempts()

    for n in range(MOST_FAILURES):
        attempts.failed(f"2001:db8:1:1::{n:x}", f"{n}".encode(), now=0.0)

    assert attempts.guesses("2001:db8:1:1:ffff::1", now=0.0) > 0
    assert attempts.guesses("2001:db8:1:2::1", now=0.0) == 0.0


def test_each_time_a_caller_is_put_off_it_is_reported_once() -> None:
    reported: list[str] = []
    attempts = FailedAttempts(on_block=reported.append)

    fail(attempts, 5 * MOST_FAILURES)

    assert reported == [AWAY]


ADDRESSES = st.one_of(
    st.ip_addresses().map(str), st.text(max_size=5), st.sampled_from([AWAY, "127.0.0.1", "fe80::1%e"])
)
CALLS = st.tuples(ADDRESSES, st.binary(max_size=2), st.booleans(), st.floats(0, 50))


@given(st.lists(CALLS, max_size=200))
def test_memory_is_bounded_and_waits_are_too(calls: list[tuple[str, bytes, bool, float]]) -> None:
    attempts = FailedAttempts(limit=3, addresses=5)
    now = 0.0
    for address, given_token, is_wrong, pause in calls:
        now += pause
        waits = attempts.failed(address, given_token, now=now) if is_wrong else attempts.guesses(address, now=now)
        assert 0.0 <= waits <= max(BLOCKED_S, WINDOW_S) + 1e-6
        assert len(attempts) <= 5
        assert not (waits and not is_wrong and is_loopback(address))
