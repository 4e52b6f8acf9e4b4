"""The arguments with which a program connects to Ray: for its own cluster, or for the lease's."""

import contextlib
import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from .captured import Captured, describe

ONLY_FOR_A_NEW_CLUSTER = (
    "num_cpus",
    "num_gpus",
    "resources",
    "labels",
    "object_store_memory",
    "_system_config",
    "_enable_object_reconstruction",
    "_node_name",
)
"""Arguments that `ray.init` refuses when it connects to an existing cluster."""

_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@contextlib.contextmanager
def marked(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Jobs that begin in this block are recorded in Ray as having the hook in their driver."""
    said = environ.get(_JOB_CONFIG)
    if not said:
        yield
        return
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        config = json.loads(said)
        environ[_JOB_CONFIG] = json.dumps({**config, "metadata": {**config.get("metadata", {}), "grid_hook": "1"}})
    try:
        yield
    finally:
        environ[_JOB_CONFIG] = said  # processes that the program starts may lack the hook


def is_the_lease_s(address: str | None, ray_address: str) -> bool:
    """Whether `ray.init` with this address goes to the cluster that RAY_ADDRESS names."""
    return bool(ray_address) and (address in (None, "auto") or address == ray_address)


def arguments(captured: Captured, address: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that Ray accepts here, so that a script written for one machine runs unchanged."""
    if not is_the_lease_s(address, captured.ray_address):
        return dict(given)
    dropped = {name: given[name] for name in ONLY_FOR_A_NEW_CLUSTER if given.get(name) is not None}
    if dropped:
        shown = ", ".join(f"{name}={describe(value)}" for name, value in dropped.items())
        captured.reports.rewritten(f"ray.init({shown})", "the program runs in a lease, which is as large as it is")
    kept = {name: value for name, value in given.items() if name not in dropped}
    own = getattr(given.get("job_config"), "runtime_env", None)
    if own and kept.get("runtime_env") is None:
        kept["runtime_env"] = own  # Ray would drop it, because the environment has a job configuration, too
    return kept
