"""A JSON Schema of the file, for editors: every setting, in every spelling."""

from typing import Any

from distributed_grid.config.checking import SPELLINGS
from distributed_grid.config.entries import Steps, dotted
from distributed_grid.config.models import GridConfig

_PREFIX = "#/$defs/"


def json_schema() -> dict[str, Any]:
    schema = GridConfig.model_json_schema()
    for spelling in SPELLINGS:
        setting = _property(schema, schema, spelling.name)
        section = _section(schema, spelling.other[:-1])
        same = {**setting, "description": f"Another spelling of {dotted(spelling.name)}."}
        section.setdefault("properties", {})[spelling.other[-1]] = same
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Distributed Grid configuration",
    }


def _property(schema: dict[str, Any], section: dict[str, Any], path: Steps) -> dict[str, Any]:
    for step in path:
        found: dict[str, Any] = _resolved(schema, section)["properties"][step]
        section = found
    return section


def _section(schema: dict[str, Any], path: Steps) -> dict[str, Any]:
    """The section at `path`, made if it exists only in another spelling."""
    section = schema
    for depth, step in enumerate(path, start=1):
        properties = section.setdefault("properties", {})
        made = {"type": "object", "description": f"{dotted(path[:depth])}: settings in another spelling."}
        section = _resolved(schema, properties.setdefault(step, made))
    return section


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref")
    if name is None:
        return part
    found: dict[str, Any] = schema["$defs"][str(name).removeprefix(_PREFIX)]
    return found
