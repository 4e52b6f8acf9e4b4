"""Pickling by value: for a moment, and without a trace."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import role_classes
from ray import cloudpickle
from role_classes import Teller

from distributed_grid.execution.packing import packed_whole

NAME = role_classes.__name__


def test_what_travels_is_the_class_itself() -> None:
    assert NAME not in cloudpickle.list_registry_pickle_by_value()

    packed = packed_whole(Teller)

    assert b"wait_for" in packed, "its methods"
    assert b"wait_for" not in cloudpickle.dumps(Teller)
    assert pickle.loads(packed).__name__ == "Teller"


def test_what_the_user_has_registered_stays_registered() -> None:
    cloudpickle.register_pickle_by_value(role_classes)
    try:
        packed_whole(Teller)

        assert NAME in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(role_classes)


def test_two_that_pack_at_once_do_not_undo_each_other() -> None:
    """The first is held in the middle of it until the second has begun."""
    inside, second_began = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            inside.set()
            second_began.wait(60)
            return int, ()

    def second() -> bytes:
        second_began.set()
        return packed_whole(Teller)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(packed_whole, Teller, Slow())
        assert inside.wait(60)
        both = [first, threads.submit(second)]

    assert all(b"wait_for" in one.result() for one in both)
    assert NAME not in cloudpickle.list_registry_pickle_by_value()
