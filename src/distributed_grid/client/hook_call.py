"""One call of a holder's hook: to a fixed address, once, and with limits on everything that comes back."""

import contextlib
import http.client
import socket
import threading
from typing import Final

from distributed_grid.client.connections import Answer
from distributed_grid.decide.leases.hooks import HookPlace

ANSWER_S: Final = 5.0
MOST_BYTES: Final = 16 * 1024


class HookFailed(Exception):
    """Why there is no answer."""


def call_hook(place: HookPlace, body: bytes, within_s: float = ANSWER_S) -> Answer:
    """POST JSON and return the answer. Follows no redirect, uses no proxy, sends nothing twice."""
    kind = http.client.HTTPSConnection if place.is_tls else http.client.HTTPConnection
    connection = kind(place.address, place.port, timeout=within_s)
    headers = {"Host": place.host, "Content-Type": "application/json", "Accept": "application/json"}
    try:
        connection.connect()
        # A socket's time-out starts again with each byte: a slow server must not hold the caller.
        end = threading.Timer(within_s, _cut, [connection.sock])
        end.daemon = True
        end.start()
        try:
            connection.request("POST", place.path, body, headers)
            response = connection.getresponse()
            content = response.read(MOST_BYTES + 1)
        finally:
            end.cancel()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HookFailed(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if len(content) > MOST_BYTES:
        raise HookFailed(f"its answer has more than {MOST_BYTES} bytes")
    if response.length:  # the rest of the announced length did not come
        raise HookFailed("its answer broke off")
    return Answer(response.status, content)


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
