"""Reports what happened to a captured program, once: to the process that started it, or on stderr."""

import contextlib
import json
import os
import sys

_AT_MOST = 500
"""A program that names every task differently must not fill the disk."""


class Refusal(RuntimeError):
    """The program asks for what its lease cannot provide. Pickled as a `RuntimeError`: no package needed."""

    def __reduce__(self) -> tuple[type[RuntimeError], tuple[str]]:
        return RuntimeError, (str(self),)


class Reports:
    """One line for each event; repeated events are reported once."""

    def __init__(self, path: str | None, *, only_escapes: bool = False) -> None:
        self._path = path
        self._only_escapes = only_escapes
        self._reported: dict[str, set[str]] = {}

    def job(self, job_id: str) -> None:
        """The program has connected as this job. Only for the process that started it."""
        if self._path:
            self._write({"event": "job", "job_id": job_id, "pid": os.getpid()})

    def rewritten(self, what: str, why: str) -> None:
        if not self._only_escapes:
            self._tell("rewritten", what, why)

    def escaped(self, what: str, why: str) -> None:
        self._tell("escaped", what, why)

    def refused(self, what: str, why: str) -> None:
        """The program gets the same text as an error, so without a file nothing is printed."""
        if self._path:
            self._tell("refused", what, why)

    def note(self, what: str, why: str) -> None:
        if not self._only_escapes:
            self._tell("note", what, why)

    def at_once(self, what: str, why: str) -> None:
        """A message that the user must see while the program runs, also from workers."""
        self._tell("note", what, why, at_once=True)

    def failed(self, where: str, error: BaseException) -> None:
        """The hook itself failed: Ray continues as if it were not installed."""
        self._tell("note", f"hook failed: {where}", f"{type(error).__name__}: {error}")

    def _tell(self, event: str, what: str, why: str, **more: bool) -> None:
        reported = self._reported.setdefault(event, set())
        if what in reported or len(reported) > _AT_MOST:
            return
        if len(reported) == _AT_MOST:
            what, why = "others", f"there are more than {_AT_MOST} of these"
        reported.add(what)
        if self._path is None or not self._write({"event": event, "what": what, "why": why, **more}):
            self._print(f"grid: {_WORDS[event]}{what}: {why}")

    def _write(self, line: dict[str, object]) -> bool:
        """Append in one write, so that lines of several processes do not mix."""
        assert self._path is not None
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, (json.dumps(line) + "\n").encode())
            finally:
                os.close(handle)
        except OSError:
            return False
        return True

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no stderr, or it is closed
            print(line, file=sys.stderr, flush=True)  # noqa: T201


_WORDS = {"rewritten": "in the lease: ", "escaped": "NOT in the lease: ", "refused": "refused: ", "note": ""}
