"""A shell, or a command, whose Ray programs run inside a reserved boost."""

import os
import subprocess
from collections.abc import Callable
from typing import Any

from distributed_grid.client import GridClient
from distributed_grid.errors import InvalidRequest
from distributed_grid.running.held_lease import reserved
from distributed_grid.running.surroundings import captured


def run_inside(client: GridClient, boost: dict[str, Any], command: tuple[str, ...], say: Callable[[str], None]) -> int:
    """Run it in the user's terminal, folder and environment; its exit code."""
    reserved(client, boost)
    inside = command or (os.environ.get("SHELL", "/bin/sh"),)
    if not command:
        say(f"Ray programs in this shell run on {boost['source_node']}, in boost {boost['boost_id'][:8]}. exit leaves.")
    try:
        return subprocess.run(inside, env=captured(client, boost), check=False).returncode
    except FileNotFoundError:
        raise InvalidRequest(f"There is no command {inside[0]!r}") from None
    except PermissionError:
        raise InvalidRequest(f"{inside[0]!r} cannot be executed", try_next=f"python {inside[0]}") from None
