"""The steps of a checkup, in order, and the facts so far."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from distributed_grid.controller.checkup.controller import ask_for_controller, look_at_controller
from distributed_grid.controller.checkup.home import embedded_address, look_at_home
from distributed_grid.decide.diagnosis.checks import is_new_enough
from distributed_grid.decide.monitoring.naming import ConfiguredName, name_raylets
from distributed_grid.model.checkup_facts import (
    ClusterFacts,
    ControllerFacts,
    Facts,
    HomeFacts,
    MachineFacts,
    in_one_line,
)
from distributed_grid.store.home import GridHome


def look_at_machine() -> MachineFacts:
    python = platform.python_version()
    try:
        import ray

        return MachineFacts(python, sys.executable, str(ray.__version__))
    except Exception as error:  # noqa: BLE001 - a broken installation can fail in any way
        return MachineFacts(python, sys.executable, None, in_one_line(error))


class Checkup:
    """One checkup. At any time, `facts` has what was collected so far."""

    def __init__(self, home: GridHome, address: str | None = None, *, nodes_within_s: float = 20.0) -> None:
        self.facts = Facts(
            MachineFacts(platform.python_version(), sys.executable, None, "importing it did not finish"),
            HomeFacts(str(home.path), False, "checking it did not finish"),
            ControllerFacts(),
            None,
        )
        self._home = home
        self._asked_address = address
        self._nodes_within_s = nodes_within_s

    def look(self) -> None:
        self.facts = replace(self.facts, home=look_at_home(self._home))
        controller, configured = look_at_controller(self._home)
        self.facts = replace(self.facts, controller=controller)
        address, address_from = self._choose_address()
        if address:
            self._cluster = ClusterFacts(address, address_from, patience_s=self._nodes_within_s)
        self.facts = replace(self.facts, machine=look_at_machine())
        if address and is_new_enough(self.facts.machine.ray):
            with self._attempt("ray cluster", "connecting to it"):
                self._enter(address, configured)
            self._cluster = replace(self._cluster, stuck_at="")

    def _choose_address(self) -> tuple[str, str]:
        candidates = (
            (self._asked_address, "--address"),
            (self.facts.controller.ray_address, "controller.json"),
            (embedded_address(self._home), "cluster.json"),
            (os.environ.get("RAY_ADDRESS"), "RAY_ADDRESS"),
        )
        return next(((address, source) for address, source in candidates if address), ("", ""))

    def _enter(self, address: str, configured: tuple[ConfiguredName, ...]) -> None:
        from distributed_grid.controller import reach

        unreached = reach.connect(address)
        self._cluster = replace(self._cluster, unreached=unreached)
        if unreached is None:
            self._look_inside(configured)

    def _look_inside(self, configured: tuple[ConfiguredName, ...]) -> None:
        # Only now: these need a Ray that is there and not too old.
        from distributed_grid.controller.checkup.cluster import (
            TRIAL,
            look_at_autoscaler,
            look_at_nodes,
            try_group,
            try_resize,
        )
        from distributed_grid.execution.ray_gateway import RayGateway

        gateway = RayGateway.connected()
        self._cluster = replace(self._cluster, address=gateway.gcs_address)
        with self._attempt("controller", "asking for the controller"):
            actor, actor_url = ask_for_controller()
            self.facts = replace(
                self.facts, controller=replace(self.facts.controller, actor=actor, actor_url=actor_url)
            )
        with self._attempt("autoscaler", "reading what an autoscaler has reported"):
            self._cluster = replace(self._cluster, autoscaler=look_at_autoscaler(gateway.gcs_address))
        raylets = gateway.raylets()
        its_own = self.facts.controller.ray_address == gateway.gcs_address
        naming = name_raylets(raylets, configured if its_own else ())
        self._cluster = replace(self._cluster, missing=naming.missing, naming_problems=naming.problems)
        head = next((raylet for raylet in raylets if raylet.is_head), None)
        if head is not None:
            self._cluster = replace(self._cluster, head_labels=dict(head.labels))
            with self._attempt("resize", f"resizing {TRIAL} on the head"):
                self._cluster = replace(self._cluster, resize=try_resize(gateway, head.node_id))
        with self._attempt("nodes", "running something on every node"):
            found = look_at_nodes(naming, self._nodes_within_s)
            self._cluster = replace(self._cluster, nodes=found)
            answering = {node.name: naming.raylets[node.name] for node in found if node.answered}
            if answering:
                with self._attempt("reservations", "making a placement group"):
                    self._cluster = replace(self._cluster, group=try_group(answering, gateway.view()))

    @contextmanager
    def _attempt(self, check: str, step: str) -> Iterator[None]:
        """One step of the checkup; if it fails, the other steps are still taken."""
        self._cluster = replace(self._cluster, stuck_at=step)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what we are here to tell
            self._cluster = replace(self._cluster, errors={**self._cluster.errors, check: in_one_line(error)})

    @property
    def _cluster(self) -> ClusterFacts:
        assert self.facts.cluster is not None, "there is an address"
        return self.facts.cluster

    @_cluster.setter
    def _cluster(self, cluster: ClusterFacts) -> None:
        self.facts = replace(self.facts, cluster=cluster)
