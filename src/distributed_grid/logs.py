"""How grid logs: one line per event, on stderr, tracebacks without the values of variables.

Grid has its own logger, so that a program that uses grid as a library keeps its own set-up of structlog.
"""

import sys

import structlog
from structlog.typing import FilteringBoundLogger

from distributed_grid.model.plain_text import plain


class _Stderr:
    """Whatever stderr is when something is written to it."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def logger() -> FilteringBoundLogger:
    found: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(_Stderr()),  # type: ignore[arg-type]
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
            lambda _logger, _method, line: plain(str(line), keep="\n\t"),
        ],
    )
    return found
