"""Signals that ask a long-lived process of grid to end: the first one raises, so that everything is released."""

import signal
from types import FrameType, TracebackType
from typing import Final, Self

_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EndRequested(BaseException):
    """A signal asked this process to end; as with KeyboardInterrupt, everything is released on the way out."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class EndSignals:
    """Within its `with` block, the first signal raises `EndRequested`. Ignored signals stay ignored, as under nohup."""

    def __init__(self, *, may_insist: bool) -> None:
        """`may_insist`: a second signal ends the process at once. Otherwise it changes nothing any more, and neither
        does one after the block."""
        self._may_insist = may_insist
        handlers = {number: signal.getsignal(number) for number in _ENDING}
        self._before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if self._may_insist else signal.SIG_IGN)

    def listen(self) -> None:
        """Install the handlers again, after a library has installed its own."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_DFL if self._may_insist else signal.SIG_IGN)
        raise EndRequested(signal.Signals(number))
