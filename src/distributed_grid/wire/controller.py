"""The controller itself: its configuration, and its end."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.values import Amount, request


class Whereabouts(TypedDict):
    """How to reach the controller, as `controller.json` says it."""

    url: str
    tls_sha256: str | None
    pid: int
    ray_address: str
    ray_auth_mode: str
    cluster: str
    config_source: str
    config_digest: str
    started_at: str


class ControllerUp(Whereabouts):
    """The report of a controller that has started."""

    notes: list[str]


class ClusterUp(ControllerUp):
    """The report of an embedded cluster that has started."""

    head: str


class RunningConfig(TypedDict):
    digest: str
    source: str
    config: Annotated[dict[str, object], Field(description="As the file has it, with every default filled in")]


@request
class StopRequest(TypedDict):
    force: NotRequired[bool]
    wait_seconds: NotRequired[Annotated[Amount, Field(description="Default 30; at most an hour")]]


class Stopped(TypedDict):
    released: int
