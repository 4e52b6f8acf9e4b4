"""Roles as callers name them: by text, or by a member of any Enum."""

from typing import Any

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.roles import checks


def role_name(role: Any) -> str:
    try:
        return checks.name(role)
    except checks.Wrong as wrong:
        raise InvalidRequest(f"A role {wrong}") from None
