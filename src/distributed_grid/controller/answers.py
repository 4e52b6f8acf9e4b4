"""Errors as the API answers them."""

import math
from collections.abc import Mapping
from typing import Any, Final

from fastapi.responses import JSONResponse

from distributed_grid.controller.schemas import ErrorAnswer
from distributed_grid.errors import GridError, TooBusy, TooLarge

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorAnswer} for status in (401, 403, 404, 409, 413, 421, 422, 429, 500, 503)
}
"""For OpenAPI: what any call may be answered with."""


def answer_error(error: GridError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    if isinstance(error, TooBusy):
        headers = {"Retry-After": str(math.ceil(error.retry_after_s)), **(headers or {})}
    if isinstance(error, TooLarge):
        headers = {"Connection": "close", **(headers or {})}  # the rest of it is not read
    return JSONResponse({"error": error.to_dict()}, error.http_status, headers=headers)
