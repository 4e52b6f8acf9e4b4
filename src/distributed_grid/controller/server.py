"""The HTTP server: uvicorn, with what an open door needs."""

from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from distributed_grid.model.listening import Listening

_LONGEST_HEAD: Final = 64 * 1024


class BoundedHead(HttpToolsProtocol):
    """Takes a request's first line and headers up to a length; uvicorn itself would keep any number of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._moved_on = False
        self._head = 0

    def data_received(self, data: bytes) -> None:
        self._moved_on = False
        super().data_received(data)
        if not self._in_head or self._moved_on:  # the part of it that began a new head is short
            return
        self._head += len(data)
        if self._head > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_headers_complete(self) -> None:
        self._in_head, self._moved_on = False, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._moved_on, self._head = True, True, 0
        super().on_message_complete()


def make_server(app: Any, listening: Listening) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=BoundedHead,
        ws="none",
        proxy_headers=False,  # else anybody on this machine could say to come from elsewhere
        timeout_keep_alive=30,
        ssl_certfile=listening.tls_cert or None,
        ssl_keyfile=listening.tls_key or None,
    )
    return uvicorn.Server(config)
