"""Calls the controller over HTTP. Never imports ray, so that a command answers at once.

A method's return type is the type of the answer's JSON; tests compare each answer with its definition.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from distributed_grid.client.calls import Caller, user_name
from distributed_grid.client.connections import ANSWER_S, Call, Connections, Unreachable
from distributed_grid.client.whereabouts import Whereabouts
from distributed_grid.errors import BoostNotFound, GridError, TokenNotFound
from distributed_grid.model.principals import is_token_word
from distributed_grid.model.validators import is_id, seconds, waiting_time
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditEntries, AuditReport, Entry, Event, EventList, RepairRequest
    from distributed_grid.wire.boosts import (
        Boost,
        BoostRequest,
        BoostStatus,
        ProgramAnswer,
        ProgramRequest,
        RayletRequest,
        ReleaseRequest,
        RenewRequest,
        RunReport,
        WorkStatus,
    )
    from distributed_grid.wire.controller import RunningConfig, Stopped, StopRequest
    from distributed_grid.wire.nodes import ClusterStatus, DemandList, NodeList, OneNode, SuggestionList
    from distributed_grid.wire.offload import (
        CancelOffload,
        OffloadAnswer,
        OffloadCandidates,
        OffloadedProcess,
        OffloadLog,
        OffloadRequest,
        OffloadStatus,
    )
    from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus, Why
    from distributed_grid.wire.roles import RoleRun, RoleRunDown, RoleRunList, ScaleRole
    from distributed_grid.wire.scheduling import TaskDecision, TaskDone, TaskList, TaskRequest
    from distributed_grid.wire.sharing import Cooldown, CooldownRequest, PolicyChange, PolicyStatus, SharingStatus
    from distributed_grid.wire.tokens import Me, NewToken, RevokedTokens, TokenList, TokenRequest
    from distributed_grid.wire.values import Amount, Health
    from distributed_grid.wire.windows import CancelledWindow, Window, WindowList, WindowRequest

__all__ = ["RAYLET_S", "GridClient", "answers", "user_name"]

_LOOK_S: Final = 60.0
_YIELD_S: Final = 120.0
"""A request that takes capacity back from others waits for their grace period, even if it did not ask to wait."""
RAYLET_S: Final = 1000.0
"""On a busy machine a private raylet takes minutes; the controller waits while it makes progress."""


def answers(home: GridHome, within_s: float = 3.0) -> bool:
    """Whether the controller of an installation answers now; one attempt, without waiting for an absent one.

    It has to accept the token: another program, perhaps another grid, may have its port by now.
    """
    try:
        if not home.controller.exists():
            return False  # the controller of a login is not this installation's
        found = Whereabouts.of(home)
        connections = Connections(found.url, {"Authorization": f"Bearer {found.token}"}, found.trust)
        answer = connections.ask(Call("GET", "/api/v1/config", answer_s=within_s))
    except (GridError, Unreachable, KeyError, OSError):
        return False
    connections.close()
    return answer.is_success


class GridClient(Caller):
    """One controller's API as methods. Every answer is the API's own JSON."""

    def request_boost(self, body: BoostRequest, *, idempotency_key: str | None = None) -> Boost:
        key = idempotency_key or uuid.uuid4().hex
        wait = waiting_time(body.get("wait_seconds") or 0)
        return self._answer(Call("POST", "/boosts", body, headers={"Idempotency-Key": key}, answer_s=_YIELD_S + wait))

    _last_boosts: tuple[str, dict[str, Boost]] = ("", {})
    """The version of the last list of all boosts, and the list."""

    def boost_status(self, node: str | None = None) -> BoostStatus:
        """All boosts, or those of one node.

        Only what changed since the last call is sent and parsed, so that many boosts cost little. A boost that did not
        change is the same object in the next answer: copy it before you change it.
        """
        if node:
            return self._answer(Call("GET", "/boosts", params={"node": node}))
        version, known = self._last_boosts
        found: BoostStatus = self._answer(Call("GET", "/boosts", params={"since": version}))
        present = {boost["boost_id"]: boost for boost in found["boosts"]}
        if found.pop("since", None) is not None:
            present = _in_order(known, present, frozenset(found.pop("ended")))
        self._last_boosts = (found.pop("version", ""), present)
        found["boosts"] = list(present.values())
        return found

    def boost(self, boost_id: str, *, to_use: bool = False) -> Boost:
        """One boost. `to_use`: to run something inside it, which only its owners may."""
        return self._answer(Call("GET", f"/boosts/{_segment(boost_id)}", params={"to_use": True} if to_use else None))

    def release_boost(self, boost_id: str, body: ReleaseRequest | None = None) -> Boost:
        """Give a boost back; with an `amount`, only that part of it, and the answer is about that part."""
        wait = waiting_time((body or {}).get("wait_seconds") or 0)
        path, key = f"/boosts/{_segment(boost_id)}/release", uuid.uuid4().hex
        return self._answer(Call("POST", path, body or {}, headers={"Idempotency-Key": key}, answer_s=ANSWER_S + wait))

    def checkpointed(self, boost_id: str) -> Boost:
        """Report a checkpoint of the work in a boost."""
        return self._answer(Call("POST", f"/boosts/{_segment(boost_id)}/checkpoint"))

    def renew_boost(self, boost_id: str, duration_s: Amount | None = None) -> Boost:
        body: RenewRequest = {"duration_seconds": duration_s}
        return self._answer(Call("POST", f"/boosts/{_segment(boost_id)}/renew", body))

    def cluster_status(self) -> ClusterStatus:
        return self._answer(Call("GET", "/cluster"))

    def nodes(self, history: int | None = None) -> NodeList:
        """Every node; with `history`, each with that many points of its last hour."""
        return self._answer(Call("GET", "/nodes", params=None if history is None else {"history": history}))

    def node(self, name: str, horizon_s: float | None = None) -> OneNode:
        """One node with its last hour, and a forecast for `horizon_s` from now."""
        params = None if horizon_s is None else {"horizon_seconds": horizon_s}
        return self._answer(Call("GET", f"/nodes/{quote(name, safe='')}", params=params))

    def demand(self) -> DemandList:
        return self._answer(Call("GET", "/demand"))

    def suggestions(self) -> SuggestionList:
        """What would help before something runs short, and the commands for it."""
        return self._answer(Call("GET", "/suggestions"))

    def report_program(
        self, boost_id: str, program_id: str, label: str, *, is_inside: bool = True, cpu_s: float | None = None
    ) -> ProgramAnswer:
        """Report whether a program is inside a boost, and its CPU time if that was measured just now.

        Returns the boost, and the seconds until the program has to leave.
        """
        path = f"/boosts/{_segment(boost_id)}/programs/{_segment(program_id)}"
        body: ProgramRequest = {"label": label, "is_inside": is_inside, "cpu_seconds": cpu_s}
        return self._answer(Call("PUT", path, body))

    def leave(self, boost_id: str, program_id: str) -> None:
        """Report that a program inside a boost has ended."""
        self._answer(Call("DELETE", f"/boosts/{_segment(boost_id)}/programs/{_segment(program_id)}"))

    def work_in(self, boost_id: str, job_ids: Sequence[str], since: float | None = None) -> WorkStatus:
        """What these Ray jobs do, which of their tasks are not in the boost, and the drivers begun after `since`."""
        query = {"jobs": ",".join(job_ids)} | ({} if since is None else {"since": str(since)})
        return self._answer(Call("GET", f"/boosts/{_segment(boost_id)}/work", params=query))

    def join_private_cluster(self, boost_id: str, head_address: str) -> None:
        """Start a raylet inside a boost that joins the Ray at this address; returns when it is up."""
        path = f"/boosts/{_segment(boost_id)}/raylet"
        body: RayletRequest = {"head_address": head_address}
        self._answer(Call("POST", path, body, answer_s=RAYLET_S))

    def leave_private_cluster(self, boost_id: str) -> None:
        """End that raylet; the boost continues."""
        self._answer(Call("DELETE", f"/boosts/{_segment(boost_id)}/raylet", answer_s=RAYLET_S))

    def report_run(self, boost_id: str, seconds: float, exit_code: int) -> None:
        """Report how long a command took that ran in a boost."""
        body: RunReport = {"seconds": seconds, "exit_code": exit_code}
        self._answer(Call("POST", f"/boosts/{_segment(boost_id)}/runs", body))

    def offload_candidates(self, node: str | None = None) -> OffloadCandidates:
        """Heavy processes that could run on another node, and those that could not."""
        return self._answer(
            Call("GET", "/offload/candidates", params={"node": node} if node else None, answer_s=_LOOK_S)
        )

    def offload(self, body: OffloadRequest, *, idempotency_key: str | None = None) -> OffloadAnswer:
        """Move a process; with `dry_run` only report what would be done."""
        key = idempotency_key or uuid.uuid4().hex
        patience = _YIELD_S + seconds("grace period", body.get("grace_seconds") or 0, zero_allowed=True)
        return self._answer(Call("POST", "/offload", body, headers={"Idempotency-Key": key}, answer_s=patience))

    def offloads(self) -> OffloadStatus:
        return self._answer(Call("GET", "/offload"))

    def cancel_offload(self, offload_id: str, grace_s: float) -> OffloadedProcess:
        path = f"/offload/{quote(offload_id, safe='')}/cancel"
        body: CancelOffload = {"grace_seconds": grace_s}
        return self._answer(Call("POST", path, body, answer_s=ANSWER_S + grace_s))

    def offload_log(self, offload_id: str, begin: int = 0) -> OffloadLog:
        path = f"/offload/{quote(offload_id, safe='')}/log"
        return self._answer(Call("GET", path, params={"from": begin}, as_it_is=True))

    def sharing_status(self) -> SharingStatus:
        return self._answer(Call("GET", "/resource-sharing"))

    def set_policy(self, *, policy: str | None = None, mode: str | None = None) -> PolicyStatus:
        body: PolicyChange = {"policy": policy, "mode": mode}
        return self._answer(Call("PUT", "/resource-sharing/policy", body))

    def request_allocation(self, body: AllocationRequest, *, idempotency_key: str | None = None) -> Allocation:
        """Ask for capacity and let the request wait in the controller's queue."""
        key = idempotency_key or uuid.uuid4().hex
        return self._answer(Call("POST", "/requests", body, headers={"Idempotency-Key": key}))

    def queue(self) -> QueueStatus:
        return self._answer(Call("GET", "/requests"))

    def allocation(self, request_id: str) -> Allocation:
        return self._answer(Call("GET", f"/requests/{_segment(request_id)}"))

    def release_allocation(self, request_id: str) -> Allocation:
        return self._answer(Call("POST", f"/requests/{_segment(request_id)}/release", {}))

    def plan(self, body: PlanRequest) -> Plan:
        """What would happen to such a request now."""
        return self._answer(Call("POST", "/plan", body))

    def why(self, request_or_boost: str) -> Why:
        return self._answer(Call("GET", f"/why/{_segment(request_or_boost)}"))

    def create_window(self, body: WindowRequest) -> Window:
        """Promise capacity from now on, at the times that the window names."""
        return self._answer(Call("POST", "/windows", body))

    def windows(self) -> list[Window]:
        found: WindowList = self._answer(Call("GET", "/windows"))
        return found["windows"]

    def window(self, name: str) -> Window:
        return self._answer(Call("GET", f"/windows/{quote(name, safe='')}"))

    def cancel_window(self, name: str, *, release: bool = False) -> CancelledWindow:
        """End a window's promise; with `release`, also the boost that it has now."""
        return self._answer(Call("DELETE", f"/windows/{quote(name, safe='')}", params={"release": release}))

    def schedule_task(self, body: TaskRequest) -> TaskDecision:
        """Find a place for a task. It has an id before it is sent, so that a retry does not create a second one."""
        sent: TaskRequest = {**body, "task_id": body.get("task_id") or uuid.uuid4().hex}
        return self._answer(Call("POST", "/tasks", sent, answer_s=_YIELD_S))

    def tasks(self) -> TaskList:
        return self._answer(Call("GET", "/tasks"))

    def task(self, task_id: str) -> TaskDecision:
        return self._answer(Call("GET", f"/tasks/{quote(task_id, safe='')}"))

    def task_started(self, task_id: str) -> TaskDecision:
        return self._answer(Call("POST", f"/tasks/{quote(task_id, safe='')}/started"))

    def complete_task(self, task_id: str) -> TaskDone:
        return self._answer(Call("POST", f"/tasks/{quote(task_id, safe='')}/complete"))

    def role_runs(self) -> RoleRunList:
        """All runs of roles, in short."""
        return self._answer(Call("GET", "/roles"))

    def role_run(self, name: str) -> RoleRun:
        """One run of roles with all of its members."""
        return self._answer(Call("GET", f"/roles/{quote(name, safe='')}"))

    def scale_role(self, name: str, role: str, count: int) -> RoleRun:
        """Ask for another count of a role; the run's owner makes the change."""
        body: ScaleRole = {"role": role, "count": count}
        return self._answer(Call("POST", f"/roles/{quote(name, safe='')}/scale", body))

    def role_run_down(self, name: str, *, only_over: bool = False) -> RoleRunDown:
        """Ask a run to end, or forget one that is over. `only_over`: leave a live run alone."""
        return self._answer(Call("DELETE", f"/roles/{quote(name, safe='')}", params={"only_over": only_over}))

    def cooldown(self, node: str, *, on: bool = True, grace_s: float | None = None) -> Cooldown:
        body: CooldownRequest = {"on": on, "grace_seconds": grace_s}
        return self._answer(Call("POST", f"/nodes/{quote(node, safe='')}/cooldown", body))

    def events(self, after: int = 0) -> list[Event]:
        found: EventList = self._answer(Call("GET", "/events", params={"after": after}))
        return found["events"]

    def config(self) -> RunningConfig:
        return self._answer(Call("GET", "/config"))

    def ray_address(self) -> str:
        """The address of the cluster that the controller is in."""
        found = self._channel[0] if self._channel else self._find()[0]
        return found.ray_address or self.cluster_status()["ray_address"]

    def health(self) -> None:
        """Returns if a controller answers. Needs no token, and sends none if there is none."""
        found: Health = self._answer(Call("GET", "/health"))
        if found != {"status": "ok"}:
            raise self._not_grid()

    def me(self) -> Me:
        return self._answer(Call("GET", "/me"))

    def create_token(self, body: TokenRequest) -> NewToken:
        return self._answer(Call("POST", "/tokens", body))

    def tokens(self) -> TokenList:
        return self._answer(Call("GET", "/tokens"))

    def revoke_tokens(self, id_or_name: str) -> RevokedTokens:
        if not is_token_word(id_or_name):
            raise TokenNotFound(
                f"No token has the id or the name {id_or_name!r}", try_next="See all of them: grid token ls"
            )
        return self._answer(Call("DELETE", f"/tokens/{id_or_name}"))

    def audit(self) -> AuditReport:
        return self._answer(Call("GET", "/audit"))

    def repair(self, *, kill: bool = False) -> AuditReport:
        body: RepairRequest = {"kill": kill}
        return self._answer(Call("POST", "/audit/repair", body))

    def audit_log(self, /, **wanted: object) -> list[Entry]:
        """Entries by `who`, `node`, `boost`, `event`, `since` and `limit`; None matches everything."""
        given = {name: value for name, value in wanted.items() if value is not None}
        found: AuditEntries = self._answer(Call("GET", "/audit/log", params=given))
        return found["entries"]

    def stop_controller(self, *, force: bool, wait_s: float) -> Stopped:
        body: StopRequest = {"force": force, "wait_seconds": wait_s}
        return self._answer(Call("POST", "/controller/stop", body, answer_s=ANSWER_S + wait_s))


def _in_order(known: dict[str, Boost], changed: dict[str, Boost], ended: frozenset[str]) -> dict[str, Boost]:
    """A list of boosts, the oldest first, after changes to it. A change leaves a boost where it is."""
    if ended:
        known = {boost_id: boost for boost_id, boost in known.items() if boost_id not in ended}
    together = {**known, **changed}
    if len(together) == len(known):
        return together
    in_order = sorted(together.values(), key=lambda boost: (boost["allocated_at"], boost["boost_id"]))
    return {boost["boost_id"]: boost for boost in in_order}


def _segment(boost_id: str) -> str:
    """A boost's id as part of a path; an impossible id is not sent."""
    if not is_id(boost_id.strip()):
        raise BoostNotFound(
            f"No boost with the id {boost_id!r}", try_next="See the ids of all boosts: grid boost status"
        )
    return boost_id.strip()
