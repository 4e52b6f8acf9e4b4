"""Keys and values that all would share in a cluster, here in one process; processes die when told."""

from collections.abc import Iterable


class FakeKeyValueStore:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.dead: set[str] = set()
        self.standing: dict[str, str] = {}
        """Placement groups: their names, by id."""

    def put(self, key: str, value: bytes, *, replace: bool) -> bool:
        if key in self.kept and not replace:
            return False
        self.kept[key] = value
        return True

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.kept if key.startswith(prefix)]

    def remove(self, key: str) -> bool:
        return self.kept.pop(key, None) is not None

    def dead_workers(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(self.dead & set(worker_ids))

    def groups(self) -> dict[str, str]:
        return dict(self.standing)

    def remove_group(self, group_id: str) -> None:
        self.standing.pop(group_id, None)
