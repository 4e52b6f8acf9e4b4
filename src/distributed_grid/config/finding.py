"""Which configuration file to use."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from distributed_grid.errors import ConfigInvalid

FILE_NAME: Final = "my-cluster-enhanced.yaml"


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A file, and where its name came from (for messages)."""

    path: Path
    origin: str

    def __str__(self) -> str:
        """The path, as short as it is clear from the current folder."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except (ValueError, OSError):
            return str(self.path)


def find_config(explicit: str | Path | None, environ: Mapping[str, str], cwd: Path) -> ConfigSource:
    """The first of: the one named on the command line, `GRID_CONFIG`, the current folder's, the packaged one.

    A file that was named must exist; falling back to another one would run the wrong cluster.
    """
    if explicit is not None:
        return _named(explicit, "the command line", cwd)
    if chosen := environ.get("GRID_CONFIG"):
        return _named(chosen, "GRID_CONFIG", cwd)
    local = cwd / "config" / FILE_NAME
    if _may_exist(local):
        return ConfigSource(local, "the current folder")
    return packaged_config()


def packaged_config() -> ConfigSource:
    """The example that comes with grid: a small embedded cluster."""
    return ConfigSource(Path(str(files("distributed_grid.config") / FILE_NAME)), "the packaged example")


def absolute(path: str | Path, cwd: Path) -> Path:
    try:
        return cwd / Path(path).expanduser()
    except RuntimeError:  # "~name" of an unknown user: a name like any other
        return cwd / path


def _may_exist(path: Path) -> bool:
    """False only if the path certainly does not exist; otherwise, reading reports the error."""
    try:
        return path.exists()
    except OSError:
        return True


def _named(path: str | Path, origin: str, cwd: Path) -> ConfigSource:
    source = ConfigSource(absolute(path, cwd), origin)
    if not _may_exist(source.path):
        raise ConfigInvalid(
            f"There is no configuration file {source}",
            because=[f"{source}: does not exist (named by {origin})"],
            try_next=f"Name a file that exists, or name none and use config/{FILE_NAME}.",
        )
    return source
