"""Puts functions in the place of Ray's own."""

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

Function = Callable[..., Any]


def innermost(function: Function) -> Function:
    """The function itself, where Ray has wrapped it: what replaces that reaches those who have the wrapper already.

    For workers, where a task's function may have been loaded before the hook came. Not for drivers: Ray's client
    would send it away.
    """
    return function.__wrapped__ if _cell(function) is not None else function  # type: ignore[attr-defined]


def replace(replaced: Mapping[Function, Function]) -> None:
    """Wherever ray has one of these under a name, or has wrapped it, it has the other from now on."""
    by_id = {id(original): made for original, made in replaced.items()}
    for name, module in list(sys.modules.items()):
        if name == "ray" or name.startswith("ray."):
            for attribute, value in list(vars(module).items()):
                if id(value) in by_id:
                    setattr(module, attribute, by_id[id(value)])
                elif (cell := _cell(value)) is not None and id(cell.cell_contents) in by_id:
                    cell.cell_contents = by_id[id(cell.cell_contents)]


def _cell(function: Any) -> Any:
    """Where a wrapper keeps what it wraps."""
    if not isinstance(function, FunctionType) or not function.__closure__:
        return None
    wrapped = vars(function).get("__wrapped__")
    return next((cell for cell in function.__closure__ if wrapped is not None and _holds(cell, wrapped)), None)


def _holds(cell: Any, wrapped: Any) -> bool:
    try:
        return cell.cell_contents is wrapped
    except ValueError:  # empty
        return False
