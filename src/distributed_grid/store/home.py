"""`GRID_HOME`: the folder with all state of one installation."""

import os
from dataclasses import dataclass
from pathlib import Path

from distributed_grid.errors import StoreBroken


@dataclass(frozen=True, slots=True)
class GridHome:
    """The path of each thing. Installations with different homes are independent."""

    path: Path

    @classmethod
    def find(cls, environ: "os._Environ[str] | dict[str, str] | None" = None) -> "GridHome":
        chosen = (os.environ if environ is None else environ).get("GRID_HOME")
        return cls(Path(chosen).expanduser().absolute() if chosen else Path.home() / ".distributed_grid")

    def create(self) -> "GridHome":
        """Make the folder, readable by its owner only."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreBroken(
                f"Cannot create {self.path}: {error.strerror}",
                try_next="Set GRID_HOME to a folder that you can write to.",
            ) from error
        return self

    @property
    def boosts(self) -> Path:
        return self.path / "resource_boosts.json"

    @property
    def sharing(self) -> Path:
        """Waiting requests, tasks, cordoned nodes, teams' usage, and settings made by command."""
        return self.path / "sharing.json"

    @property
    def history(self) -> Path:
        """The measurements of the last hour."""
        return self.path / "history.bin"

    @property
    def audit_log(self) -> Path:
        return self.path / "audit.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the one writer of the boost file."""
        return self.path / "writer.lock"

    @property
    def token(self) -> Path:
        """The installation's own token, which may do everything."""
        return self.path / "token"

    @property
    def tokens(self) -> Path:
        """The users' tokens, as hashes."""
        return self.path / "tokens.json"

    @property
    def login(self) -> Path:
        """The remote controller that `grid login` was given, and the token for it."""
        return self.path / "login.json"

    @property
    def controller(self) -> Path:
        """The URL, pid and Ray address of the running controller."""
        return self.path / "controller.json"

    @property
    def stopped(self) -> Path:
        """Exists from the removal of grid from the cluster until its next start."""
        return self.path / "stopped.json"

    @property
    def supervisor(self) -> Path:
        """The order of the background supervisor, so that another can replace it."""
        return self.path / "supervisor.json"

    @property
    def cluster(self) -> Path:
        """The processes of the embedded cluster that `grid cluster start` began."""
        return self.path / "cluster.json"

    @property
    def reclaim(self) -> Path:
        """The reclaim notices, one file for each boost that is being reclaimed."""
        return self.path / "reclaim"

    @property
    def runs(self) -> Path:
        """A folder for each program that was run with `grid run` from here."""
        return self.path / "runs"

    @property
    def roles(self) -> Path:
        """A folder for each run of roles that was started with `grid roles up` from here, with its output."""
        return self.path / "roles"

    @property
    def logs(self) -> Path:
        return self.path / "logs"
