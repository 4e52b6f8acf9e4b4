"""Suggestions in `grid cluster status`, as a person sees them."""

import shlex
from typing import Any

import click

from distributed_grid.cli.cluster_view import suggestion_lines
from distributed_grid.cli.columns import Canvas

ONE: dict[str, Any] = {
    "what": "gpu-master will run out of memory in about 20 minutes; gpu2 can lend 9 GB of memory",
    "reason": "memory at 85% is expected then, the limit is 80% (now 62%, rising by 0.9 points a minute)",
    "how_sure": "very likely (93%): 200 such forecasts verified, off by 2% on average",
    "command": "grid boost request gpu-master memory 9 --source gpu2 --duration 3600",
    "by_itself": False,
}


def shown(one: dict[str, Any], width: int | None) -> list[str]:
    return [click.unstyle(line) for line in suggestion_lines([one], Canvas(width))]


def test_it_says_what_why_how_sure_and_the_command() -> None:
    assert shown(ONE, 80) == [
        "Suggestions:",
        "  gpu-master will run out of memory in about 20 minutes; gpu2 can lend 9 GB of",
        "      memory",
        "      memory at 85% is expected then, the limit is 80% (now 62%, rising by 0.9",
        "      points a minute)",
        "      very likely (93%): 200 such forecasts verified, off by 2% on average",
        "      grid boost request gpu-master memory 9 --source gpu2 --duration 3600",
    ]


def test_it_says_where_nothing_needs_to_be_done() -> None:
    assert any(
        line.endswith("grid does this automatically if it lasts") for line in shown(ONE | {"by_itself": True}, None)
    )


def test_a_command_that_is_too_long_for_the_terminal_can_still_be_pasted() -> None:
    *_, first, second = shown(ONE | {"command": f"{ONE['command']} --delivery reserve"}, 80)

    assert max(len(first), len(second)) <= 80
    pasted = "\n".join((first, second)).replace("\\\n", " ")
    assert shlex.split(pasted) == shlex.split(f"{ONE['command']} --delivery reserve")


def test_where_nothing_would_help_there_is_nothing_to_read() -> None:
    assert suggestion_lines([], Canvas(80)) == []
