"""What Ray tells of its queues, read: messages as Ray 2.60 sends them."""

from typing import Any

from builders import NOON, amounts, node
from ray.core.generated import common_pb2, gcs_pb2

from distributed_grid.decide.monitoring.demand import explain_demand, only_node
from distributed_grid.model.nodes import NodeTable
from distributed_grid.monitoring.telemetry import pending_requests

IN = common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN
IDS = {"gpu-master": "aa", "gpu1": "bb", "gpu2": "cc"}
NAMES = {node_id: name for name, node_id in IDS.items()}
NODES = NodeTable(
    node(name, cpus=cpus, node_id=IDS[name], labels={"grid/name": name})
    for name, cpus in (("gpu-master", 4), ("gpu1", 8), ("gpu2", 8))
)


def shape(amounts: dict[str, float], *, infeasible: int = 0, ready: int = 0, pinned_to: str = "") -> Any:
    found = gcs_pb2.ResourceDemand(
        shape=amounts, num_infeasible_requests_queued=infeasible, num_ready_requests_queued=ready
    )
    selector = found.label_selectors.add()  # Ray sends an empty one for what has none
    if pinned_to:
        selector.label_constraints.add(label_key="grid/name", operator=IN, label_values=[pinned_to])
    return found


def reported(*shapes: Any, **more: dict[str, float]) -> Any:
    """The queues as the driver's node has them."""
    batch = []
    for name, one in NODES.items():
        total = one.total.to_ray() | more.get(name, {})
        data = gcs_pb2.ResourcesData(node_id=bytes.fromhex(one.node_id), resources_total=total)
        if name == "gpu-master":
            data.resource_load_by_shape.resource_demands.extend(shapes)
        batch.append(data)
    return explain_demand(pending_requests(batch, NAMES), NODES, {}, now=NOON)


def test_what_ray_calls_infeasible_though_a_node_is_large_enough_is_pinned_to_one_that_is_not() -> None:
    """As with NodeLabelSchedulingStrategy, whose labels Ray does not tell."""
    (found,) = reported(shape({"CPU": 6.0}, infeasible=2))

    assert only_node(found) == "gpu-master"
    assert found.detail == "its scheduling strategy matches only gpu-master, which has 4 CPUs"
    assert (found.pending.count, found.pending.queued_on) == (2, {"gpu-master": 2})


def test_others_of_the_same_shape_are_not_taken_for_pinned() -> None:
    free, pinned = sorted(reported(shape({"CPU": 6.0}, infeasible=1, ready=3)), key=lambda one: only_node(one) or "")

    assert (free.pending.count, only_node(free)) == (3, None)
    assert (pinned.pending.count, only_node(pinned)) == (1, "gpu-master")


def test_what_no_node_can_carry_is_not_taken_for_pinned() -> None:
    (found,) = reported(shape({"CPU": 9.0}, infeasible=1))

    assert (found.wanted_on, found.detail) == ((), "no node has more than 8 CPUs")


def test_a_label_selector_is_what_pins_where_there_is_one() -> None:
    (found,) = reported(shape({"CPU": 6.0}, infeasible=1, pinned_to="gpu-master"))

    assert only_node(found) == "gpu-master"
    assert found.detail == "its labels match only gpu-master, which has 4 CPUs"


def test_a_kind_of_gpu_is_a_pin_and_no_amount() -> None:
    wanted = {"CPU": 1.0, "accelerator_type:H200": 0.001}

    (there,) = reported(shape(wanted, ready=1), gpu2={"accelerator_type:H200": 1.0})
    (nowhere,) = reported(shape(wanted, infeasible=1))

    assert there.pending.shape.needs == amounts(cpu=1)
    assert (only_node(there), there.could_run_on) == ("gpu2", ("gpu2",))
    assert nowhere.detail == "no node has accelerator_type:H200"
