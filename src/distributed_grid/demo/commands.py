"""Grid's own commands, run as a user runs them: each in its own process, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from distributed_grid.errors import GridError, error_from_dict
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostStatus

_RUN: Final = "from distributed_grid.cli import main; main()"
_PATIENCE_S: Final = 60.0


class Grid:
    """`grid` with one installation's GRID_HOME. Tracks the boosts that have not been released."""

    def __init__(self, home: GridHome) -> None:
        self._env = os.environ | {"GRID_HOME": str(home.path)}
        self._open: list[str] = []

    def request(self, *words: str) -> Boost:
        granted: Boost = self._run("boost", "request", *words)
        self._open.append(granted["boost_id"])
        return granted

    def release(self, boost_id: str) -> None:
        self._open.remove(boost_id)
        self._run("boost", "release", boost_id)

    def status(self) -> BoostStatus:
        found: BoostStatus = self._run("boost", "status")
        return found

    def forget(self, boost_id: str) -> None:
        """The boost has ended by itself."""
        self._open.remove(boost_id)

    def release_what_is_left(self) -> None:
        """For a demo that stops early: others may use this cluster."""
        for boost_id in list(self._open):
            self.release(boost_id)

    def _run(self, *words: str) -> Any:
        command = [sys.executable, "-P", "-c", _RUN, *words, "--json"]
        try:
            done = subprocess.run(
                command, env=self._env, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise GridError(f"grid {' '.join(words)} did not end within {_PATIENCE_S:.0f} s") from None
        if done.returncode != 0:
            raise _error_in(done.stderr, words)
        return json.loads(done.stdout)


def _error_in(stderr: str, words: tuple[str, ...]) -> GridError:
    try:
        return error_from_dict(json.loads(stderr)["error"])
    except (ValueError, KeyError, TypeError):
        return GridError(f"grid {' '.join(words)} failed", because=stderr.strip().splitlines()[-3:])
