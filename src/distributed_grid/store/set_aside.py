"""Boosts of other clusters that were found in this home: one file for each cluster, beside the boost file."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from distributed_grid.errors import StoreBroken
from distributed_grid.model.leases import Lease
from distributed_grid.store.boost_file import BoostFile, ClusterIdentity
from distributed_grid.store.durable import free_name


@dataclass(frozen=True, slots=True)
class Kept:
    """The boosts of one cluster, and their file."""

    path: Path
    cluster: ClusterIdentity
    leases: tuple[Lease, ...]


class SetAside:
    """Everything kept beside one boost file, as `resource_boosts.json.of-NAME`. For the file's one writer."""

    def __init__(self, boosts: Path) -> None:
        self._boosts = boosts

    def keep(self, leases: Iterable[Lease], cluster: ClusterIdentity) -> None:
        """Put boosts of another cluster on disk; its boosts already kept stay, except older states of these."""
        kept = self._of(cluster)
        together = {lease.id: lease for lease in (*kept.leases, *leases)}
        BoostFile(kept.path).save(tuple(together.values()), cluster)

    def all(self) -> tuple[list[Kept], list[str]]:
        """Everything that is kept, and what a person should know about files that cannot be read."""
        found: list[Kept] = []
        problems: list[str] = []
        for path in self.paths():
            try:
                loaded = BoostFile(path).load()
            except StoreBroken as error:
                problems.append(error.message)
                continue
            problems += loaded.problems
            if loaded.cluster is not None:
                found.append(Kept(path, loaded.cluster, loaded.leases))
        return found, problems

    def paths(self) -> list[Path]:
        """One file for each cluster; other files beside them are older versions, and damaged ones."""
        begin = f"{self._boosts.name}.of-"
        return sorted(
            path for path in self._boosts.parent.glob(f"{begin}*") if "." not in path.name.removeprefix(begin)
        )

    def leave(self, kept: Kept, leases: tuple[Lease, ...]) -> None:
        """Keep only these leases of one cluster; without any, remove its file."""
        file = BoostFile(kept.path)
        if leases:
            file.save(leases, kept.cluster)
            return
        try:
            for path in (file.path, file.previous):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreBroken(f"Cannot remove {kept.path}: {error.strerror}") from error

    def _of(self, cluster: ClusterIdentity) -> Kept:
        """The kept boosts of this cluster, possibly none."""
        for kept in self.all()[0]:
            if kept.cluster.same_cluster(cluster):
                return kept
        # A dot would look like one of grid's own endings.
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster.name)[:60]
        return Kept(free_name(self._boosts, f".of-{name}"), cluster, ())
