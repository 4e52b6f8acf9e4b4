"""Checks of the controller: the one on record here and the one in the Ray cluster should be the same, and answer."""

from distributed_grid.decide.diagnosis.finding import START_ONE
from distributed_grid.model.checkup_facts import ActorState, ClusterFacts, ControllerFacts, Trouble
from distributed_grid.model.findings import Code, Finding, fail, ok, skip, warn


def is_there(found: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if found.record_error:
        return fail(
            Code.CONTROLLER,
            f"controller.json cannot be read: {found.record_error}",
            "Remove controller.json, then start again: grid cluster stop && grid cluster start",
        )
    if not found.recorded:
        return _unrecorded(found, cluster)
    at = f"the controller at {found.url}"
    if found.health_error:
        silent = f"{at} does not answer: {found.health_error}"
        if _its_cluster_is_gone(found, cluster):
            return fail(Code.CONTROLLER, f"{silent}; its Ray cluster at {found.ray_address} is gone too", START_ONE)
        return fail(Code.CONTROLLER, silent, f"grid start --address {found.ray_address}   (on the head node)")
    if found.token_error:
        return fail(
            Code.CONTROLLER,
            f"{at} answers, but not to the token of this GRID_HOME: {found.token_error}",
            "Run grid as the user who started it and with the same GRID_HOME, or start it again: grid cluster start",
        )
    return _in_ray(found, cluster, at)


def measured_use(found: ControllerFacts) -> Finding:
    """Use that Ray does not count: busy machines, and GPUs that other programs use."""
    if found.in_use is None:
        return skip(Code.MEASURED_USE, "there is no controller to ask")
    if not found.in_use:
        return ok(Code.MEASURED_USE, "no machine is too busy, and no GPU is in use outside Ray")
    return warn(
        Code.MEASURED_USE,
        "; ".join(found.in_use),
        "End programs that should not run there: a GPU in use is not lent, and a busy machine is slow.",
    )


def _its_cluster_is_gone(found: ControllerFacts, cluster: ClusterFacts | None) -> bool:
    if cluster is None or cluster.unreached is None or cluster.address != found.ray_address:
        return False
    return cluster.unreached.trouble is Trouble.NOTHING_THERE


def _unrecorded(found: ControllerFacts, cluster: ClusterFacts | None) -> Finding:
    if found.actor in (ActorState.THERE, ActorState.SILENT):
        where = f" at {found.actor_url}" if found.actor_url else ""
        return warn(
            Code.CONTROLLER,
            f"grid is in the Ray cluster{where}, but was not started from this GRID_HOME",
            "Set GRID_HOME to the folder that it was started with, on the head node.",
        )
    if cluster is None or cluster.unreached:
        return skip(Code.CONTROLLER, "no controller was started from this GRID_HOME", START_ONE)
    return skip(
        Code.CONTROLLER,
        f"grid is not in the Ray cluster at {cluster.address} yet",
        f"On the head node: grid start --address {cluster.address}",
    )


def _in_ray(found: ControllerFacts, cluster: ClusterFacts | None, at: str) -> Finding:
    """What the cluster reports about a controller that answers properly itself."""
    if cluster is None or found.actor is ActorState.UNASKED:
        return warn(Code.CONTROLLER, f"{at} answers; its Ray cluster could not be asked about it")
    if found.problems and found.actor is ActorState.THERE and found.actor_url == found.url:
        return warn(
            Code.CONTROLLER,
            f"{at} answers, and reports: {'; '.join(found.problems)}",
            "Fix the problems that it reports.",
        )
    if found.actor is ActorState.THERE and found.actor_url == found.url:
        return ok(Code.CONTROLLER, f"{at} answers, takes the token, and is in the Ray cluster")
    if cluster.address != found.ray_address:
        return warn(
            Code.CONTROLLER,
            f"{at} answers, but is in the Ray cluster at {found.ray_address}; this is {cluster.address}",
            "Leave --address out to check the controller's own cluster.",
        )
    said = {
        ActorState.ABSENT: f"the Ray cluster at {cluster.address} has no controller",
        ActorState.SILENT: f"the controller actor in the Ray cluster at {cluster.address} does not answer",
        ActorState.THERE: f"the Ray cluster at {cluster.address} has another one, at {found.actor_url}",
    }[found.actor]
    return fail(
        Code.CONTROLLER,
        f"{at} answers, but {said}",
        f"grid stop, then: grid start --address {cluster.address}   (on the head node)",
    )
