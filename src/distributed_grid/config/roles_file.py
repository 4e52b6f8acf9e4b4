"""The inputs of a plan of roles: a workload as YAML, and a configured cluster, in which everything is free.

The YAML has the same fields as in Python, and every mistake is reported at its place in the file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from distributed_grid.config.entries import Entry, Problem, Steps
from distributed_grid.config.finding import ConfigSource, absolute
from distributed_grid.config.loader import LoadedConfig, invalid, text_of
from distributed_grid.config.models import NodeConfig
from distributed_grid.config.values import units
from distributed_grid.config.yaml_tree import read_tree
from distributed_grid.decide.capacity.feasibility import as_inventory
from distributed_grid.decide.policies import headroom_under
from distributed_grid.errors import ConfigInvalid, InvalidRole, did_you_mean
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Rules
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.roles.plan import Inventory
from distributed_grid.model.roles.profiles import PROFILES
from distributed_grid.model.roles.scaling import SCALING_KEYS
from distributed_grid.model.roles.spec import FIELDS, RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload
from distributed_grid.model.validators import shown

T = TypeVar("T", RoleSpec, Pool)

_WORKLOAD: Final = "workload"
_TOP: Final = ("name", "roles", "resource_pools")
_CLASS: Final = "class"
ROLE_KEYS: Final = ("role", "profile", *(_CLASS if name == "cls" else name for name in FIELDS if name != "role"))
POOL_KEYS: Final = ("name", "num_cpus", "num_gpus", "memory_gb", "resources", "nodes")


@dataclass(frozen=True, slots=True)
class LoadedWorkload:
    workload: Workload
    warnings: tuple[str, ...]
    source: ConfigSource


def load_workload(path: str | Path) -> LoadedWorkload:
    """Read and check a file; raises `ConfigInvalid` with all of its problems at once."""
    source = ConfigSource(absolute(path, Path.cwd()), "the command line")
    root, problems = read_tree(text_of(source, _WORKLOAD), needs="roles")
    if root is None:
        raise invalid(str(source), problems, _WORKLOAD)
    reader = _Reader(root)
    workload = reader.workload(default_name=source.path.stem.replace(" ", "-"))
    problems += reader.problems
    if workload is None or problems:
        raise invalid(str(source), problems, _WORKLOAD)
    warnings = sorted(reader.warnings, key=lambda one: one.place or (0, 0))
    return LoadedWorkload(workload, tuple(one.line(str(source)) for one in warnings), source)


class _Reader:
    """Builds roles and pools from entries, and collects what is wrong on the way."""

    def __init__(self, root: Entry) -> None:
        self._root = root
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def workload(self, default_name: str) -> Workload | None:
        self._say_unknown(self._root, _TOP)
        pools = [self._made(Pool, "name", *one) for one in self._named("resource_pools", POOL_KEYS)]
        roles = [self._made(RoleSpec, "role", *one) for one in self._named("roles", ROLE_KEYS)]
        if not self._root.child("roles"):
            self.problems.append(Problem(("roles",), "is missing", self._root.place))
        name = self._root.child("name")
        found = default_name if name is None or name.value is None else cast("str", name.plain())  # checked by Workload
        if self.problems:
            return None
        try:
            return Workload(found, tuple(filter(None, roles)), tuple(filter(None, pools)))
        except InvalidRole as error:
            self._note(error, self._root)
            return None

    def _named(self, section: str, known: tuple[str, ...]) -> Iterator[tuple[str | None, Entry]]:
        """The entries of a section with their names: a mapping by name, or a list of mappings that contain theirs."""
        entry = self._root.child(section)
        if entry is None or entry.value is None:
            return
        if not isinstance(entry.value, dict | list):
            self._wrong(entry, f"must be a mapping by name, or a list, not {shown(entry.plain())}")
            return
        by_name = entry.value.items() if isinstance(entry.value, dict) else ((None, one) for one in entry.value)
        for name, one in by_name:
            if not isinstance(one.value, dict) and not (one.value is None and name is not None):
                self._wrong(one, f"must be a mapping, not {shown(one.plain())}")
                continue
            self._say_unknown(one, known if name is None else known[1:])
            yield name, one

    def _made(self, make: Callable[..., T], key: str, name: str | None, entry: Entry) -> T | None:
        given = {step: child.plain() for step, child in entry.section.items() if child.value is not None}
        fields = self._fields(entry, given) if make is RoleSpec else {k: v for k, v in given.items() if k in POOL_KEYS}
        said = name if name is not None else given.get(key)
        if said is None:
            self.problems.append(Problem((*entry.path, key), "is missing", entry.place))
            return None
        fields[key] = said
        try:
            return make(**fields)
        except InvalidRole as error:
            self._note(error, entry)
            return None

    def _fields(self, entry: Entry, given: dict[str, object]) -> dict[str, object]:
        """A role's own fields, on top of those of its profile."""
        fields = {key: value for key, value in given.items() if key in FIELDS}
        if _CLASS in given:
            fields["cls"] = given[_CLASS]
        if isinstance(count := fields.get("count"), dict) and count.keys() == {"min", "max"}:
            fields["count"] = (count["min"], count["max"])
        if isinstance(scaling := fields.get("scaling"), dict):
            self._say_unknown(entry.section["scaling"], SCALING_KEYS)
            fields["scaling"] = {key: value for key, value in scaling.items() if key in SCALING_KEYS}
        if "profile" not in given:
            return fields
        profile = given["profile"]
        if not isinstance(profile, str) or profile not in PROFILES:
            hint = did_you_mean(profile, PROFILES) if isinstance(profile, str) else ""
            self._wrong(entry.section["profile"], f"must be one of {', '.join(PROFILES)}, not {shown(profile)}{hint}")
            return fields
        return {**PROFILES[profile], **fields}

    def _note(self, error: InvalidRole, entry: Entry) -> None:
        """Add the problems of a role, a pool or the workload, at their places."""
        for steps, said in error.problems:
            path = tuple(_CLASS if step == "cls" else step for step in steps)
            near, missing = self._located(entry, path)
            self.problems.append(Problem((*near.path, *missing), said, near.place))

    def _located(self, entry: Entry, path: Steps) -> tuple[Entry, Steps]:
        """Roles in a list are found by the name that they contain."""
        section = entry.child(path[0]) if path else None
        if section is not None and isinstance(section.value, list) and len(path) > 1:
            names = [one.child("role") or one.child("name") for one in section.value]
            at = next((n for n, name in enumerate(names) if name is not None and name.value == path[1]), None)
            if at is not None:
                path = (path[0], at, *path[2:])
        return entry.nearest(path)

    def _say_unknown(self, entry: Entry, known: Iterable[str]) -> None:
        names = tuple(known)
        for key, child in entry.section.items():
            if key not in names:
                said = f"unknown key {key!r} (ignored){did_you_mean(key, names)}"
                self.warnings.append(Problem(child.path, said, child.key_place))

    def _wrong(self, entry: Entry, said: str) -> None:
        self.problems.append(Problem(entry.path, said, entry.place))


_FIELDS = {CPU: "cpu_count", GPU: "gpu_count", MEMORY: "memory_gb"}


def inventory_of(loaded: LoadedConfig) -> Inventory:
    """The cluster as its configuration describes it. Raises `ConfigInvalid` if a node does not state its CPUs."""
    config = loaded.config
    silent = [node.name for node in config.nodes if node.cpu_count is None]
    if silent or not config.nodes:
        raise ConfigInvalid(
            f"The configuration {loaded.source} does not state what its nodes have",
            because=[f"{name}: cpu_count is missing" for name in silent] or ["it has no nodes"],
            try_next="Write cpu_count, gpu_count and memory_gb of each node, or use --cluster live.",
        )
    sharing = config.resource_sharing
    nodes = NodeTable(_node(node) for node in config.nodes)
    rules = Rules(headroom=headroom_under(sharing.policy, float(sharing.thresholds.excess_threshold)))
    return as_inventory(nodes, rules=rules if sharing.enabled else None)


def not_said(loaded: LoadedConfig, kinds: set[str]) -> list[str]:
    """Kinds that matter but that no node states: they count as zero, which the user should know."""
    nodes = loaded.config.nodes
    return [
        f"{loaded.source}: no node has {_FIELDS[kind]}, which counts as 0"
        for kind in BUILT_IN
        if kind in kinds and all(getattr(node, _FIELDS[kind]) is None for node in nodes)
    ]


def _node(node: NodeConfig) -> Node:
    given = {kind: getattr(node, field) or 0 for kind, field in _FIELDS.items()} | node.resources
    has = ResourceVector({kind: units(kind, amount) for kind, amount in given.items()})
    labels = {"grid/name": node.name} | _labels(node.tags)
    return Node(node.name, "", has, has, has, limits=node.resource_sharing.limits(), labels=labels)


def _labels(tags: tuple[str, ...]) -> dict[str, str]:
    """A tag written as key=value stands for the label that the node's Ray is started with."""
    pairs = (tag.partition("=") for tag in tags)
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}
