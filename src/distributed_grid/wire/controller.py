"""The controller itself: its configuration, and its end."""

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import request


class RunningConfig(TypedDict):
    digest: str
    source: str
    config: Annotated[dict[str, Any], Field(description="As the file has it, with every default filled in")]


@request
class StopRequest(TypedDict):
    force: NotRequired[bool]
    wait_seconds: NotRequired[Annotated[float, Field(ge=0, le=3600, description="Default 30")]]


class Stopped(TypedDict):
    released: int
