"""Boosts and events as lines of the main screen."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from distributed_grid.cli.amounts import labelled
from distributed_grid.cli.columns import Column
from distributed_grid.cli.moments import clock
from distributed_grid.cli.tables import STATES, ends_at
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.instants import parse_instant

_EVENT_COLOURS: Final = {"pressure_high": "red", "lost": "red", "granted": "green", "released": "cyan"}


def boost_columns(boosts: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Column], dict[str, str]]:
    now = datetime.now(UTC)
    left = [(parse_instant(ends_at(boost)) - now).total_seconds() for boost in boosts]
    ends = [countdown(seconds) for seconds in left]
    soon = {end: "red" if s < 60 else "yellow" for end, s in zip(ends, left, strict=True) if s < 300}
    why = [why_it_ends(boost["ending"]) if boost.get("ending") else "" for boost in boosts]
    return {
        "ends": Column.of("Ends in", ends, right=True),
        "amount": Column.of("Amount", [labelled(boost["resource_type"], boost["amount"]) for boost in boosts]),
        "source": Column.of("From", [str(boost["source_node"]) for boost in boosts]),
        "target": Column.of("To", [str(boost["target_node"]) for boost in boosts]),
        "state": Column.of("State", [str(boost["state"]) for boost in boosts]),
        "delivery": Column.of("Delivery", [str(boost["delivery"]) for boost in boosts]),
        "id": Column.of("ID", [boost["boost_id"][:8] for boost in boosts]),
        "owner": Column.of("Owner", [str(boost["requester"]) for boost in boosts]),
        "team": Column.of("Team", [str(boost["team"]) for boost in boosts]),
        **({"why": Column.of("Goes home", why)} if any(why) else {}),
    }, STATES | soon


def countdown(seconds: float) -> str:
    """ "1:02:03", "29:58", "0:00" once it is over."""
    whole = max(0, int(seconds))
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def event_line(event: Mapping[str, Any]) -> Text:
    kind = str(event["event"])
    return Text.assemble(
        (f"{clock(event['at'])} ", "dim"), (f"{kind} ", _EVENT_COLOURS.get(kind, "bold")), str(event["message"])
    )
