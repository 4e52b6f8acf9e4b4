"""What the hook inside the program tells: which Ray jobs are its, what was rewritten, what escaped."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Reports:
    """Reads a growing file of JSON lines from where it was left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.jobs: list[str] = []
        self.told: list[str] = []

    def news(self) -> Iterator[str]:
        """What a person should know, as it comes."""
        for line in self._lines():
            event = line.get("event")
            if event == "job" and line.get("job_id") not in self.jobs:
                self.jobs.append(str(line.get("job_id")))
            elif event in ("escaped", "rewritten", "note"):
                text = _in_words(line)
                self.told.append(text)
                yield text

    def _lines(self) -> Iterator[Mapping[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]  # the last line may still be on its way
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _in_words(line: Mapping[str, Any]) -> str:
    what, why = line.get("what", ""), line.get("why", "")
    heading = {"escaped": "outside the lease: ", "rewritten": "kept inside: "}.get(str(line.get("event")), "")
    return f"{heading}{what}{f' ({why})' if why else ''}"
