"""When a program that was asked to end has had its time, and when the user insists."""

import signal

import pytest

from distributed_grid.run.monitor import HINT_S, TYPED_S, UNATTENDED_S, EndRequest
from distributed_grid.run.signals import ReceivedSignal

TYPED = ReceivedSignal(signal.SIGINT, None)
SENT = ReceivedSignal(signal.SIGTERM, 42)
HUNG_UP = ReceivedSignal(signal.SIGHUP, None)


@pytest.mark.parametrize(
    ("first", "then", "after_s", "insists"),
    [
        (TYPED, TYPED, 0.2, True),
        (TYPED, SENT, 0.2, True),
        (SENT, TYPED, 0.2, True),
        (SENT, SENT, 0.01, False),  # `timeout` sends to the process, and to its group
        (SENT, ReceivedSignal(signal.SIGHUP, 42), 0.01, False),  # systemd sends both
        (SENT, SENT, 2.0, True),
        (SENT, ReceivedSignal(signal.SIGTERM, 43), 0.01, True),
    ],
)
def test_a_second_request_is_one_that_was_made_again(
    first: ReceivedSignal, then: ReceivedSignal, after_s: float, insists: bool
) -> None:
    assert EndRequest(first, 100.0).is_insisted_on(then, 100.0 + after_s) is insists


@pytest.mark.parametrize(
    ("by", "has_s"), [(TYPED, TYPED_S), (SENT, UNATTENDED_S), (ReceivedSignal(signal.SIGHUP, None), UNATTENDED_S)]
)
def test_a_user_at_the_terminal_gives_the_program_longer(by: ReceivedSignal, has_s: float) -> None:
    asked = EndRequest(by, 100.0)
    assert not asked.is_over(100.0 + has_s - 0.1)
    assert asked.is_over(100.0 + has_s + 0.1)


def test_only_a_user_at_the_terminal_learns_how_to_end_it_faster_and_once() -> None:
    soon, later = 100.0, 100.1 + HINT_S
    assert [EndRequest(TYPED, 100.0).wants_a_hint(now) for now in (soon, later)] == [False, True]
    assert not EndRequest(TYPED, 100.0, is_hinted=True).wants_a_hint(later)
    assert not EndRequest(SENT, 100.0).wants_a_hint(later)
