"""Work beside the rounds of a run. Threads of a pool are waited for when the process ends; these are not."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(name: str, work: Callable[[], T]) -> "Future[T]":
    """Do it in a thread of its own, which does not keep the process from ending, however long it takes."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (for whoever asks for the result)
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
