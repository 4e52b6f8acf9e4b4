"""What a checkup runs on other machines. This module travels by value: nothing of grid is installed there."""

import os
import time
from collections.abc import Sequence
from typing import Any

from ray._private.authentication.authentication_utils import is_token_auth_enabled


def surroundings(names: Sequence[str]) -> dict[str, Any]:
    """In what the node's raylet was started, and what time it is there."""
    return {
        "time": time.time(),
        "env": {name: os.environ[name] for name in names if name in os.environ},
        "token_auth": is_token_auth_enabled(),
    }
