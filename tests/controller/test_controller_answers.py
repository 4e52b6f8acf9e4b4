"""Every endpoint answers as its definition in `wire` says, and so does the client's call.

`ServedGrid` compares each answer with the definition of its route, `checked` with that of the client's method.
"""

from answer_checks import checked
from builders import process
from fastapi.routing import APIRoute
from role_runs import a_run
from served_grid import API, ServedGrid

HALF = {"target_node": "b", "resource_type": "cpu", "amount": 0.5}


def test_every_endpoint_answers_as_it_is_defined(fresh: ServedGrid) -> None:
    checked(fresh.client)
    fresh.measure()
    _boosts(fresh)
    _requests(fresh)
    _a_moved_process(fresh)
    _tasks_and_roles(fresh)
    _the_cluster(fresh)
    _access(fresh)
    fresh.client.stop_controller(force=True, wait_s=1.0)

    routes = [one for one in fresh.app.routes if isinstance(one, APIRoute) and one.path.startswith(f"{API}/")]
    endpoints = {f"{method} {route.path}" for route in routes for method in route.methods}
    assert endpoints - fresh.answered == set()


def _boosts(fresh: ServedGrid) -> None:
    client = fresh.client
    boost = client.request_boost({**HALF, "delivery": "reserve", "amount": 1})["boost_id"]
    client.boost(boost)
    client.boost_status()
    client.renew_boost(boost)
    client.checkpointed(boost)
    client.report_program(boost, "p1", "train.py")
    client.work_in(boost, ["01000000"], since=0.0)
    client.leave(boost, "p1")
    client.join_private_cluster(boost, "10.0.0.1:6379")
    client.leave_private_cluster(boost)
    client.report_run(boost, 1.0, 0)
    client.release_boost(boost)


def _requests(fresh: ServedGrid) -> None:
    client = fresh.client
    client.plan({**HALF})
    asked = client.request_allocation({**HALF})["request_id"]
    client.queue()
    client.allocation(asked)
    client.why(asked)
    client.release_allocation(asked)
    client.create_window({**HALF, "name": "w", "at": "Mon-Fri 09:00", "duration_seconds": "3h"})
    client.windows()
    client.window("w")
    client.cancel_window("w")


def _a_moved_process(fresh: ServedGrid) -> None:
    client = fresh.client
    here = next(raylet.node_id for raylet in fresh.cluster.raylets() if raylet.labels["grid/name"] == "a")
    fresh.control.add(here, process(4711, "a", environment=("HOME",)), HOME="/home/ana")
    client.offload_candidates()
    moved = client.offload({"pid": 4711, "to": "b"})["offload"]
    assert moved is not None
    client.offloads()
    client.offload_log(moved["offload_id"])
    client.cancel_offload(moved["offload_id"], 1.0)


def _tasks_and_roles(fresh: ServedGrid) -> None:
    client = fresh.client
    client.schedule_task({"task_id": "t", "cpu": 1})
    client.task_started("t")
    client.tasks()
    client.task("t")
    client.complete_task("t")
    fresh.role_records.write_record(a_run())
    client.role_runs()
    client.role_run("run-1")
    client.scale_role("run-1", "rollout_worker", 3)
    client.role_run_down("run-1")


def _the_cluster(fresh: ServedGrid) -> None:
    client = fresh.client
    client.cluster_status()
    client.nodes(history=3)
    client.node("a")
    client.demand()
    client.suggestions()
    client.sharing_status()
    client.set_policy(policy="aggressive")
    client.cooldown("c")
    client.cooldown("c", on=False)


def _access(fresh: ServedGrid) -> None:
    client = fresh.client
    client.health()
    client.me()
    client.create_token({"name": "ana"})
    client.tokens()
    client.revoke_tokens("ana")
    client.config()
    client.events()
    client.audit()
    client.repair()
    client.audit_log()
