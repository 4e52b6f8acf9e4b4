"""The demo's task in the cluster. It travels by value, so it imports only what Ray's workers have."""

from typing import Any


def tell_where() -> dict[str, Any]:
    """Where this task runs and what Ray gave it."""
    import ray

    context = ray.get_runtime_context()
    return {
        "node_id": context.get_node_id(),
        "resources": dict(context.get_assigned_resources()),
        "gpus": [str(gpu) for gpu in ray.get_gpu_ids()],
    }
