"""Reports about a run, from the hook inside the program and from the run's monitor outside."""

import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

_KINDS: Final = {
    "escaped": "outside the lease",
    "refused": "refused",
    "rewritten": "kept inside",
    "note": "noted",
}
"""The kinds of events that the user should know, the worst first, and how a line about each begins."""
_MOST_NAMES: Final = 5
_MOST_OF_A_NAME: Final = 80


class Reports:
    """A growing file of JSON lines, read from the last position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        self._found: dict[str, dict[str, None]] = {kind: {} for kind in _KINDS}
        self.jobs: list[str] = []

    def add(self, event: str, what: str, why: str) -> None:
        """Add an event from outside the hook; the user sees it at once. One write, since the hook writes there, too."""
        line = json.dumps({"event": event, "what": what, "why": why, "at_once": True}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def news(self) -> Iterator[str]:
        """Read what has been added; yields what the user should know before the run ends."""
        for line in self._lines():
            event = str(line.get("event"))
            if event == "job" and line.get("job_id") not in self.jobs:
                self.jobs.append(str(line.get("job_id")))
            elif event in self._found:
                what, why = line.get("what", ""), line.get("why", "")
                text = f"{what}{f' ({why})' if why else ''}"
                if text in self._found[event]:
                    continue  # several processes may report the same
                self._found[event][text] = None
                if line.get("at_once"):
                    yield f"{_KINDS[event]}: {text}"

    def summary(self, outside: Mapping[str, int]) -> list[str]:
        """One line for each kind of event. `outside` is from Ray's own records, with what no hook has seen."""
        ran = {"escaped": f"of all that ran: {_listed(outside)}"} if outside else {}
        return [
            _line(kind, list(found), ran.get(kind, "")) for kind, found in self._found.items() if found or kind in ran
        ]

    def _lines(self) -> Iterator[Mapping[str, object]]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _line(kind: str, found: list[str], also: str) -> str:
    if not found:
        return f"{_KINDS[kind]}, {also}"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{_KINDS[kind]}, {len(found)}: {found[0]}{more}{also and f'; {also}'}"


def _listed(counts: Mapping[str, int]) -> str:
    """The first names with their counts, then how many more names there are."""
    shown = [f"{_short(name)} ({count})" for name, count in islice(counts.items(), _MOST_NAMES)]
    left = len(counts) - len(shown)
    return ", ".join(shown) + (f", and {left:,} more name{'s' * (left != 1)}" if left else "")


def _short(name: str) -> str:
    return name if len(name) <= _MOST_OF_A_NAME else name[: _MOST_OF_A_NAME - 3] + "..."
