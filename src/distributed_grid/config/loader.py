"""From a file to a checked configuration that knows where each of its values came from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from distributed_grid.config.checking import check
from distributed_grid.config.entries import Entry, Problem, dotted, leaves
from distributed_grid.config.finding import ConfigSource, absolute
from distributed_grid.config.models import GridConfig
from distributed_grid.config.unknown import unknown_keys
from distributed_grid.config.yaml_tree import place_at, read_tree
from distributed_grid.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and its file. `origins` tells for every setting `file:line:column`, or `default`."""

    config: GridConfig
    warnings: tuple[str, ...]
    source: ConfigSource
    origins: Mapping[str, str]


def load_config(source: ConfigSource | str | Path) -> LoadedConfig:
    """Read, normalise and check a file; raises `ConfigInvalid` with all of its problems at once."""
    if not isinstance(source, ConfigSource):
        source = ConfigSource(absolute(source, Path.cwd()), "the caller")
    file = str(source)
    root, problems = read_tree(text_of(source))
    if root is None:
        raise invalid(file, problems)
    config, found = check(GridConfig, root)
    problems += found
    if config is None or problems:
        raise invalid(file, problems)
    return LoadedConfig(
        config=config,
        warnings=tuple(problem.line(file) for problem in unknown_keys(GridConfig, root)),
        source=source,
        origins=_origins(config, root, file),
    )


def text_of(source: ConfigSource, what: str = "configuration") -> str:
    """What is in the file; `what`: what it is, for messages."""
    try:
        raw = source.path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(
            f"Cannot read the {what} {source}",
            because=[f"{source}: {error.strerror} (named by {source.origin})"],
            try_next="Name a file that you can read.",
        ) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = place_at(raw.decode("latin-1"), error.start)
        raise invalid(str(source), [Problem(("syntax",), "is not UTF-8 text", place)], what) from None


def invalid(file: str, problems: Iterable[Problem], what: str = "configuration") -> ConfigInvalid:
    """All that is wrong with a file, in its order."""
    check = f"grid config check {file}" if what == "configuration" else f"grid roles plan {file}"
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.place or (0, 0))
    count = "a problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return ConfigInvalid(
        f"The {what} {file} has {count}",
        because=[problem.line(file) for problem in ordered],
        try_next=f"Correct the file, then check it: {check}",
    )


def _origins(config: GridConfig, root: Entry, file: str) -> dict[str, str]:
    origins: dict[str, str] = {}
    for steps, _ in leaves(config.to_dict()):
        entry = root.find(steps)
        origins[dotted(steps)] = f"{file}:{entry.place}" if entry else "default"
    return origins
