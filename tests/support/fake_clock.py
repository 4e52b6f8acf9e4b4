"""A clock that moves only when a caller waits."""

from collections.abc import Callable


class Clock:
    """Seconds that pass only when a caller waits; subscribers are told of every step."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._dues: list[Callable[[float], float | None]] = []

    def __call__(self) -> float:
        return self.now

    def on_the_way(self, due: Callable[[float], float | None]) -> None:
        """`due(until)`: the next instant up to `until` at which something happens by itself, having done it."""
        self._dues.append(due)

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        for due in self._dues:
            while (at := due(until)) is not None:
                self.now = max(self.now, at)
        self.now = until
