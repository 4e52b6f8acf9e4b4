"""Calls the controller over HTTP. Never imports ray, so that a command answers at once."""

# mypy: disable-error-code="no-any-return"
# Here JSON becomes typed answers; tests hold every answer against its definition.
from __future__ import annotations

import getpass
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from distributed_grid.client.connections import Answer, Channel, Connections, Unreachable, listens
from distributed_grid.client.whereabouts import NO_CLUSTER, Whereabouts
from distributed_grid.errors import (
    BoostNotFound,
    ControllerUnreachable,
    GridError,
    NoCluster,
    TokenNotFound,
    TooBusy,
    error_from_dict,
)
from distributed_grid.model.plain_text import plain_data
from distributed_grid.model.principals import is_token_word
from distributed_grid.model.validators import is_id, seconds, waiting_time
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditReport, Entry, Event
    from distributed_grid.wire.boosts import Boost, BoostRequest, BoostStatus, ProgramAnswer, ReleaseRequest, WorkStatus
    from distributed_grid.wire.controller import RunningConfig, Stopped
    from distributed_grid.wire.nodes import ClusterStatus, DemandList, NodeList, OneNode, SuggestionList
    from distributed_grid.wire.offload import (
        OffloadAnswer,
        OffloadCandidates,
        OffloadedProcess,
        OffloadLog,
        OffloadRequest,
        OffloadStatus,
    )
    from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus, Why
    from distributed_grid.wire.roles import RoleRun, RoleRunDown, RoleRunList
    from distributed_grid.wire.scheduling import TaskDecision, TaskDone, TaskList, TaskRequest
    from distributed_grid.wire.sharing import Cooldown, PolicyStatus, SharingStatus
    from distributed_grid.wire.tokens import Me, NewToken, RevokedTokens, TokenList, TokenRequest

RETRY_S: Final = 10.0
_RETRY_CHANGES_S: Final = 60.0
"""For changes: on a busy machine a controller may need this long to come back."""
_BUSY_PAUSE_S: Final = 1.0
_PAUSE_S: Final = 0.2
_ANSWER_S: Final = 30.0
_SLOW_S: Final = 2.0
_LOOK_S: Final = 60.0
_YIELD_S: Final = 120.0
"""A request that takes capacity back from others waits for their grace period, even if it did not ask to wait."""
RAYLET_S: Final = 1000.0
"""On a busy machine a private raylet takes minutes; the controller waits while it makes progress."""
_FROM_ELSEWHERE: Final = (
    "Check the URL, and that the network lets you reach it. On the head, grid cluster status shows whether grid is up."
)


def answers(home: GridHome, within_s: float = 3.0) -> bool:
    """Whether the controller of an installation answers now; one attempt, without waiting for an absent one.

    It has to accept the token: another program, perhaps another grid, may have its port by now.
    """
    try:
        if not home.controller.exists():
            return False  # the controller of a login is not this installation's
        found = Whereabouts.of(home)
        connections = Connections(found.url, {"Authorization": f"Bearer {found.token}"}, found.trust)
        answer = connections.ask("GET", "/api/v1/config", answer_s=within_s)
    except (GridError, Unreachable, KeyError, OSError):
        return False
    connections.close()
    return answer.is_success


class GridClient:
    """One controller's API as methods. Every answer is the API's own JSON."""

    def __init__(
        self,
        home: GridHome | None = None,
        *,
        at: Whereabouts | None = None,
        through: Channel | None = None,
        retry_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        plain: bool = False,
    ) -> None:
        """The controller that `home` leads to; or the one `at` a place, whatever `home` says.

        `through`: what carries the calls to it, if they do not go over HTTP. `plain`: for a terminal. Invisible
        characters in the answers are written out, except in the output of processes.
        """
        self.home = home or GridHome.find()
        self._at, self._through = at, through
        self._retry_s = retry_s
        self._plain = plain
        self._on_wait = on_wait
        self._channel: tuple[Whereabouts, Channel] | None = None

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel[1].close()

    def request_boost(self, body: BoostRequest, *, idempotency_key: str | None = None) -> Boost:
        key = idempotency_key or uuid.uuid4().hex
        wait = waiting_time(body.get("wait_seconds") or 0)
        return self._call("POST", "/boosts", body, headers={"Idempotency-Key": key}, patience_s=_YIELD_S + wait)

    def boost_status(self, node: str | None = None) -> BoostStatus:
        return self._call("GET", "/boosts", params={"node": node} if node else None)

    def boost(self, boost_id: str, *, to_use: bool = False) -> Boost:
        """One boost. `to_use`: to run something inside it, which only its owners may."""
        return self._call("GET", f"/boosts/{_segment(boost_id)}", params={"to_use": True} if to_use else None)

    def release_boost(self, boost_id: str, body: ReleaseRequest | None = None) -> Boost:
        """Give a boost back; with an `amount`, only that part of it, and the answer is about that part."""
        wait = waiting_time((body or {}).get("wait_seconds") or 0)
        path, key = f"/boosts/{_segment(boost_id)}/release", uuid.uuid4().hex
        return self._call("POST", path, body or {}, headers={"Idempotency-Key": key}, patience_s=_ANSWER_S + wait)

    def checkpointed(self, boost_id: str) -> Boost:
        """Report a checkpoint of the work in a boost."""
        return self._call("POST", f"/boosts/{_segment(boost_id)}/checkpoint")

    def renew_boost(self, boost_id: str, duration_s: object = None) -> Boost:
        return self._call("POST", f"/boosts/{_segment(boost_id)}/renew", {"duration_seconds": duration_s})

    def cluster_status(self) -> ClusterStatus:
        return self._call("GET", "/cluster")

    def nodes(self, history: int | None = None) -> NodeList:
        """Every node; with `history`, each with that many points of its last hour."""
        return self._call("GET", "/nodes", params=None if history is None else {"history": history})

    def node(self, name: str, horizon_s: float | None = None) -> OneNode:
        """One node with its last hour, and a forecast for `horizon_s` from now."""
        params = None if horizon_s is None else {"horizon_seconds": horizon_s}
        return self._call("GET", f"/nodes/{quote(name, safe='')}", params=params)

    def demand(self) -> DemandList:
        return self._call("GET", "/demand")

    def suggestions(self) -> SuggestionList:
        """What would help before something runs short, and the commands for it."""
        return self._call("GET", "/suggestions")

    def report_program(self, boost_id: str, program_id: str, label: str, *, is_inside: bool = True) -> ProgramAnswer:
        """Report whether a program is inside a boost; the boost, and the seconds until the program has to leave."""
        path = f"/boosts/{_segment(boost_id)}/programs/{_segment(program_id)}"
        return self._call("PUT", path, {"label": label, "is_inside": is_inside})

    def leave(self, boost_id: str, program_id: str) -> None:
        """Report that a program inside a boost has ended."""
        self._call("DELETE", f"/boosts/{_segment(boost_id)}/programs/{_segment(program_id)}")

    def work_in(self, boost_id: str, job_ids: Sequence[str], since: float | None = None) -> WorkStatus:
        """What these Ray jobs do, which of their tasks are not in the boost, and the drivers begun after `since`."""
        query = {"jobs": ",".join(job_ids)} | ({} if since is None else {"since": str(since)})
        return self._call("GET", f"/boosts/{_segment(boost_id)}/work", params=query)

    def join_private_cluster(self, boost_id: str, head_address: str) -> None:
        """Start a raylet inside a boost that joins the Ray at this address; returns when it is up."""
        path = f"/boosts/{_segment(boost_id)}/raylet"
        self._call("POST", path, {"head_address": head_address}, patience_s=RAYLET_S)

    def leave_private_cluster(self, boost_id: str) -> None:
        """End that raylet; the boost continues."""
        self._call("DELETE", f"/boosts/{_segment(boost_id)}/raylet", patience_s=RAYLET_S)

    def report_run(self, boost_id: str, seconds: float, exit_code: int) -> None:
        """Report how long a command took that ran in a boost."""
        self._call("POST", f"/boosts/{_segment(boost_id)}/runs", {"seconds": seconds, "exit_code": exit_code})

    def offload_candidates(self, node: str | None = None) -> OffloadCandidates:
        """Heavy processes that could run on another node, and those that could not."""
        return self._call("GET", "/offload/candidates", params={"node": node} if node else None, patience_s=_LOOK_S)

    def offload(self, body: OffloadRequest, *, idempotency_key: str | None = None) -> OffloadAnswer:
        """Move a process; with `dry_run` only report what would be done."""
        key = idempotency_key or uuid.uuid4().hex
        patience = _YIELD_S + seconds("grace period", body.get("grace_seconds") or 0, zero_allowed=True)
        return self._call("POST", "/offload", body, headers={"Idempotency-Key": key}, patience_s=patience)

    def offloads(self) -> OffloadStatus:
        return self._call("GET", "/offload")

    def cancel_offload(self, offload_id: str, grace_s: float) -> OffloadedProcess:
        path = f"/offload/{quote(offload_id, safe='')}/cancel"
        return self._call("POST", path, {"grace_seconds": grace_s}, patience_s=_ANSWER_S + grace_s)

    def offload_log(self, offload_id: str, begin: int = 0) -> OffloadLog:
        path = f"/offload/{quote(offload_id, safe='')}/log"
        return self._call("GET", path, params={"from": begin}, as_it_is=True)

    def sharing_status(self) -> SharingStatus:
        return self._call("GET", "/resource-sharing")

    def set_policy(self, *, policy: str | None = None, mode: str | None = None) -> PolicyStatus:
        return self._call("PUT", "/resource-sharing/policy", {"policy": policy, "mode": mode})

    def request_allocation(self, body: AllocationRequest, *, idempotency_key: str | None = None) -> Allocation:
        """Ask for capacity and let the request wait in the controller's queue."""
        key = idempotency_key or uuid.uuid4().hex
        return self._call("POST", "/requests", body, headers={"Idempotency-Key": key})

    def queue(self) -> QueueStatus:
        return self._call("GET", "/requests")

    def allocation(self, request_id: str) -> Allocation:
        return self._call("GET", f"/requests/{_segment(request_id)}")

    def release_allocation(self, request_id: str) -> Allocation:
        return self._call("POST", f"/requests/{_segment(request_id)}/release", {})

    def plan(self, body: PlanRequest) -> Plan:
        """What would happen to such a request now."""
        return self._call("POST", "/plan", body)

    def why(self, request_or_boost: str) -> Why:
        return self._call("GET", f"/why/{_segment(request_or_boost)}")

    def schedule_task(self, body: TaskRequest) -> TaskDecision:
        """Find a place for a task. It has an id before it is sent, so that a retry does not create a second one."""
        sent: TaskRequest = {**body, "task_id": body.get("task_id") or uuid.uuid4().hex}
        return self._call("POST", "/tasks", sent, patience_s=_YIELD_S)

    def tasks(self) -> TaskList:
        return self._call("GET", "/tasks")

    def task(self, task_id: str) -> TaskDecision:
        return self._call("GET", f"/tasks/{quote(task_id, safe='')}")

    def task_started(self, task_id: str) -> TaskDecision:
        return self._call("POST", f"/tasks/{quote(task_id, safe='')}/started")

    def complete_task(self, task_id: str) -> TaskDone:
        return self._call("POST", f"/tasks/{quote(task_id, safe='')}/complete")

    def role_runs(self) -> RoleRunList:
        """All runs of roles, in short."""
        return self._call("GET", "/roles")

    def role_run(self, name: str) -> RoleRun:
        """One run of roles with all of its members."""
        return self._call("GET", f"/roles/{quote(name, safe='')}")

    def scale_role(self, name: str, role: str, count: int) -> RoleRun:
        """Ask for another count of a role; the run's owner makes the change."""
        return self._call("POST", f"/roles/{quote(name, safe='')}/scale", {"role": role, "count": count})

    def role_run_down(self, name: str, *, only_over: bool = False) -> RoleRunDown:
        """Ask a run to end, or forget one that is over. `only_over`: leave a live run alone."""
        return self._call("DELETE", f"/roles/{quote(name, safe='')}", params={"only_over": only_over})

    def cooldown(self, node: str, *, on: bool = True, grace_s: float | None = None) -> Cooldown:
        body = {"on": on, "grace_seconds": grace_s}
        return self._call("POST", f"/nodes/{quote(node, safe='')}/cooldown", body)

    def events(self, after: int = 0) -> list[Event]:
        return self._call("GET", "/events", params={"after": after})["events"]

    def config(self) -> RunningConfig:
        return self._call("GET", "/config")

    def url(self) -> str:
        """The controller's URL."""
        return (self._channel or self._find())[0].url

    def ray_address(self) -> str:
        """The address of the cluster that the controller is in."""
        found = self._channel[0] if self._channel else self._find()[0]
        return found.ray_address or self.cluster_status()["ray_address"]

    def health(self) -> None:
        """Returns if a controller answers. Needs no token, and sends none if there is none."""
        if self._call("GET", "/health") != {"status": "ok"}:
            raise self._not_grid()

    def me(self) -> Me:
        return self._call("GET", "/me")

    def create_token(self, body: TokenRequest) -> NewToken:
        return self._call("POST", "/tokens", body)

    def tokens(self) -> TokenList:
        return self._call("GET", "/tokens")

    def revoke_tokens(self, id_or_name: str) -> RevokedTokens:
        if not is_token_word(id_or_name):
            raise TokenNotFound(
                f"No token has the id or the name {id_or_name!r}", try_next="See all of them: grid token ls"
            )
        return self._call("DELETE", f"/tokens/{id_or_name}")

    def audit(self) -> AuditReport:
        return self._call("GET", "/audit")

    def repair(self, *, kill: bool = False) -> AuditReport:
        return self._call("POST", "/audit/repair", {"kill": kill})

    def audit_log(self, /, **wanted: object) -> list[Entry]:
        """Entries by `who`, `node`, `boost`, `event`, `since` and `limit`; None matches everything."""
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._call("GET", "/audit/log", params=given)["entries"]

    def stop_controller(self, *, force: bool, wait_s: float) -> Stopped:
        return self._call(
            "POST",
            "/controller/stop",
            {"force": force, "wait_seconds": wait_s},
            patience_s=_ANSWER_S + wait_s,
        )

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = _ANSWER_S,
        as_it_is: bool = False,
    ) -> Any:
        """Call the controller; retry while it is too busy, or away: Ray restarts it after a crash."""
        retry_s = (RETRY_S if method == "GET" else _RETRY_CHANGES_S) if self._retry_s is None else self._retry_s
        deadline = time.monotonic() + retry_s
        has_said = False
        sent = dict(headers or {})
        while True:
            is_known = self._channel is not None
            found, connections = self._channel or self._find()
            try:
                with self._message_if_slow(found.url, patience_s):
                    answer = connections.ask(
                        method, f"/api/v1{path}", body, params=params, headers=sent, answer_s=patience_s
                    )
            except Unreachable as error:
                self.close()
                sent["X-Grid-Retry"] = "1"  # the call may have succeeded, and only the answer was lost
                if found.ray_address and not listens(found.ray_address):
                    raise NoCluster(
                        "No cluster is running",
                        because=[f"the cluster at {found.ray_address} has ended", *self._other_place()],
                        try_next=NO_CLUSTER,
                    ) from error
                if time.monotonic() > deadline:
                    raise ControllerUnreachable(
                        f"The controller at {found.url} does not answer",
                        because=[str(error)],
                        try_next="To find the cause: grid doctor" if found.ray_address else _FROM_ELSEWHERE,
                    ) from error
                if not has_said and self._on_wait:
                    self._on_wait(f"The controller does not answer; trying again for {retry_s:.0f} s ...")
                    has_said = True
                time.sleep(_PAUSE_S)
                continue
            if answer.status == HTTPStatus.UNAUTHORIZED and is_known:
                self.close()  # another controller is there by now
                continue
            if not answer.is_success:
                failure = _error_of(answer)
                if isinstance(failure, TooBusy) and time.monotonic() + _BUSY_PAUSE_S < deadline:
                    time.sleep(_BUSY_PAUSE_S)
                    continue
                raise failure
            try:
                result = answer.json()
            except ValueError:
                raise self._not_grid() from None
            return plain_data(result) if self._plain and not as_it_is else result

    @contextmanager
    def _message_if_slow(self, url: str, patience_s: float) -> Iterator[None]:
        """Report once what a call is waiting for; calls that normally take longer get that time first."""
        if self._on_wait is None:
            yield
            return
        after_s = _SLOW_S + max(0.0, patience_s - _ANSWER_S)
        message = f"Waiting for the controller at {url} to answer ..."
        timer = threading.Timer(after_s, self._on_wait, [message])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _find(self) -> tuple[Whereabouts, Channel]:
        """The controller's present place; cached until it does not answer there."""
        found = self._at or Whereabouts.of(self.home)
        if self._through is not None:
            self._channel = (found, self._through)
            return self._channel
        headers = {"X-Grid-User": user_name()}
        if found.token:
            headers["Authorization"] = f"Bearer {found.token}"
        self._channel = (found, Connections(found.url, headers, found.trust))
        return self._channel

    def _not_grid(self) -> ControllerUnreachable:
        return ControllerUnreachable(f"The server at {self.url()} is not grid's controller", try_next=_FROM_ELSEWHERE)

    def _other_place(self) -> list[str]:
        if not self.home.login.exists():
            return []
        return [f"you are also logged in elsewhere, but {self.home.controller} takes precedence while it exists"]


def _error_of(answer: Answer) -> GridError:
    try:
        return error_from_dict(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return ControllerUnreachable(f"The server answered {answer.status} with no reason", try_next=_FROM_ELSEWHERE)


def _segment(boost_id: str) -> str:
    """A boost's id as part of a path; an impossible id is not sent."""
    if not is_id(boost_id.strip()):
        raise BoostNotFound(
            f"No boost with the id {boost_id!r}", try_next="See the ids of all boosts: grid boost status"
        )
    return boost_id.strip()


def user_name() -> str:
    """The user's name for the audit log, in characters that a header may carry."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name.encode("ascii", "replace").decode()[:64]
