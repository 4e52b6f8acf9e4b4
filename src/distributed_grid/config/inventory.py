"""A cluster as its configuration describes it, for planning before it exists: everything is free."""

from distributed_grid.config.loader import LoadedConfig
from distributed_grid.config.models import NodeConfig
from distributed_grid.config.values import units
from distributed_grid.decide.capacity.feasibility import lendable
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import headroom_under
from distributed_grid.errors import ConfigInvalid
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Rules
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.roles.plan import Inventory

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
    sharing = config.resource_sharing
    nodes = NodeTable(_node(node) for node in config.nodes)
    rules = Rules(headroom=headroom_under(sharing.policy, float(sharing.thresholds.excess_threshold)))
    lends = {node.name: lendable(node, Usage(), rules) for node in nodes.values()} if sharing.enabled else {}
    return Inventory.of_nodes(nodes, lends)


def not_said(loaded: LoadedConfig, kinds: set[str]) -> list[str]:
    """Kinds that matter but that no node states: they count as zero, which the user should know."""
    nodes = loaded.config.nodes
    return [
        f"{loaded.source}: no node says its {_FIELDS[kind]}, which counts as 0"
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
