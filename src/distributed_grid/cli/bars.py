"""Fractions as bars and curves, in blocks or, where a terminal has none, in ASCII."""

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.-:=+*#"
_HIGH, _VERY_HIGH = 0.6, 0.85


def bar(fraction: float, width: int, blocks: bool = True) -> str:
    """ "███▌░░": exactly `width` wide. What is above zero shows at least a little."""
    inside = min(1.0, max(0.0, fraction))
    if not blocks:
        full = round(inside * width)
        return "#" * full + "." * (width - full)
    eighths = max(round(inside * width * 8), 1 if inside > 0 else 0)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[part] if part else "")
    return drawn + "░" * (width - len(drawn))


def curve(values: Sequence[float | None], width: int, blocks: bool = True) -> str:
    """ "▁▂▅█": fractions from the oldest to the newest. What is not known is a gap, never low."""
    levels = _LEVELS if blocks else _PLAIN_LEVELS
    return "".join(
        " " if value is None else levels[min(7, max(0, int(value * 8)))] for value in _thinned(values, width)
    )


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many values as there is room for: each the mean of its neighbours that are known."""
    count = len(values)
    if count <= width:
        return list(values)
    groups = [values[i * count // width : (i + 1) * count // width] for i in range(width)]
    known = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in known]


def colour(fraction: float) -> str:
    return "red" if fraction >= _VERY_HIGH else "yellow" if fraction >= _HIGH else "green"


def percent(fraction: float | None) -> str:
    """ "45%"; "-" where it is not known."""
    return "-" if fraction is None else f"{fraction * 100:.0f}%"
