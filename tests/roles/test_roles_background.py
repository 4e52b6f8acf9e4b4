"""Work beside the rounds of a run."""

import threading

import pytest

from distributed_grid.roles.supervision.signals import in_background


def test_work_that_never_ends_does_not_keep_the_process_from_ending() -> None:
    end = threading.Event()
    reading = in_background("a-slow-signal", lambda: end.wait(60))

    (thread,) = [one for one in threading.enumerate() if one.name == "a-slow-signal"]
    assert thread.daemon and not reading.done()
    end.set()
    assert reading.result(60) is True


def test_what_it_raises_is_for_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        in_background("a-wrong-signal", lambda: 1 / 0).result(60)
