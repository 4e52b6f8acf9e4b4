"""A holder that is asked over HTTP: a real small server on loopback, which answers what a test says."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HookServer:
    def __init__(self, answer: object = None, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """`answer` goes out as JSON; bytes as they are; None: nothing at all."""
        self.asked: list[dict[str, Any]] = []
        self.told: list[tuple[str, str | None]] = []
        """Of each GET: its path, and how it is authorized."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.told.append((self.path, self.headers.get("Authorization")))
                self.tell()

            def do_POST(self) -> None:
                outer.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.tell()

            def tell(self) -> None:
                body = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/asked-back"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "HookServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
