"""The real controller's engine, API and HTTP server, on a fake cluster: for tests that need many calls, not Ray."""

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from answer_checks import AnswersChecked
from builders import FOR_ANA, LENDS_ALL
from fake_clock import Clock
from fake_cluster import FakeCluster
from fake_key_value_store import FakeKeyValueStore
from fake_processes import FakeProcesses
from fake_telemetry import FakeTelemetry

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Answer, Call, Connections, Trust
from distributed_grid.config import GridConfig
from distributed_grid.controller.api import make_app
from distributed_grid.controller.listening import checked, fingerprint, listen, url_of
from distributed_grid.controller.server import make_server
from distributed_grid.controller.tokens import Tokens, ensure_token
from distributed_grid.engine.engine import Engine
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.leases.reclaim import reclaim
from distributed_grid.leases.state import utc_now
from distributed_grid.model.leases import Lease
from distributed_grid.model.listening import Listening
from distributed_grid.model.resources import units_of
from distributed_grid.store.audit_log import Wanted
from distributed_grid.store.home import GridHome
from distributed_grid.store.token_file import TokenFile

NODES = {"a": {"cpus": 8, "gpus": 1, "memory": 16}, "b": {"cpus": 8, "memory": 16}, "c": {"cpus": 8, "gpus": 1}}
API = "/api/v1"
T = TypeVar("T")


class WallClock(Clock):
    """For a cluster that is used in real time."""

    def __call__(self) -> float:
        self.now = time.monotonic()
        return self.now

    def sleep(self, seconds: float) -> None:
        self()


async def asked_back(engine: Engine, boost_id: str, amount: float | None, reason: str = "ana needs it") -> Lease:
    lease = engine.parts.ledger.find(boost_id)
    units = None if amount is None else units_of(lease.kind, amount)
    asked = reclaim(engine.parts, lease, reason, FOR_ANA, units=units)
    await engine.parts.try_commit()
    return asked


class ServedGrid:
    def __init__(
        self,
        folder: Path,
        listening: Listening | None = None,
        nodes: Mapping[str, Mapping[str, float]] = NODES,
        telemetry: FakeTelemetry | None = None,
        node_owners: Mapping[str, list[str]] | None = None,
        teams: list[dict[str, Any]] | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        """`telemetry`: what its first look, which may come at any time, is to find already."""
        owners = node_owners or {}
        self.home = GridHome(folder / "home").create()
        self.listening = checked(listening or Listening())
        self.cluster = FakeCluster(WallClock())
        for name, base in nodes.items():
            self.cluster.add_node(name, **base)
        self.config = GridConfig.from_dict(
            {
                "name": "lab",
                "resource_sharing": LENDS_ALL | {"teams": teams or []},
                "nodes": [{"name": name, "owners": owners.get(name, [])} for name in nodes],
                "limits": {"requests_per_second": 1000} | dict(limits or {}),  # tests are in a hurry
            }
        )
        self.left = 0
        self.wrong_answers: list[str] = []
        """Answers that are not as their definition says."""
        self.answered: set[str] = set()
        """The endpoints that have given what was asked, such as "GET /api/v1/boosts"."""
        self.telemetry = telemetry or FakeTelemetry()
        self.control = FakeProcesses()
        self.store = FakeKeyValueStore()
        self.role_records = RoleRecords(self.store)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(120), "the controller did not start"
        self.client = GridClient(self.home)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = engine = Engine(
            self.cluster,
            self.config,
            self.home,
            telemetry=self.telemetry,
            control=self.control.control,
        )
        await engine.start()
        tokens = Tokens(ensure_token(self.home.token), TokenFile(self.home.tokens), utc_now)
        socket = listen(self.listening.host, self.listening.port)
        tls = self.listening.tls_cert
        self.url = url_of(socket, tls=bool(tls), own_address="127.0.0.1")
        where = {
            "url": self.url,
            "tls_sha256": fingerprint(tls) if tls else None,
            "pid": 1,
            "ray_address": "127.0.0.1:1",
            "ray_auth_mode": "disabled",
            "config_source": "a test",
        }
        hosts = self.listening.allow_hosts
        self.app = make_app(engine, tokens, lambda: where, self._leave, hosts, self.role_records)
        self.app.add_middleware(AnswersChecked, wrong=self.wrong_answers, answered=self.answered)
        self.server = make_server(self.app, self.listening)
        self.server.install_signal_handlers = lambda: None
        self.home.controller.write_text(json.dumps(where))
        self._ready.set()
        await self.server.serve(sockets=[socket])
        await engine.stop()

    async def _leave(self) -> None:
        self.left += 1

    def close(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(120)
        assert not self._thread.is_alive(), "the controller did not end"
        assert not self.wrong_answers, self.wrong_answers[:5]

    def in_its_loop(self, doing: Coroutine[Any, Any, T]) -> T:
        """What the controller itself would do, done in its own loop."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(120)

    def reclaim(self, boost_id: str, amount: float | None = None, reason: str = "ana needs it") -> Lease:
        """Another request needs a boost, or part of it."""
        return self.in_its_loop(asked_back(self.engine, boost_id, amount, reason))

    def measure(self) -> None:
        """One round of measuring, now, in the controller's own loop."""
        watching = self.engine.watching
        assert watching is not None
        self.in_its_loop(watching.collector.round())

    def rebalance(self) -> None:
        """One round of rebalancing, now, in the controller's own loop."""
        rebalancing = self.engine.rebalancing
        assert rebalancing is not None
        asyncio.run_coroutine_threadsafe(rebalancing.round(), self._loop).result(120)

    # -- asking --------------------------------------------------------------------------------------------

    def token(self, name: str, *scopes: str, **others: Any) -> str:
        return str(self.client.create_token({"name": name, "scopes": list(scopes), **others})["token"])

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, at: str = API, **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer; None where it is no JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        answer = self.raw(method, path, body, sent, at)
        return answer.status, answer.json() if answer.body.startswith((b"{", b"[")) else None

    def raw(self, method: str, path: str, body: Any, headers: dict[str, str], at: str = API) -> Answer:
        tls = self.listening.tls_cert
        trust = Trust(sha256=fingerprint(tls)) if tls else None
        connections = Connections(self.url, headers, trust)
        try:
            return connections.ask(Call(method, at + path, body, answer_s=120))
        finally:
            connections.close()

    def audit(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The last entries, or all."""
        return self.engine.parts.journal.recorded(Wanted(), limit)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    """One controller for a module, on loopback."""
    grid = ServedGrid(tmp_path_factory.mktemp("served"))
    yield grid
    grid.close()


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    """One for a single test, which may leave anything in it."""
    grid = ServedGrid(tmp_path_factory.mktemp("fresh"))
    yield grid
    grid.close()
