"""A command under a keeper, as seen by its owner: the command ends when this process does, however it ends.

This module travels by value: it may import only what Python ships. The keeper's source text is read where grid is
installed, and travels along.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Final, TypedDict

_KEEPER: Final = (resources.files("distributed_grid.execution") / "on_node_keeper.py").read_text()
_SHOWN_AS: Final = "grid-keeper"


class Answer(TypedDict, total=False):
    """The keeper's: the first two keys together, otherwise one of them."""

    started: int
    output_from: int
    failed: str
    ended: int


class Kept:
    """One command, or none yet; `on_node_keeper.py` lists the orders and answers."""

    def __init__(self) -> None:
        # Orders go through a pipe: every user of a machine can see the arguments of its processes.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER, _SHOWN_AS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self._keeper.wait()  # the keeper continues in a process that is not a child of this one

    def tell(self, **order: object) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):  # the keeper has ended; its last answer says how
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()

    def heard(self) -> Iterator["Answer"]:
        """The keeper's answers as they come; ends when nothing of the command is left."""
        assert self._keeper.stdout is not None
        with self._keeper.stdout as lines:
            yield from map(json.loads, lines)

    def let_go(self) -> None:
        """Give up the command: the keeper ends it."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
