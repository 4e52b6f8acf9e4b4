"""Puts a Ray driver's tasks, actors and groups into the lease, once `import ray` is done."""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from ray import actor, remote_function
from ray._private import function_manager
from ray._private import worker as ray_worker

from . import groups, options, travelling
from .captured import Captured, describe
from .libraries import Libraries, check_serve_actor, guard_serve
from .own_groups import Plan, why_never
from .replacing import innermost, replace
from .standins import StandIn, StandIns
from .strategies import AsItIs, Inside, Outside, settle

_TOO_LARGE = "cannot fit into any bundles"
"""Ray's error for work that is larger than its placement group."""
_NO_OPTION = "Reserve a boost that has it, and run in that (--boost ID)"


def install(environ: Mapping[str, str], *, in_worker: bool = False) -> Libraries:
    """Install the hook in this process; call it once. Returns the watcher of further imports."""
    captured = Captured(environ, in_worker=in_worker)
    own = StandIns()
    _hook_connecting(captured, own)
    _hook_membership(captured)
    _hook_submission(captured, own)
    replace(groups.replacements(captured, own, innermost if in_worker else lambda function: function))
    guard_serve(captured)
    if in_worker:
        travelling.tell_programs(environ, os.environ)
    workers_too = environ.get("GRID_CAPTURE_WORKERS") == "1"
    if workers_too:
        _hook_workers(captured)
    return Libraries(captured.reports, workers=workers_too)


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
        captured.reports.rewritten(f"ray.init({shown})", "the program runs in a lease, whose size is fixed")
    kept = {name: value for name, value in given.items() if name not in dropped}
    own = getattr(given.get("job_config"), "runtime_env", None)
    if own and kept.get("runtime_env") is None:
        kept["runtime_env"] = own  # Ray would drop it, because the environment has a job configuration, too
    return kept


def _hook_connecting(captured: Captured, own: StandIns) -> None:
    init, connect = ray_worker.init, ray_worker.connect

    @functools.wraps(init)
    def init_in_lease(address: str | None = None, **given: Any) -> Any:
        kept = captured.guarded("ray.init", lambda: arguments(captured, address, given), given)
        with marked(os.environ):
            return init(address, **kept)

    @functools.wraps(connect)
    def connect_in_lease(node: Any, *args: Any, **given: Any) -> Any:
        result = connect(node, *args, **given)
        if ray_worker.global_worker.mode == ray_worker.SCRIPT_MODE:
            own.forget()
            captured.guarded("connecting", lambda: captured.connected(node.gcs_address), None)
        return result

    replace({init: init_in_lease, connect: connect_in_lease})


def _hook_membership(captured: Captured) -> None:
    """Make the driver act as if it ran inside the group, and pass that on, as Ray does for captured tasks."""
    worker_class = ray_worker.Worker
    own_group = worker_class.placement_group_id
    own_capture = worker_class.should_capture_child_tasks_in_placement_group

    def placement_group_id(worker: Any) -> Any:
        return captured.lease.group_id if captured.drives() else own_group.fget(worker)

    def should_capture(worker: Any) -> Any:
        return True if captured.drives() else own_capture.fget(worker)

    worker_class.placement_group_id = property(placement_group_id)
    worker_class.should_capture_child_tasks_in_placement_group = property(should_capture)


def _hook_submission(captured: Captured, own: StandIns) -> None:
    """Every task goes through one method, every actor through another."""

    def hooked(original: Callable[..., Any], named: Callable[[Any], tuple[str, str]]) -> Callable[..., Any]:
        @functools.wraps(original)
        def remote(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **given: Any) -> Any:
            if not captured.ready():
                return original(self, args, kwargs, *rest, **given)
            settled = captured.guarded("placing", lambda: _settled(captured, given, lambda: named(self)), given)
            try:
                made = original(self, args, kwargs, *rest, **settled)
            except ValueError as error:
                advice = captured.guarded("placing", lambda: _advice(captured, settled), "")
                if not advice or _TOO_LARGE not in str(error):
                    raise
                raise ValueError(f"{error} grid: {advice}") from error
            group = getattr(settled.get("scheduling_strategy"), "placement_group", None)
            if isinstance(group, StandIn) and isinstance(made, actor.ActorHandle):
                captured.guarded("groups", lambda: own.holds(group, made), None)
            return made

        return remote

    tasks, actors = remote_function.RemoteFunction, actor.ActorClass
    tasks._remote = hooked(tasks._remote, lambda task: ("task", task._function_name))
    actors._remote = hooked(actors._remote, lambda made: ("actor", _class_name(made.__ray_metadata__)))


def _advice(captured: Captured, given: dict[str, Any]) -> str:
    """Advice for a task or actor that Ray finds larger than the lease."""
    never = why_never(Plan((options.amounts(given),)), captured.lease.places)
    return "" if never is None else f"{never.why}. {never.advice or _NO_OPTION}."


def _class_name(meta: Any) -> str:
    return f"{meta.modified_class.__module__}.{meta.class_name}" if meta.modified_class else str(meta.class_name)


def _settled(captured: Captured, given: dict[str, Any], named: Callable[[], tuple[str, str]]) -> dict[str, Any]:
    """The options that put the work into the lease, or leave it outside, as it asked."""
    captured.check_lease(named)
    detached = given.get("lifetime") == "detached"
    if options.says_nothing(given) and not detached and captured.is_within():
        return given
    check_serve_actor(captured, given)
    requested, places = options.requested_by(given), captured.lease.places
    outcome = settle(requested, places, captured.lease.group_hex)
    kind, name = named()
    what = f"{kind} {name}"
    if isinstance(outcome, Outside):
        # Ray's libraries start helpers on specific nodes, which reserve nothing.
        if name.startswith("ray.") and given.get("num_cpus") == 0 and not given.get("num_gpus"):
            captured.reports.note(f"{what}: {outcome.wanted}", f"{outcome.why}, but it reserves nothing")
        else:
            captured.let_out(f"{what}: {outcome.wanted}", outcome.why)
    elif detached:
        captured.reports.note(f"detached {what}", "it is in the lease, and ends with it")
    if isinstance(outcome, Inside):
        captured.reports.rewritten(f"{what}: {outcome.wanted}", outcome.why)
    elif requested.strategy is None and isinstance(outcome, AsItIs) and not captured.is_within():
        outcome = Inside("nothing", "work that runs outside the lease started it")
    memory = not all(place.without_memory for place in places)
    bundle = captured.next_of(outcome.bundles) if isinstance(outcome, Inside) else -1
    return options.written(given, outcome, captured.lease.handle, memory=memory, bundle=bundle)


def _hook_workers(captured: Captured) -> None:
    """Send the hook along with what workers unpickle."""
    for module in (remote_function, function_manager):
        module.pickle_dumps = _carrying(captured, module.pickle_dumps)


def _carrying(captured: Captured, original: Callable[..., bytes]) -> Callable[..., bytes]:
    @functools.wraps(original)
    def pickle_dumps(*args: Any, **kwargs: Any) -> bytes:
        pickled = original(*args, **kwargs)
        if not captured.is_on():
            return pickled
        return captured.guarded("packing", lambda: travelling.with_luggage(pickled), pickled)

    return pickle_dumps
