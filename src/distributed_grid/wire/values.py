"""The values that requests and answers are made of."""

from typing import Annotated

from pydantic import Field, with_config
from typing_extensions import TypedDict

# Every string, list and table of a request has a limit; `tests/attacks` checks the OpenAPI document for that.
Word = Annotated[str, Field(max_length=64)]
"""One of a few values: a priority, a policy, a scope."""
Name = Annotated[str, Field(max_length=255)]
"""The name of a node, a kind of resource, a task, a tag."""
Line = Annotated[str, Field(max_length=1000)]
"""A sentence, a label, a URL."""
Amount = float | Word
"""A number, or text such as "0.1" or "30m", which is checked where its meaning is known."""
Amounts = dict[str, float | int]
"""By kind of resource: cores, devices or GB."""

request = with_config(extra="forbid")
"""The body of a request: a key that it does not define is a mistake of the caller."""


class ErrorBody(TypedDict):
    code: str
    message: str
    because: list[str]
    try_next: str | None
    exit_code: int


class NoCapacityBody(ErrorBody):
    expected_start: Annotated[
        str | None, Field(description="When the request would be met if it waited; null: no estimate")
    ]


class ErrorAnswer(TypedDict):
    error: Annotated[NoCapacityBody | ErrorBody, Field(description="NO_CAPACITY also has `expected_start`")]


class Health(TypedDict):
    status: Annotated[str, Field(description="ok, degraded or starting")]


class Noted(TypedDict):
    noted: bool
