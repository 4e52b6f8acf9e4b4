"""From a file to a checked configuration that knows where each value came from; unknown keys are reported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypedDict, get_args

from pydantic import BaseModel

from distributed_grid.config.checking import check, is_section, other_spellings
from distributed_grid.config.entries import Entry, Problem, Steps, dotted, leaves
from distributed_grid.config.finding import ConfigSource, absolute, find_config
from distributed_grid.config.models import GridConfig
from distributed_grid.config.yaml_tree import place_at, read_tree
from distributed_grid.errors import ConfigInvalid, did_you_mean

_LARGEST: Final = 4 * 2**20
"""A thousand nodes take a tenth of that. A device such as /dev/zero has no end."""


def unknown_keys(model: type[BaseModel], root: Entry) -> list[Problem]:
    """A warning for each unknown key, in file order. Expects entries in one spelling."""
    found = list(_in_section(model, root, ()))
    return sorted(found, key=lambda problem: problem.place or (0, 0))


def _in_section(model: type[BaseModel] | None, entry: Entry, path: Steps) -> Iterable[Problem]:
    if not isinstance(entry.value, dict):
        return
    fields = model.model_fields if model else {}
    known = [*fields, *other_spellings().get(path, ())]
    for key, child in entry.value.items():
        if key in fields:
            nested = _model_in(fields[key].annotation)
            if nested and isinstance(child.value, list):
                for index, item in enumerate(child.value):
                    yield from _in_section(nested, item, (*path, key, index))
            elif nested:
                yield from _in_section(nested, child, (*path, key))
        elif is_section((*path, key)):
            yield from _in_section(None, child, (*path, key))
        else:
            said = f"unknown key {key!r} (ignored){did_you_mean(key, known)}"
            yield Problem(child.path, said, child.key_place)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model of a section, or of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


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
    too_much = _too_much_guaranteed(config, root)
    if config.embedded and too_much:  # nothing else will ever be in the cluster
        raise invalid(file, too_much)
    return LoadedConfig(
        config=config,
        warnings=tuple(problem.line(file) for problem in (*unknown_keys(GridConfig, root), *too_much)),
        source=source,
        origins=_origins(config, root, file),
    )


def _too_much_guaranteed(config: GridConfig, root: Entry) -> list[Problem]:
    """Kinds of which the teams are guaranteed more than all nodes have; only where every node's amount is known."""
    path = ("resource_sharing", "teams")
    entry = root.find(path)
    nodes = [node.as_embedded() if config.embedded else node for node in config.nodes]
    found = []
    for kind, field in (("cpu", "cpu_count"), ("gpu", "gpu_count"), ("memory_gb", "memory_gb")):
        has = [getattr(node, field) for node in nodes]
        given = sum(getattr(team.guaranteed, kind) or 0 for team in config.resource_sharing.teams)
        if has and None not in has and given > sum(has):
            said = f"teams are guaranteed {given:g} {kind} in total, but all nodes together have {sum(has):g}"
            found.append(Problem(path, said, entry.place if entry else None))
    return found


def text_of(source: ConfigSource, what: str = "configuration") -> str:
    """The text of the file; `what` names its kind in messages."""
    try:
        with source.path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigInvalid(
            f"Cannot read the {what} {source}",
            because=[f"{source}: {error.strerror} (named by {source.origin})"],
            try_next="Name a file that you can read.",
        ) from error
    if len(raw) > _LARGEST:
        raise ConfigInvalid(
            f"{source} is not a {what}: it is larger than {_LARGEST // 2**20} MB",
            because=[f"named by {source.origin}"],
            try_next="Name the right file.",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = place_at(raw.decode("latin-1"), error.start)
        raise invalid(str(source), [Problem(("syntax",), "is not UTF-8 text", place)], what) from None


def invalid(file: str, problems: Iterable[Problem], what: str = "configuration") -> ConfigInvalid:
    """Everything wrong with a file, in its order."""
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


Setting = TypedDict("Setting", {"value": object, "from": str})
"""`from`: file:line:column, or "default"."""


class Effective(TypedDict):
    """Every setting in force, by its path."""

    source: str
    named_by: str
    values: dict[str, Setting]


def effective_in_controller(source: str, running: Mapping[str, object]) -> Effective:
    """The same for the configuration that a controller runs: its places in the file are no longer known."""
    return {
        "source": source,
        "named_by": "the running controller",
        "values": {dotted(steps): {"value": value, "from": source} for steps, value in leaves(running)},
    }


def effective(loaded: LoadedConfig) -> Effective:
    return {
        "source": str(loaded.source),
        "named_by": loaded.source.origin,
        "values": {
            dotted(steps): {"value": value, "from": loaded.origins.get(dotted(steps), "default")}
            for steps, value in leaves(loaded.config.to_dict())
        },
    }


ConfigLike: TypeAlias = GridConfig | str | Path | None


def loaded_config(config: ConfigLike) -> GridConfig:
    """The configuration; for None, one whose nodes are those of the cluster."""
    if config is None:
        return GridConfig.discovered()
    if isinstance(config, GridConfig):
        return config
    return load_config(find_config(config, {}, Path.cwd())).config
