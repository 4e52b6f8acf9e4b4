"""Amounts of resources as people read them."""

from collections.abc import Mapping

from distributed_grid.model.resources import CPU, GPU, describe, scale, unit_label


def quantity(kind: str, amount: float) -> str:
    """ "4 GB of memory": for sentences."""
    return describe(kind, round(amount * scale(kind)))


def short(amount: float) -> str:
    """ "7.5"; above a hundred nobody reads tenths."""
    return f"{amount:.0f}" if abs(amount) >= 100 else f"{amount:.1f}".removesuffix(".0")


def labelled(kind: str, amount: float) -> str:
    """ "4 CPUs", "1 GPU", "7.5 GB"."""
    label = unit_label(kind)
    return f"{short(amount)} {label[:-1] if amount == 1 and kind in (CPU, GPU) else label}"


def listed(amounts: Mapping[str, float]) -> str:
    """ "4 CPUs, 2 GB"; "-" for nothing."""
    return ", ".join(labelled(kind, amount) for kind, amount in amounts.items() if amount) or "-"


def first_of(amounts: Mapping[str, float]) -> str:
    """ "4 CPUs +1": the first, and how many more kinds there are."""
    there = [labelled(kind, amount) for kind, amount in amounts.items() if amount]
    more = f" +{len(there) - 1}" if len(there) > 1 else ""
    return f"{there[0]}{more}" if there else "-"
