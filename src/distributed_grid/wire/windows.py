"""Windows: capacity that is promised in advance, at times that may repeat."""

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from distributed_grid.wire.boosts import RequestedAmount, RequestedBounds
from distributed_grid.wire.values import Amount, Line, Name, Word, request


@request
class WindowRequest(RequestedAmount, RequestedBounds):
    """What `grid reserve create` sends. `duration_seconds` is how long each occurrence lasts."""

    name: Name
    at: Annotated[
        Line, Field(description='When it begins: "Mon-Fri 09:00", "Sat,Sun 08:00", "daily 22:00", "2026-12-01 09:00"')
    ]
    time_zone: NotRequired[
        Annotated[Line | None, Field(description="A name such as Europe/Berlin; default: the controller's own zone")]
    ]
    grace_seconds: NotRequired[Amount | None]
    on_grace_end: NotRequired[Annotated[Word | None, Field(description="What happens then to work that still uses it")]]
    reclaim_url: NotRequired[
        Annotated[Line | None, Field(description="The URL to notify before its boost is reclaimed")]
    ]
    along: NotRequired[
        Annotated[
            dict[Name, Amount] | None,
            Field(max_length=16, description="What the same lender lends with it, by kind; the boost is then reserved"),
        ]
    ]
    label: NotRequired[Annotated[Line, Field(description="What runs in it; the first 200 characters are kept")]]


class WindowOccurrence(TypedDict):
    begin: str
    end: str
    expected_start: Annotated[
        str | None, Field(description="When it gets its capacity by the queue's plan; null: no estimate")
    ]
    expected_sources: list[str]
    is_on_time: Annotated[bool, Field(description="Whether that is when it begins")]
    reason: Annotated[str, Field(description="Which nodes will lend it, or why it is late")]


class Window(TypedDict):
    name: str
    at: str
    time_zone: str
    duration_seconds: float
    target_node: str
    resource_type: str
    amount: float | int
    along: Annotated[dict[str, float | int], Field(description="What the same lender lends with it")]
    priority: str
    source_nodes: Annotated[list[str], Field(description="The only nodes that may lend it; empty: any")]
    delivery: Annotated[str | None, Field(description="null: as configured")]
    requester: str
    team: str
    created_at: str
    state: Annotated[
        str,
        Field(
            description="promised: it has not begun; waiting: it has begun, and waits for its capacity; or the state "
            "of the boost that it has"
        ),
    ]
    boost_id: Annotated[str | None, Field(description="The boost, or the waiting request, of the current occurrence")]
    reason: Annotated[str | None, Field(description="Why it waits; null unless it does")]
    missed: Annotated[int, Field(description="How many occurrences ended without their capacity")]
    next: Annotated[list[WindowOccurrence], Field(description="The next occurrences, the first one first")]


class WindowList(TypedDict):
    windows: list[Window]


class CancelledWindow(TypedDict):
    name: str
    boost_id: Annotated[str | None, Field(description="The boost that it had when it was cancelled")]
    boost_state: Annotated[str | None, Field(description="That boost's state; active: it stays until it ends")]
    expires_at: Annotated[str | None, Field(description="When that boost ends")]
