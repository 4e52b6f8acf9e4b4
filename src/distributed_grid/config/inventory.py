"""A cluster as its configuration describes it, for planning before it exists: everything is free."""

from distributed_grid.config.loader import LoadedConfig
from distributed_grid.config.models import NodeConfig
from distributed_grid.config.values import units
from distributed_grid.errors import ConfigInvalid
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.roles.plan import Inventory, InventoryNode

_FIELDS = {CPU: "cpu_count", GPU: "gpu_count", MEMORY: "memory_gb"}


def inventory_of(loaded: LoadedConfig) -> Inventory:
    """Raises `ConfigInvalid` if a node does not state its CPUs: without Ray, a file cannot find out."""
    config = loaded.config
    silent = [node.name for node in config.nodes if node.cpu_count is None]
    if silent or not config.nodes:
        raise ConfigInvalid(
            f"The configuration {loaded.source} does not say what its nodes have",
            because=[f"{name}: cpu_count is missing" for name in silent] or ["it has no nodes"],
            try_next="Write cpu_count, gpu_count and memory_gb of each node, or use --cluster live.",
        )
    return Inventory(_node(node, config.resource_sharing.enabled) for node in config.nodes)


def not_said(loaded: LoadedConfig, kinds: set[str]) -> list[str]:
    """Kinds that matter but that no node states: they count as zero, which the user should know."""
    nodes = loaded.config.nodes
    return [
        f"{loaded.source}: no node says its {_FIELDS[kind]}, which counts as 0"
        for kind in BUILT_IN
        if kind in kinds and all(getattr(node, _FIELDS[kind]) is None for node in nodes)
    ]


def _node(node: NodeConfig, sharing: bool) -> InventoryNode:
    given = {kind: getattr(node, field) or 0 for kind, field in _FIELDS.items()} | node.resources
    has = ResourceVector({kind: units(kind, amount) for kind, amount in given.items()})
    limits = node.resource_sharing.limits()
    lends = {k: u if (limit := limits.limit(k)) is None else min(u, limit) for k, u in has.items()}
    return InventoryNode(
        name=node.name,
        free=has,
        total=has,
        labels={"grid/name": node.name} | _labels(node.tags),
        lends=ResourceVector(lends if sharing and limits.can_share else {}),
    )


def _labels(tags: tuple[str, ...]) -> dict[str, str]:
    """A tag written as key=value stands for the label that the node's Ray is started with."""
    pairs = (tag.partition("=") for tag in tags)
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}
