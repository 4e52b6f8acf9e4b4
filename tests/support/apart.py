"""A second host on this machine: a network namespace with a cable that can be pulled."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HERE = "10.231.77.1"
THERE = "10.231.77.2"


def why_not() -> str | None:
    """Why no namespace can be made here."""
    if shutil.which("ip") is None:
        return "there is no `ip` command (iproute2)"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    probe = subprocess.run(["ip", "netns", "add", "grid-probe"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no network namespaces: {probe.stderr.strip()}"
    _ip("netns", "delete", "grid-probe")
    return None


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@dataclass(frozen=True)
class Apart:
    """Reached from here at THERE, through a cable of its own."""

    name: str
    cable: str

    def command(self, command: list[str]) -> list[str]:
        """The command, to be run on the other host."""
        return ["ip", "netns", "exec", self.name, *command]

    def pull_the_cable(self) -> None:
        _ip("link", "set", self.cable, "down")

    def plug_it_in(self) -> None:
        _ip("link", "set", self.cable, "up")


@contextmanager
def another_host() -> Iterator[Apart]:
    name = f"grid-{os.getpid()}"
    cable, far_end = f"gr{os.getpid()}a", f"gr{os.getpid()}b"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", cable, "type", "veth", "peer", "name", far_end)
        _ip("link", "set", far_end, "netns", name)
        _ip("address", "add", f"{HERE}/30", "dev", cable)
        _ip("link", "set", cable, "up")
        for args in (
            ("address", "add", f"{THERE}/30", "dev", far_end),
            ("link", "set", far_end, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("netns", "exec", name, "ip", *args)
        yield Apart(name, cable)
    finally:
        subprocess.run(["ip", "link", "delete", cable], check=False, capture_output=True)
        _ip("netns", "delete", name)
