"""Boosts as text, for output without `--json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
from distributed_grid.cli.output import clock, distance, quantity
from distributed_grid.model.endings import EndCause, on_grace_end, what_happens_then, why_it_ends
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import in_words
from distributed_grid.model.resources import GPU

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostList, BoostStatus, BoostTotals, ListedBoosts
    from distributed_grid.wire.queue import Plan, QueueStatus
    from distributed_grid.wire.scheduling import TaskList

S = TypeVar("S", "BoostList", "BoostStatus")

HELD = "as work ends"
STATES = {"active": "green", "idle": "yellow", "granting": "yellow", "releasing": "yellow", "lost": "red"}


def boost_card(boost: Boost) -> str:
    """One boost, what it means, and what to do with it."""
    short = boost["boost_id"][:8]
    what = quantity(boost["resource_type"], boost["amount"])
    lines = [
        f"{bold('Boost')} {boost['boost_id']}  {click.style(boost['state'], fg=STATES.get(boost['state']))}",
        f"  {what} from {lenders(boost)} to {boost['target_node']}, priority {boost['priority']}",
        *(f"    {line}" for line in part_lines(boost)),
        *_range(boost),
        f"  until {'its work ends' if is_held(boost) else f'{clock(ends_at(boost))} ({distance(ends_at(boost))})'}",
        f"  delivery: {boost['delivery']} ({boost['delivery_reason']})",
        *_companions(boost),
    ]
    lines += [f"  {line}" for line in _reclaim_note(boost)]
    if boost["state"] == "active":
        lines += [f"  {line}" for line in _how_to_use(boost, short)]
    return "\n".join(lines)


def amount(boost: Boost) -> str:
    """ "4"; of an elastic boost what it has, and its range: "9 (2..16)"."""
    if boost["at_most"] is None:
        return str(boost["amount"])
    least = "" if not boost["amount"] else f"{boost['amount']:g}"
    return f"{boost['capacity'].get(boost['resource_type'], 0):g} ({least}..{boost['at_most']:g})"


def _range(boost: Boost) -> list[str]:
    if (most := boost["at_most"]) is None:
        return []
    has = quantity(boost["resource_type"], boost["capacity"].get(boost["resource_type"], 0))
    grown = [f"{part['amount']:g} of {part['source_node']}" for part in boost["grown"]]
    more = f" ({', '.join(grown)} while no request waits for it)" if grown else ""
    return [f"  elastic: has {has}{more}, at most {most:g}"]


def lenders(boost: Boost) -> str:
    """ "gpu1", "gpu1 and gpu2"."""
    return in_words(list(_by_lender(boost))) or boost["source_node"]


def part_lines(divided: Boost | Plan) -> list[str]:
    """What each of several lenders lends, and why."""
    kind = divided["resource_type"]
    return [
        f"{quantity(kind, part['amount'])} from {part['source_node']}: {part['reason']}" for part in divided["parts"]
    ]


def _sources(boost: Boost) -> str:
    """For a column: "gpu1", "gpu1 (6), gpu2 (4)"."""
    parts = [f"{source} ({amount:g})" for source, amount in _by_lender(boost).items()]
    return ", ".join(parts) or boost["source_node"]


def _by_lender(boost: Boost) -> dict[str, float]:
    """How much each of several lenders lends; of a reservation it may lend several bundles."""
    amounts: dict[str, float] = {}
    for part in boost["parts"]:
        amounts[part["source_node"]] = amounts.get(part["source_node"], 0) + part["amount"]
    return amounts


def return_line(boost: Boost) -> str:
    """What a release has achieved: the capacity is back, or when it will be."""
    what = quantity(boost["resource_type"], boost["amount"])
    if boost["state"] == "released":
        have = "have their" if len(boost["parts"]) > 1 else "has its"
        return f"Released boost {boost['boost_id']}: {lenders(boost)} {have} {what} back"
    get = "get their" if len(boost["parts"]) > 1 else "gets its"
    said = f"Boost {boost['boost_id']} is {boost['state']}: {lenders(boost)} {get} {what} back as work ends"
    ending = boost["ending"]
    if ending is None or ending["deadline"] is None or on_grace_end(ending).only_waits:
        return said
    return f"{said}; {what_happens_then(ending, clock(ending['deadline']))}"


def _companions(boost: Boost) -> list[str]:
    """The companions of a reservation, such as the CPU that work on a GPU needs."""
    along = [
        quantity(kind, amount)
        for kind, amount in boost["resources"].items()
        if amount and kind != boost["resource_type"]
    ]
    return [f"  with {', '.join(along)}, also from {lenders(boost)}"] if along else []


def _how_to_use(boost: Boost, short: str) -> list[str]:
    if Delivery.named(boost["delivery"]).moves_totals:
        return [
            f"Every Ray program on {boost['target_node']} can use it now, unmodified.",
            f"To give it back early:  grid boost release {short}",
        ]
    subject = "The GPU is" if boost["resource_type"] == GPU else "It is"
    return [
        f"{subject} reserved on {lenders(boost)} for your Ray tasks. To use it:",
        f"  grid run --boost {short} -- train_model.py     (unmodified; or any command)",
        f"  grid boost shell {short}                       (a shell; Ray programs in it run there)",
        f"To give it back early:  grid boost release {short}",
    ]


def asked_as_boosts(boosts: Iterable[Boost]) -> list[Boost]:
    """The boosts that were requested as boosts, without the leases of programs."""
    return [boost for boost in boosts if boost["purpose"] == "boost"]


def without_runs(status: S) -> S:
    """Only the boosts that were requested as boosts, and how many other leases there are (`hidden`)."""
    kept = asked_as_boosts(status["boosts"])
    hidden = len(status["boosts"]) - len(kept)
    idle = idle_among(status["boosts"]) - idle_among(kept)
    status = status.copy()
    status.update({"boosts": kept})
    if hidden:
        status["hidden"] = hidden
    if idle:
        status["hidden_idle"] = idle
    return status


def idle_among(boosts: Iterable[Boost]) -> int:
    return sum(boost["idle_since"] is not None for boost in boosts)


def boost_table(status: BoostList, canvas: Canvas | None = None) -> str:
    """Show the totals per resource type, then every boost."""
    canvas = canvas or Canvas()
    head = [boost_totals(status, canvas), *hidden_leases(status.get("hidden", 0), status.get("hidden_idle", 0))]
    if not status["boosts"]:
        return "\n".join([*head, "To request one:  grid boost request NODE cpu|gpu|memory AMOUNT"])
    return "\n".join([*head, "", *boost_rows(status["boosts"], canvas), *not_all(status)])


def hidden_leases(count: int, idle: int, command: str = "grid boost status --all") -> list[str]:
    """A line about the leases of runs, tasks, roles and moved processes, which are not shown as boosts."""
    if not count:
        return []
    of_them = f" ({idle} idle)" if idle else ""
    return [click.style(f"{leases_of_programs(count)}{of_them}: {command}", dim=not idle)]


def leases_of_programs(count: int) -> str:
    return "1 lease of a running program" if count == 1 else f"{count} leases of running programs"


def not_all(answer: ListedBoosts | QueueStatus | TaskList) -> list[str]:
    """A line below a list that the controller has cut."""
    return ["The list is incomplete: the controller returns no more at a time."] if answer["cut"] else []


def boost_totals(status: BoostTotals, canvas: Canvas) -> str:
    totals = ", ".join(quantity(kind, amount) for kind, amount in status["resources"].items() if amount) or "nothing"
    return "\n".join(
        canvas.flow([f"{bold('Active boosts:')} {status['total_active']}", f"{bold('Boosted:')} {totals}"])
    )


def boost_rows(boosts: Sequence[Boost], canvas: Canvas) -> list[str]:
    """A line for each boost, then remarks on some."""

    fields: Sequence[Mapping[str, object]] = boosts

    def of(key: str) -> list[str]:
        return [str(boost[key]) for boost in fields]

    left = [HELD if is_held(boost) else distance(ends_at(boost)) for boost in boosts]
    until = [
        HELD if is_held(boost) else f"{clock(ends_at(boost))} ({far})" for boost, far in zip(boosts, left, strict=True)
    ]
    fitted = fit(
        {
            "id": Column.of("ID", [boost["boost_id"][:8] for boost in boosts]),
            "source": Column.of("Source", [_sources(boost) for boost in boosts]),
            "target": Column.of("Target", of("target_node")),
            "type": Column.of("Type", of("resource_type")),
            "amount": Column.of("Amount", [amount(boost) for boost in boosts], right=True),
            "delivery": Column.of("Delivery", of("delivery")),
            "state": Column.of("State", of("state")),
            "owner": Column.of("Owner", of("requester")),
            "team": Column.of("Team", of("team")),
            "for": Column.of("For", of("label"), optional=True),
            "allocated": Column.of("Allocated", [clock(boost["allocated_at"]) for boost in boosts]),
            "expires": Column.of("Expires", until, Form("Expires", left)),
        },
        ("for", "allocated", "team", "expires", "owner", "delivery"),
        canvas,
    )
    about: dict[str, list[str]] = {}
    for boost in boosts:
        for note in [*_reclaim_note(boost), *boost["warnings"]]:
            about.setdefault(note, []).append(boost["boost_id"][:8])
    notes = [
        click.style(line, fg="yellow")
        for note, ids in about.items()
        for line in canvas.wrapped(f"{', '.join(ids)}: {note}", indent="  ", first="")
    ]
    return [fitted_table(fitted, STATES), *(["", *notes] if notes else [])]


def ends_at(boost: Boost) -> str:
    """The end of its use: the deadline if all of it is being returned, else the expiry."""
    ending = boost.get("ending")
    if ending is not None and boost["state"] == "releasing" and ending["deadline"] is not None:
        return str(ending["deadline"])
    return str(boost["expires_at"])


def is_held(boost: Boost) -> bool:
    """Whether it is being returned and waits for its work to end: its deadline ends no work."""
    ending = boost["ending"]
    return boost["state"] == "releasing" and ending is not None and on_grace_end(ending).only_waits


def _reclaim_note(boost: Boost) -> list[str]:
    """Why it is being returned, for whom, and by when."""
    notice, ending = boost["notice"], boost["ending"]
    why = None if ending is None else why_it_ends(ending)
    until = None if ending is None else ending["deadline"]
    if notice is not None and ending is not None and ending["cause"] == EndCause.IDLE:
        what = quantity(boost["resource_type"], notice["amount"])
        return [f"reclaim of {what} ({why}): taken back at {clock(notice['deadline'])} unless used or released"]
    if notice is not None:
        what = quantity(boost["resource_type"], notice["amount"])
        reason = why or notice["reason"]
        text = f"reclaim of {what} ({reason}): taken back at {clock(notice['deadline'])} unless released"
        return [text if ending is None or until is None else f"{text}; {what_happens_then(ending, clock(until))}"]
    if ending is None:
        return _idle_note(boost)
    then = "" if until is None else f"; {what_happens_then(ending, clock(until))}"
    return [f"is being returned: {why}{then}"]


def _idle_note(boost: Boost) -> list[str]:
    if (since := boost["idle_since"]) is None:
        return []
    return [f"idle: its work has not used it since {clock(since)}"]


def bold(text: str) -> str:
    return click.style(text, bold=True)
