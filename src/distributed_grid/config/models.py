"""The whole configuration: the cluster, its nodes, and what each may lend."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from distributed_grid.config.checking import SPELLINGS, check
from distributed_grid.config.entries import Steps, dotted, entry_of
from distributed_grid.config.sharing import Settings, SharingConfig
from distributed_grid.config.values import (
    Count,
    CpuCount,
    Cpus,
    CustomAmount,
    EmptyList,
    EmptySection,
    Flag,
    Gigabytes,
    GpuCount,
    Gpus,
    NodeNameText,
    NodeOwner,
    PerSecond,
    Port,
    ResourceName,
    Text,
    Weight,
    one_of,
    units,
    wrong,
)
from distributed_grid.errors import ConfigInvalid
from distributed_grid.model.nodes import SharingLimits
from distributed_grid.model.resources import CPU, GPU, MEMORY
from distributed_grid.model.roles.checks import Wrong
from distributed_grid.model.roles.environment import allow_list
from distributed_grid.model.validators import Number


class NodeRole(StrEnum):
    MASTER = "master"
    WORKER = "worker"


class NodeSharing(Settings):
    """What a node's owner lets others have."""

    can_share: Flag = Field(default=True, description="Whether this node lends at all.")
    max_share_cpu: Cpus | None = Field(
        default=None, description="Maximum CPUs that it lends at a time. Default: whatever is free."
    )
    max_share_memory_gb: Gigabytes | None = Field(
        default=None, description="Maximum GB of memory that it lends at a time. Default: whatever is free."
    )
    max_share_gpu: Gpus | None = Field(
        default=None, description="Maximum GPUs that it lends at a time. Default: whatever is free."
    )
    priority: Weight = Field(
        default=1, description="Among equal lenders, the one with the higher priority lends first."
    )

    def limits(self) -> SharingLimits:
        return SharingLimits(
            can_share=self.can_share,
            max_share_cpu=_units(CPU, self.max_share_cpu),
            max_share_memory=_units(MEMORY, self.max_share_memory_gb),
            max_share_gpu=_units(GPU, self.max_share_gpu),
            priority=float(self.priority),
        )


class NodeConfig(Settings):
    """One node of the cluster."""

    name: NodeNameText = Field(description="The node's name in every command; unique, without spaces or '/'.")
    host: Text | None = Field(default=None, description="Host name or address.")
    port: Port = Field(default=22, description="SSH port.")
    user: Text | None = Field(default=None, description="SSH user.")
    ssh_key_path: Text | None = Field(default=None, description="SSH key file.")
    role: Annotated[NodeRole, one_of(NodeRole)] = Field(
        default=NodeRole.WORKER,
        description="master for the head node (at most one; otherwise the first node), else worker.",
    )
    cpu_count: CpuCount | None = Field(default=None, description="CPUs. Left out: what Ray finds; 1 if embedded.")
    gpu_count: GpuCount | None = Field(default=None, description="GPUs. Left out: what Ray finds; 0 if embedded.")
    memory_gb: Gigabytes | None = Field(
        default=None, description="Memory in GB (2**30 bytes). Left out: what Ray finds; 1 if embedded."
    )
    tags: Annotated[tuple[Text, ...], EmptyList] = Field(default=(), description="Words that group nodes.")
    owners: Annotated[tuple[NodeOwner, ...], EmptyList] = Field(
        default=(),
        description="Users of tokens, and teams as team:NAME, who may change what this node lends to others.",
    )
    resources: Annotated[dict[ResourceName, CustomAmount], EmptySection] = Field(
        default={}, description="Custom Ray resources and how much of each the node has."
    )
    resource_sharing: Annotated[NodeSharing, EmptySection] = Field(
        default=NodeSharing(), description="What this node lends."
    )

    def as_embedded(self) -> "NodeConfig":
        """The same node with the amounts that the embedded cluster starts it with where the file does not say."""
        counts = {"cpu_count": 1, "gpu_count": 0, "memory_gb": 1}
        return self.model_copy(update={key: n for key, n in counts.items() if getattr(self, key) is None})


class CallerLimits(Settings):
    """What the controller lets one user's token ask for. The installation's own token has no limits."""

    requests_per_second: PerSecond = Field(
        default=50,
        description="Maximum requests a second of one token, as a mean over some seconds; one that needs more than "
        "half a millisecond of the controller's CPU time counts as several. Faster requests wait, then are refused.",
    )
    boosts: Count = Field(default=1000, description="Maximum boosts of one user at a time, and programs inside them.")
    waiting: Count = Field(default=200, description="Maximum waiting requests and tasks of one user.")


def _variables(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return allow_list(names)
    except Wrong as error:
        raise wrong(str(error)) from None


class RolesConfig(Settings):
    """Settings that apply to the actors of all roles."""

    env_allow: Annotated[tuple[Text, ...], EmptyList, AfterValidator(_variables)] = Field(
        default=(),
        description="Variables of the launching process that all actors get: names, or patterns such as `LLM_JUDGE_*`.",
    )


class GridConfig(Settings):
    """A cluster's configuration, normalised: however the file spelled a setting, it has one name here."""

    name: Text = Field(default="grid", description="The cluster's name.")
    embedded: Flag = Field(
        default=False,
        description="true: the nodes are raylets that grid starts itself on this machine.",
    )
    nodes: Annotated[tuple[NodeConfig, ...], EmptyList] = Field(default=(), description="The cluster's nodes.")
    resource_sharing: Annotated[SharingConfig, EmptySection] = Field(
        default=SharingConfig(), description="Lending between nodes, for the whole cluster."
    )

    limits: Annotated[CallerLimits, EmptySection] = Field(
        default=CallerLimits(), description="Limits on the requests of each user's token."
    )
    roles: Annotated[RolesConfig, EmptySection] = Field(
        default=RolesConfig(), description="Settings for the actors of all roles."
    )

    @field_validator("nodes", mode="wrap")
    @classmethod
    def _nodes_do_not_clash(cls, given: object, validate: ValidatorFunctionWrapHandler) -> tuple[NodeConfig, ...]:
        # Looked for in what was given, so that a clash is reported together with mistakes inside the nodes.
        problems = _clashes(given)
        try:
            nodes: tuple[NodeConfig, ...] = validate(given)
        except ValidationError as error:
            problems += _details(error)
        if problems:
            raise ValidationError.from_exception_data("nodes", problems)
        return nodes

    @classmethod
    def discovered(cls) -> Self:
        """For a cluster without a file: its nodes are whatever Ray has, and all of them lend."""
        return cls(resource_sharing=SharingConfig(enabled=True))

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """The configuration in `data`, in either spelling; raises `ConfigInvalid` with all that is wrong."""
        config, problems = check(cls, entry_of(dict(data)))
        if config is None:
            raise ConfigInvalid("The configuration is not valid", because=[problem.line() for problem in problems])
        return config

    def to_dict(self) -> dict[str, object]:
        """Every setting as plain JSON data, defaults and kept extras too."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Equal for files that mean the same, whatever their comments, order and spelling."""
        settings = _without_order(self.to_dict(), self.head)
        text = json.dumps(_whole_as_int(settings), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def head(self) -> NodeConfig | None:
        """The master; the first node where none is named so; None where no node is configured."""
        masters = (node for node in self.nodes if node.role is NodeRole.MASTER)
        return next(masters, self.nodes[0] if self.nodes else None)

    def node(self, name: str) -> NodeConfig | None:
        return next((node for node in self.nodes if node.name == name), None)

    def owners_of(self, *names: str) -> tuple[str, ...]:
        """The owners that all these nodes have: users of tokens, and teams as `team:NAME`; none if the file names
        none."""
        of_each = [node.owners if (node := self.node(name)) else () for name in names]
        return tuple(owner for owner in of_each[0] if all(owner in owners for owners in of_each)) if of_each else ()

    def limits_for(self, name: str) -> SharingLimits:
        """The lending limits of this node; a node that the file does not mention has none."""
        node = self.node(name)
        return node.resource_sharing.limits() if node else SharingLimits()


def _units(kind: str, amount: Number | None) -> int | None:
    return None if amount is None else units(kind, amount)


def _clashes(given: object) -> list[InitErrorDetails]:
    """Names used twice, and masters after the first."""
    problems: list[InitErrorDetails] = []
    first_with: dict[str, int] = {}
    master: object = None
    for index, node in enumerate(given if isinstance(given, Sequence) else ()):
        name, role = (_peek(node, field) for field in ("name", "role"))
        if isinstance(name, str) and (first := first_with.setdefault(name, index)) != index:
            said = f"the name {name!r} is taken by nodes[{first}]; every node needs its own"
            problems.append(InitErrorDetails(type=wrong(said), loc=(index, "name"), input=name))
        if role == NodeRole.MASTER and master is not None:
            said = f"{master} is already the master; a cluster has only one"
            problems.append(InitErrorDetails(type=wrong(said), loc=(index, "role"), input=role))
        elif role == NodeRole.MASTER:
            master = name or f"nodes[{index}]"
    return problems


def _peek(node: object, field: str) -> object:
    return node.get(field) if isinstance(node, Mapping) else getattr(node, field, None)


def _details(error: ValidationError) -> list[InitErrorDetails]:
    """Pydantic's problems in the form in which they can be raised again, beside others."""
    return [
        InitErrorDetails(
            type=PydanticCustomError(found["type"], "{said}", {**found.get("ctx", {}), "said": found["msg"]}),
            loc=found["loc"],
            input=found["input"],
        )
        for found in error.errors(include_url=False)
    ]


def _without_order(settings: dict[str, Any], head: NodeConfig | None) -> dict[str, Any]:
    """Sort nodes by name and tags alphabetically. The head may depend on the order, so it is recorded by name."""
    nodes = [
        {**node, "tags": sorted(node["tags"]), "owners": sorted(node["owners"]), "role": None}
        for node in settings["nodes"]
    ]
    by_name = sorted(nodes, key=lambda node: str(node["name"]))
    return {"head": head.name if head else None, "settings": {**settings, "nodes": by_name}}


def _whole_as_int(value: object) -> object:
    """Kept extras may hold 4 or 4.0; they mean the same."""
    if isinstance(value, dict):
        return {key: _whole_as_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_as_int(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_PREFIX = "#/$defs/"


def json_schema() -> dict[str, object]:
    """A JSON Schema of the file, for editors: every setting, in every spelling."""
    schema = GridConfig.model_json_schema()
    for spelling in SPELLINGS:
        setting = _property(schema, schema, spelling.name)
        section = _section(schema, spelling.other[:-1])
        same = {**setting, "description": f"Another spelling of {dotted(spelling.name)}."}
        section.setdefault("properties", {})[spelling.other[-1]] = same
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Distributed Grid configuration",
    }


def _property(schema: dict[str, Any], section: dict[str, Any], path: Steps) -> dict[str, Any]:
    for step in path:
        found: dict[str, object] = _resolved(schema, section)["properties"][step]
        section = found
    return section


def _section(schema: dict[str, Any], path: Steps) -> dict[str, Any]:
    """The section at `path`, made if it exists only in another spelling."""
    section = schema
    for depth, step in enumerate(path, start=1):
        properties = section.setdefault("properties", {})
        made = {"type": "object", "description": f"{dotted(path[:depth])}: settings in another spelling."}
        section = _resolved(schema, properties.setdefault(step, made))
    return section


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref")
    if name is None:
        return part
    found: dict[str, Any] = schema["$defs"][str(name).removeprefix(_PREFIX)]
    return found
