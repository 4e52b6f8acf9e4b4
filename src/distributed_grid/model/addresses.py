"""Where a Ray head is, as people write it."""

from typing import Final

AUTO: Final = "auto"
"""Ray itself looks for a head on this machine."""


def why_no_address(address: str) -> str:
    """What keeps a text from being the HOST:PORT of a head; empty if nothing does."""
    if "://" in address:
        return "that is the address of a Ray client server, not of the head itself"
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        return "that is not HOST:PORT"
    if not 0 < int(port) < 2**16:
        return f"{port} is not a port"
    return ""
