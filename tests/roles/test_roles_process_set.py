"""What each process of a run finds in its environment, wherever the others are."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.processes import ProcessSpec, ProcessStatus
from distributed_grid.roles.calls.endpoints import EndpointRegistry
from distributed_grid.roles.supervision.managed import ManagedProcess, ProcessSet


class Started:
    """Stands for what makes actors: keeps what it was told."""

    def __init__(self) -> None:
        self.ranks: dict[str, dict[str, str]] = {}
        self.asked: list[tuple[str, int]] = []

    def start(self, spec: ProcessSpec, _held: Any, ranks: dict[str, str], _ports: Any, _number: int) -> Any:
        self.ranks[spec.name] = ranks
        return SimpleNamespace(grid_ready=SimpleNamespace(remote=lambda: object()))

    def ports_on(self, node_id: str, count: int) -> Any:
        self.asked.append((node_id, count))
        return object()

    def greets(self, _role: str) -> bool:
        return False


def started(*nodes_of: list[str]) -> Started:
    """Roles `a`, `b`, ..., each with a member on each of these nodes."""
    hosting = Started()
    process_set = ProcessSet("run-1", hosting, EndpointRegistry("run-1"))  # type: ignore[arg-type]
    for role, nodes in zip("abcdef", nodes_of, strict=False):
        for index, node in enumerate(nodes):
            spec = ProcessSpec("run-1", (role,), index, node, ResourceVector())
            held: Any = SimpleNamespace(node_id=f"id of {node}")
            unit: Any = None
            process_set.by_name[spec.name] = ManagedProcess(ProcessStatus(spec, unit, held))
    process_set.start([*process_set.by_name.values()])
    return hosting


NODES = st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=12)


@given(NODES)
def test_ranks_are_the_roles_own_and_local_ranks_the_nodes(nodes: list[str]) -> None:
    ranks = started(nodes).ranks
    mine = [ranks[f"run-1/a/{index}"] for index in range(len(nodes))]

    assert [one["RANK"] for one in mine] == [str(index) for index in range(len(nodes))]
    assert {one["WORLD_SIZE"] for one in mine} == {str(len(nodes))}
    for node in set(nodes):
        there = [one for one, at in zip(mine, nodes, strict=True) if at == node]
        assert [one["LOCAL_RANK"] for one in there] == [str(local) for local in range(len(there))]
        assert {one["LOCAL_WORLD_SIZE"] for one in there} == {str(len(there))}
        assert len({one["NODE_RANK"] for one in there}) == 1
    assert {int(one["NODE_RANK"]) for one in mine} == {*range(len(set(nodes)))}


def test_each_node_with_a_first_rank_is_asked_once_for_all_its_ports() -> None:
    assert sorted(started(["n1", "n2"], ["n1"], ["n2", "n1"]).asked) == [("id of n1", 2), ("id of n2", 1)]
