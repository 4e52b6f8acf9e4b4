"""Which nodes are meant: by name, or by a label as "key=value"."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.roles.checks import Wrong, texts


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Names are alternatives, and so are several values of one key; different keys, and names, must all hold."""

    names: tuple[NodeName, ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Each key with its values."""

    @classmethod
    def parse(cls, value: object) -> "NodeSelector":
        """From a list such as ["gpu1", "zone=a", "zone=b"]."""
        if isinstance(value, cls):
            return value
        names: list[NodeName] = []
        labels: dict[str, list[str]] = {}
        for word in texts(value):
            key, is_label, text = (part.strip() for part in word.partition("="))
            if not is_label:
                names.append(key)
            elif not key or not text:
                raise Wrong(f"{word!r} is no label; write key=value")
            else:
                labels.setdefault(key, []).append(text)
        return cls(tuple(names), tuple((key, tuple(dict.fromkeys(found))) for key, found in labels.items()))

    def __bool__(self) -> bool:
        return bool(self.names or self.labels)

    def allows(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        """Every part holds; with no part, every node does."""
        return (not self.names or name in self.names) and all(labels.get(key) in found for key, found in self.labels)

    def touches(self, name: NodeName, labels: Mapping[str, str]) -> bool:
        """Any part holds: what must be avoided."""
        return name in self.names or any(labels.get(key) in found for key, found in self.labels)

    def describe(self) -> str:
        """ "gpu1 or gpu2, zone=a or b"."""
        parts = [" or ".join(self.names)] if self.names else []
        return ", ".join([*parts, *(f"{key}={' or '.join(found)}" for key, found in self.labels)])

    def words(self) -> list[str]:
        """As it is written in a list."""
        return [*self.names, *(f"{key}={text}" for key, found in self.labels for text in found)]
