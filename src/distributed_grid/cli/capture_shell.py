"""A shell, or a command, whose Ray programs run inside a reserved boost."""

import os
import subprocess
from collections.abc import Callable
from typing import Any

from distributed_grid.client import GridClient
from distributed_grid.running.driver import explained
from distributed_grid.running.held_lease import reserved
from distributed_grid.running.surroundings import captured


def run_inside(
    client: GridClient,
    boost: dict[str, Any],
    command: tuple[str, ...],
    say: Callable[[str], None],
    *,
    allow_escapes: bool = False,
) -> int:
    """Run it in the user's terminal, folder and environment; its exit code."""
    reserved(client, boost)
    inside = command or (os.environ.get("SHELL", "/bin/sh"),)
    if not command:
        say(f"Ray programs in this shell run on {boost['source_node']}, in boost {boost['boost_id'][:8]}. exit leaves.")
    surroundings = captured(client, boost, allow_escapes=allow_escapes)
    with explained(inside[0]):
        return subprocess.run(inside, env=surroundings, check=False).returncode
