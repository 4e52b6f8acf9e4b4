"""The part of a checkup that runs on other machines. This module travels by value: nothing of grid is installed
there."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from ray._private.authentication.authentication_utils import is_token_auth_enabled


class Surroundings(TypedDict):
    """The environment of a node's raylet, and the time there."""

    time: float
    env: dict[str, str]
    token_auth: bool
    gpu_devices: int
    machine: str


def surroundings(names: Sequence[str]) -> Surroundings:
    env = _of_the_raylet() or os.environ
    return {
        "time": time.time(),
        "env": {name: env[name] for name in names if name in env},
        "token_auth": is_token_auth_enabled(),
        "gpu_devices": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "machine": _machine(),
    }


def _of_the_raylet() -> dict[str, str]:
    """A worker's own environment lacks what Ray changes for it, such as the visible GPUs; its parent is the raylet."""
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
