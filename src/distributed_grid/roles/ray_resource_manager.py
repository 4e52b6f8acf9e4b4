"""The documented API: register roles, create all actors, and use each as a Ray actor with its own methods.

A thin layer over `launch`. Code written for the documented API works when only its import is replaced.
"""

import gc
import logging
import os
import time
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

import ray

from distributed_grid.errors import DoesNotFit, InvalidRole, NoCapacity, Refused, RoleNotFound, RoleRunInUse
from distributed_grid.model.roles.profiles import NexRLRole, as_name, documented_fields, profile_named, role_text
from distributed_grid.model.roles.spec import FIELDS, RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload
from distributed_grid.roles.beginning import Progress, launch
from distributed_grid.roles.calls.endpoints import Endpoint
from distributed_grid.roles.ending import RAY_EXIT
from distributed_grid.roles.on_node.peers import RayActorWrapper
from distributed_grid.roles.run import Run

__all__ = ["NexRLRole", "RayActorWrapper", "RayResourceManager"]

logger = logging.getLogger(__name__)

_SILENT_AFTER_S: Final = 600.0
"""Code written without this rule may keep its whole process busy, for example while it loads something large."""
ROOM_S: Final = 30.0
"""How long, unless `wait_s` is longer, to wait for actors that finish the calls of a dropped manager."""
_SHOWN_FREE_S: Final = 5.0
"""Ray shows capacity as free a moment after it was released; on a busy machine, seconds."""
_MORE: Final = tuple(one for one in FIELDS if one not in ("role", "cls", "config", "count", "colocation_group"))


@dataclass(frozen=True, slots=True)
class _Registered:
    spec: RoleSpec
    count: int | tuple[int, int]
    """As given. Zero is allowed here, though not in a workload."""

    @property
    def is_empty(self) -> bool:
        return bool(self.count == 0)


class _InUse:
    """Held by a manager that has created actors and by its wrappers: when Python collects it, none of them is left."""

    __slots__ = ("__weakref__",)


class RayResourceManager:
    """Roles, each of a class, started together as Ray actors.

    `name`: the run's name, for `grid roles status` and `attach`; by default a unique one. `env_allow`: names of
    variables that all actors get from this process besides the documented ones. `pools`, `wait_s`, `leases`,
    `progress`: see `Workload` and `launch`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        env_allow: Sequence[str] = (),
        pools: Sequence[Pool] = (),
        wait_s: float = 0.0,
        leases: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.name = name or f"roles-{uuid.uuid4().hex[:8]}"
        self._env_allow = tuple(env_allow)
        self._pools = tuple(pools)
        self._wait_s, self._leases, self._progress = wait_s, leases, progress or logger.info
        self._roles: dict[str, _Registered] = {}
        self._run: Run | None = None
        self._in_use: _InUse | None = None
        self._when_dropped: weakref.finalize[[], _InUse] | None = None
        self._wrappers: dict[str, list[tuple[Endpoint, RayActorWrapper]]] | None = None
        """None: no actors exist."""

    def register_role(
        self,
        role: str | Enum,
        cls: type | str,
        config: object,
        count: int | tuple[int, int] = 1,
        colocation_group: str | None = None,
        *,
        profile: str | None = None,
        **more: Any,
    ) -> None:
        """`count` actors, each of which makes one `cls(config)`. Roles of one `colocation_group` share their actors.

        `role`: text, or a member of any Enum. Registering a role again replaces it. `profile` and `more` state what
        differs from the documented resources: the name of a profile, and any field of a `RoleSpec`.
        """
        name = role_text(role)
        self._check_not_created(f"The role {name} cannot be registered")
        if unknown := [key for key in more if key not in _MORE]:
            raise InvalidRole(
                f"register_role() of {name} has no option {unknown[0]!r}", try_next=f"Options: {', '.join(_MORE)}."
            )
        group = colocation_group if colocation_group is None else as_name(role_text(colocation_group))
        said = {**({} if profile is None else profile_named(profile)), **more}
        said["env_allow"] = (*self._env_allow, *more.get("env_allow", ()))
        given = documented_fields(colocated=group is not None, **said)
        spec = RoleSpec(as_name(name), cls, config, 1 if count == 0 else count, colocation_group=group, **given)
        if name in self._roles:
            logger.warning("The role %s was registered again; this replaces the earlier registration", name)
        self._roles[name] = _Registered(spec, count)

    def spec(self, role: str | Enum) -> RoleSpec:
        """The spec of a registered role."""
        return self._roles[role_text(role)].spec

    def create_all_actors(self) -> None:
        """Start all registered roles, all or nothing. Returns when all actors are up.

        Raises `InvalidRole` (a `ValueError`) if the roles do not fit together, `DoesNotFit` if there is no room for
        them, `MemberFailed` if a constructor raised, and `StartTimedOut`. After an error, nothing is left.
        """
        self._check_not_created("The actors cannot be created again")
        if not self._roles:
            return  # nothing to do; roles may still be registered
        self._check_empty_groups()
        specs = [one.spec for one in self._roles.values() if not one.is_empty]
        if specs:
            workload = Workload(self.name, tuple(specs), self._pools)
            _connect()
            self._run = self._launch(workload)
            self._in_use = _InUse()
            self._when_dropped = weakref.finalize(self._in_use, self._run.drop)
            self._when_dropped.atexit = False
        self._wrappers = {
            name: []
            if one.is_empty
            else [_wrapped(endpoint, self._in_use) for endpoint in self.run.endpoints(one.spec.name)]
            for name, one in self._roles.items()
        }

    def _launch(self, workload: Workload) -> Run:
        """Launch. If a dropped manager of this process still has the room or the name, wait for its end and retry."""

        def start(wait_s: float) -> Run:
            return launch(
                workload,
                wait_s=wait_s,
                leases=self._leases,
                progress=self._progress,
                silent_after_s=_SILENT_AFTER_S,
            )

        if any(RAY_EXIT):
            gc.collect()  # only this drops a manager in a reference cycle
        earlier = [one for one in RAY_EXIT if isinstance(one, Run)]  # a run that ends meanwhile had the room, too
        until = time.monotonic() + max(ROOM_S, self._wait_s)
        try:
            return start(self._wait_s)
        except (DoesNotFit, NoCapacity, RoleRunInUse):
            dropped = [one for one in earlier if one.is_dropped]
            if not dropped:
                raise
            self._progress("waiting for an earlier run of this process to end")
            for one in dropped:
                one.wait(max(0.0, until - time.monotonic()))
        try:
            return start(max(_SHOWN_FREE_S, min(self._wait_s, until - time.monotonic())))
        except (DoesNotFit, NoCapacity, RoleRunInUse) as error:
            error.because += tuple(
                f"{one.name}, an earlier run of this process, has not ended: {one.what_keeps_it}"
                for one in dropped
                if not one.wait(0)
            )
            raise

    def get_actor_wrapper(self, role: str | Enum) -> list[RayActorWrapper]:
        """The actors of a role, by rank, as created. After a restart, each wrapper has its new actor."""
        name = role_text(role)
        if name not in self._roles:
            there = ", ".join(self._roles) or "none"
            raise RoleNotFound(f"No role {name!r} is registered", try_next=f"Registered: {there}.")
        if self._wrappers is None:
            raise RoleNotFound(f"The actors of {name} have not been created", try_next="create_all_actors() first.")
        for endpoint, one in self._wrappers[name]:
            if endpoint.target is not None:
                one._actor = endpoint.target
        return [one for _, one in self._wrappers[name]]

    # -- beyond what is documented ---------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The underlying run: its status, its groups, scaling."""
        if self._run is None:
            raise RoleNotFound("No actors have been created", try_next="create_all_actors() first.")
        return self._run

    def shutdown(self) -> None:
        """End all actors. May be called again. The roles stay registered, and their actors can be created again."""
        run, self._run, self._wrappers = self._run, None, None
        when_dropped, self._when_dropped, self._in_use = self._when_dropped, None, None
        if when_dropped is not None:
            when_dropped.detach()
        if run is not None:
            run.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _check_not_created(self, what: str) -> None:
        if self._wrappers is not None:
            raise Refused(f"{what}: the actors have been created", try_next="shutdown() first, or use another manager.")

    def _check_empty_groups(self) -> None:
        """A workload checks that counts are equal, but does not see those that are zero."""
        empty = {one.spec.colocation_group: name for name, one in self._roles.items() if one.is_empty}
        for name, one in self._roles.items():
            group = one.spec.colocation_group
            if group is not None and group in empty and not one.is_empty:
                raise InvalidRole(
                    f"All roles of the colocation group {group} must have the same count",
                    because=[f"{name} has {one.count}, and {empty[group]} has 0"],
                )


def _connect() -> None:
    """Connect as Ray does for the first actor of a program that has not called ray.init. `launch` reports a failure."""
    if not ray.is_initialized():
        with suppress(ray.exceptions.RaySystemError):
            ray.get([])


def _wrapped(endpoint: Endpoint, in_use: _InUse | None) -> tuple[Endpoint, RayActorWrapper]:
    return endpoint, RayActorWrapper(endpoint.target, endpoint.role, endpoint.rank, endpoint.methods, in_use)


def _get_minimal_env_vars() -> dict[str, str]:
    """The variables that actors get from this process's environment. Private by its name, but the documented code
    imports it."""
    return RoleSpec("any", **documented_fields(colocated=False)).environment(os.environ)
