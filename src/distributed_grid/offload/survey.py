"""Surveying the processes of the nodes, and what they would find on other nodes."""

from collections.abc import Callable, Iterable, Mapping

from distributed_grid import threads
from distributed_grid.decide.offload.movable import obstacles_here, speakers, with_gpus
from distributed_grid.decide.offload.recommend import Stuck, ask_for, find_place, recommend
from distributed_grid.errors import InvalidRequest, ProcessNotFound, Unavailable
from distributed_grid.execution.on_node_processes.looking import NodeProcesses
from distributed_grid.execution.processes import Processes, elsewhere_from, facts_from, paths_of
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.nodes import NodeId, NodeName, NodeTable, connected
from distributed_grid.model.offload import Elsewhere, OffloadingRecommendation, ProcessFacts
from distributed_grid.model.snapshots import NodeSnapshot

Snapshots = Callable[[], Mapping[NodeName, NodeSnapshot]]
Survey = tuple[tuple[OffloadingRecommendation, ...], tuple[Stuck, ...], tuple[NodeName, ...]]
"""The heavy processes that can move, those that cannot, and the nodes that did not answer."""


class ProcessSurvey:
    def __init__(self, parts: EngineContext, processes: Processes, snapshots: Snapshots) -> None:
        self._p = parts
        self._processes = processes
        self._snapshots = snapshots

    async def heavy(self, node: NodeName | None = None) -> Survey:
        """The heavy processes of one node, or of all nodes."""
        nodes = await self.nodes()
        queried = [connected(nodes, node).name] if node is not None else [one.name for one in nodes.alive]
        if not queried:
            return (), (), ()
        speak = speakers(nodes)
        wanted = {nodes[name].node_id: name in speak for name in queried}
        answers = await threads.SLOW.run(self._processes.scan, wanted)
        found = self._facts(nodes, answers)
        there = await self.elsewhere(nodes, [facts for facts in found if not obstacles_here(facts)])
        rules = rules_for(self._p, ask_for(OffloadingRecommendation(queried[0], 1.0, 0)))
        movable, stuck = recommend(found, nodes, there, self._p.ledger.usage, rules)
        silent = tuple(name for name in queried if nodes[name].node_id not in answers)
        return movable, stuck, silent

    async def one(self, pid: int, node: NodeName | None) -> ProcessFacts:
        """The process with this id: on the named node, or the only one in the cluster that a user may mean."""
        nodes = await self.nodes()
        names = [connected(nodes, node).name] if node is not None else sorted(speakers(nodes))
        answers = await threads.SLOW.run(self._processes.look_at, [nodes[name].node_id for name in names], pid)
        found = self._facts(nodes, answers)
        if not found and node is not None and nodes[node].node_id not in answers:
            raise Unavailable(f"{node} did not answer", try_next="To see its state: grid node ls")
        if not found:
            where = f"on {node}" if node is not None else "on any node"
            raise ProcessNotFound(
                f"There is no process {pid} {where}", try_next="To see the heavy processes: grid offload scan"
            )
        if len(found) > 1:
            raise InvalidRequest(
                f"{len(found)} nodes have a process {pid}",
                because=[f"{facts.node}: {facts.name} of {facts.user}" for facts in found],
                try_next=f"Name its node: grid offload execute {pid} --from NODE",
            )
        return found[0]

    async def elsewhere(
        self, nodes: NodeTable, processes: Iterable[ProcessFacts], only: NodeName | None = None
    ) -> dict[NodeName, Elsewhere]:
        """The environment that these processes would find on each node that answers, or on one node."""
        if not (paths := paths_of(processes)):
            return {}
        names = {node.node_id: node.name for node in nodes.alive if only in (None, node.name)}
        answers = await threads.SLOW.run(self._processes.find_on, list(names), paths)
        return {names[node_id]: elsewhere_from(names[node_id], answer) for node_id, answer in answers.items()}

    async def place(
        self, wanted: OffloadingRecommendation, facts: ProcessFacts
    ) -> tuple[OffloadingRecommendation | Stuck, Elsewhere | None]:
        """Where one process can go, with what it finds there; or why it can go nowhere."""
        nodes = await self.nodes()
        there = {} if obstacles_here(facts) else await self.elsewhere(nodes, [facts], only=wanted.destination)
        rules = rules_for(self._p, ask_for(wanted))
        found = find_place(wanted, facts, nodes, there, self._p.ledger.usage, rules)
        return found, None if isinstance(found, Stuck) else there[found.destination or ""]

    async def nodes(self) -> NodeTable:
        """The nodes as they are seen now. A grant is checked once more when it is requested."""
        return await self._p.look()

    def _facts(self, nodes: NodeTable, answers: Mapping[NodeId, NodeProcesses]) -> list[ProcessFacts]:
        names = {node.node_id: node.name for node in nodes.alive}
        snapshots = self._snapshots()
        found = [facts for node_id, answer in answers.items() for facts in facts_from(names[node_id], answer)]
        measured = {name: one.measured.gpus for name, one in snapshots.items() if one.measured is not None}
        return [with_gpus(facts, measured.get(facts.node, ())) for facts in found]
