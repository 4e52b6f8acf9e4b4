"""Telling systemd how we are: readiness, status and the watchdog, by datagrams to a socket that it names."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

_PATIENCE_S: Final = 2.0


class ServiceManager:
    """Whoever started this process as a service of Type=notify; without one, nothing happens."""

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        ours = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid() if pid is None else pid))
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 if ours and usec.isdigit() and int(usec) else None
        """Within this time it wants a sign of life."""

    def ready(self) -> None:
        self._send("READY=1")

    def status(self, text: str) -> None:
        self._send(f"STATUS={' '.join(text.split())}")

    def alive(self) -> None:
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of a name that is in no folder.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_it:
            to_it.settimeout(_PATIENCE_S)  # one that does not listen must not hold us up
            to_it.sendto(message.encode(), address)
