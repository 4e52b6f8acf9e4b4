"""Findings as text, for `grid doctor` and `grid audit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, cast

import click

from distributed_grid.cli.columns import GAP, Canvas
from distributed_grid.cli.tables import bold

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditFinding, LeftFinding

_COLOURS: Final = {
    **{"ok": "green", "warn": "yellow", "fail": "red", "skip": None},
    **{"open": "red", "left": "red", "repaired": "green", "settled": None},
}
_TO_DO: Final = ("warn", "fail", "skip", "open", "left")


def findings_view(
    rows: Sequence[tuple[str, AuditFinding | LeftFinding]],
    canvas: Canvas,
    *,
    heading: str = "Finding",
    with_meaning: bool = False,
) -> str:
    """A line for each finding with its status, then what the codes mean and what to do."""
    about = [_about(finding) for _, finding in rows]
    nothing = "-" if any(about) or canvas.width is None else ""
    cells = [(finding["code"], who or nothing, status) for (status, finding), who in zip(rows, about, strict=True)]
    header = (heading, "About" if nothing else "", "Status")
    widths = [max(len(row[i]) for row in (header, *cells)) for i in range(3)]

    def prefix(row: Sequence[str], colour: str | None = None) -> tuple[str, str]:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        shown = [padded[0], padded[1], click.style(padded[2], fg=colour)]
        gap = " " * GAP
        return gap.join(p for p, w in zip(padded, widths, strict=True) if w) + gap, gap.join(
            p for p, w in zip(shown, widths, strict=True) if w
        ) + gap

    lines = [bold(prefix(header)[0] + "Detail")]
    for (status, finding), row in zip(rows, cells, strict=True):
        plain, shown = prefix(row, _COLOURS.get(status))
        texts = [finding["detail"], *(f"- {work}" for work in finding.get("work", ()))]
        if (left := cast("LeftFinding", finding).get("left_because")) is not None:
            texts.append(f"left because {left}")
        below = " " * len(plain)
        wrapped = [line for text in texts for line in canvas.wrapped(text, indent=below)]
        lines += [shown + wrapped[0][len(plain) :], *wrapped[1:]]
    if with_meaning:
        meanings = dict.fromkeys((finding["code"], finding["meaning"]) for _, finding in rows)
        lines += ["", bold("What it means:"), *_listed((f"{code}: {what}" for code, what in meanings), canvas)]
    to_do: dict[str, list[str]] = {}
    for (status, finding), who in zip(rows, about, strict=True):
        if status in _TO_DO and finding["what_to_do"]:
            names = to_do.setdefault(finding["what_to_do"], [])
            name = finding["code"] if with_meaning or not who else f"{finding['code']} {who}"
            names += [name] * (name not in names)
    if to_do:
        lines += [
            "",
            bold("To do:"),
            *_listed((f"{', '.join(names)}: {what}" for what, names in to_do.items()), canvas),
        ]
    return "\n".join(lines)


def _about(finding: AuditFinding) -> str:
    return str(finding["subject"][:8] if finding["subject"] == finding["boost_id"] else finding["subject"])


def _listed(lines: Iterable[str], canvas: Canvas) -> list[str]:
    return [piece for line in lines for piece in canvas.wrapped(line, indent="    ", first="  ")]
