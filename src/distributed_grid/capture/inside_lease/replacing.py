"""Replaces functions of Ray."""

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

Function = Callable[..., Any]


def innermost(function: Function) -> Function:
    """The function inside Ray's wrapper: replacing it also affects code that already holds the wrapper.

    For workers, where a task's function may have been loaded before the hook arrived. Not for drivers: Ray's client
    would send it away.
    """
    return function.__wrapped__ if _cell(function) is not None else function  # type: ignore[attr-defined]


def replace(replaced: Mapping[Function, Function]) -> None:
    """Replace each of these functions wherever ray names it or has wrapped it."""
    by_id = {id(original): made for original, made in replaced.items()}
    for name, module in list(sys.modules.items()):
        if name == "ray" or name.startswith("ray."):
            for attribute, value in list(vars(module).items()):
                if id(value) in by_id:
                    setattr(module, attribute, by_id[id(value)])
                elif (cell := _cell(value)) is not None and id(cell.cell_contents) in by_id:
                    cell.cell_contents = by_id[id(cell.cell_contents)]


def _cell(function: Any) -> Any:
    """The closure cell in which a wrapper keeps the wrapped function."""
    if not isinstance(function, FunctionType) or not function.__closure__:
        return None
    wrapped = vars(function).get("__wrapped__")
    return next((cell for cell in function.__closure__ if wrapped is not None and _holds(cell, wrapped)), None)


def _holds(cell: Any, wrapped: Any) -> bool:
    try:
        return cell.cell_contents is wrapped
    except ValueError:  # empty
        return False
