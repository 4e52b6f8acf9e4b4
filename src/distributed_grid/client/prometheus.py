"""Queries a Prometheus server. Error messages leave out its address, which may contain a password."""

import json
from base64 import b64encode
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

from distributed_grid.errors import GridError


def instant_query(server: str, query: str, within_s: float) -> dict[str, Any]:
    """The `data` of its present answer; raises a `GridError` that says why there is none."""
    try:
        with urlopen(_request(server, query), timeout=within_s) as answer:
            status, content = answer.status, answer.read()
    except HTTPError as error:
        status, content = error.code, error.read()
    except (URLError, OSError) as error:
        raise GridError(f"Prometheus cannot be reached: {getattr(error, 'reason', error)}") from None
    try:
        told = json.loads(content)
        if status == 200 and told["status"] == "success":
            return dict(told["data"])
        why = told.get("error", "no reason is given")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GridError(f"the server does not answer as Prometheus does (status {status})") from None
    raise GridError(f"Prometheus answers with {status}: {why}")


def _request(server: str, query: str) -> Request:
    parts = urlsplit(server)
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    path = f"{parts.path.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    headers = {"Accept": "application/json"}
    if parts.username is not None:
        said = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(said.encode()).decode()}"
    return Request(f"{parts.scheme}://{host}{port}{path}", headers=headers)
