"""Whether a node's labels meet a selector, as Ray's scheduler reads both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """One condition on one label."""

    key: str
    among: frozenset[str] | None
    """None: any value."""
    negated: bool = False

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """As in Ray, a missing label has no value and so matches no list."""
        value = labels.get(self.key)
        found = value is not None and (self.among is None or value in self.among)
        return found != self.negated

    def __str__(self) -> str:
        if self.among is None:
            return f"no {self.key}" if self.negated else f"any {self.key}"
        values = ", ".join(sorted(self.among))
        return f"{self.key}{'!=' if self.negated else '='}{values}"


def needs_of(selector: Mapping[str, str]) -> tuple[Need, ...]:
    """Ray's `label_selector`: "a", "!a", "in(a, b)" or "!in(a, b)" for each key."""
    return tuple(_need(key, condition.strip()) for key, condition in selector.items())


def _need(key: str, condition: str) -> Need:
    negated = condition.startswith("!")
    values = condition.removeprefix("!").strip()
    if values.endswith(")") and "(" in values:
        listed = values[values.index("(") + 1 : -1].split(",")
        return Need(key, frozenset(value.strip() for value in listed), negated)
    return Need(key, frozenset({values}), negated)


def unmet(needs: Iterable[Need], labels: Mapping[str, str]) -> tuple[Need, ...]:
    return tuple(need for need in needs if not need.met_by(labels))
