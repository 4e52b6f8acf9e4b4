"""Errors as the API answers them."""

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from distributed_grid.errors import GridError


def answer_error(error: GridError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error.to_dict()}, error.http_status, headers=headers)
