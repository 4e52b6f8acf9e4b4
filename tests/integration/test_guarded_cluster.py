"""Access on a real cluster: a Ray that wants its own token, and a controller that answers off loopback, with TLS."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import trustme
from hypothesis import HealthCheck, given, seed, settings
from live_grid import GRID, until

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Trust
from distributed_grid.client.whereabouts import Whereabouts
from distributed_grid.cluster import NodeSpec, local
from distributed_grid.cluster.ports import own_address
from distributed_grid.cluster.supervise import end_supervisors
from distributed_grid.controller.limits import MOST_FAILURES
from distributed_grid.errors import AccessDenied, GridError, TooManyAttempts
from distributed_grid.store.audit_log import AuditLog
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

HEAD = NodeSpec(name="head", cpus=1, gpus=0, memory_bytes=2**30, resources={}, is_head=True)
WORKER = NodeSpec(name="worker", cpus=4, gpus=0, memory_bytes=2**31, resources={}, is_head=False)

# Run apart: a process's Ray takes one token for its whole life.
TOTALS = """
import json, sys, ray
import ray._private.state as state
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
names = {n["NodeID"]: n["Labels"]["grid/name"] for n in ray.nodes() if n["Alive"]}
print(json.dumps({names[i]: found.get("CPU", 0) for i, found in state.total_resources_per_node().items()}))
"""
TASK = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
where = lambda: ray.get_runtime_context().get_node_labels()["grid/name"]
print(ray.get(ray.remote(where).options(num_cpus=2, label_selector={"grid/name": "head"}).remote(), timeout=60))
"""


class Guarded:
    """A Ray cluster that lets no client in without its token, with grid in it at the machine's own address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = GridHome(folder / "home")
        secret = folder / "ray-token"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        self.ray_auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(secret)}
        self.address = ""

    def env(self, home: GridHome | None = None, **more: str) -> dict[str, str]:
        taken = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "GRID_CONFIG")
        plain = {name: value for name, value in os.environ.items() if name not in taken}
        return plain | {"GRID_HOME": str((home or self.home).path)} | more

    def grid(
        self, *args: str, home: GridHome | None = None, stdin: str = "", **env: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [GRID, *args],
            env=self.env(home, **env),
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def python(self, program: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program, self.address],
            env=self.env(**env),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def totals(self) -> dict[str, float]:
        """As Ray itself says, to a client with its token."""
        done = self.python(TOTALS, **self.ray_auth)
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    def json(self, *args: str, **more: Any) -> Any:
        done = self.grid(*args, "--json", **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    grid = Guarded(tmp_path_factory.mktemp("guarded"))
    cluster_home = GridHome(grid.folder / "cluster").create()
    authority = trustme.CA()
    issued = authority.issue_cert(own_address())
    issued.private_key_pem.write_to_path(str(grid.folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(grid.folder / "cert.pem"))
    authority.cert_pem.write_to_path(str(grid.folder / "ca.pem"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_AUTH_TOKEN", raising=False)
        for name, value in grid.ray_auth.items():
            patch.setenv(name, value)
        grid.address = local.start(cluster_home, "guarded", [HEAD, WORKER], progress=lambda _: None).ray_address
    try:
        yield grid
    finally:
        end_supervisors(grid.home)
        local.stop(cluster_home, progress=lambda _: None)


@pytest.fixture(scope="module")
def inside(guarded: Guarded) -> Guarded:
    """grid in it; relative paths, as people type them."""
    options = ["--host", own_address(), "--tls-cert", "cert.pem", "--tls-key", "key.pem"]
    started = guarded.grid("start", "--address", guarded.address, *options, **guarded.ray_auth)
    assert started.returncode == 0, started.stderr
    assert f"https://{own_address()}:" in started.stdout
    return guarded


def test_a_ray_that_wants_a_token_does_not_take_grid_without_it(guarded: Guarded) -> None:
    nothing = guarded.grid("start", "--address", guarded.address)
    wrong = guarded.grid("start", "--address", guarded.address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)

    for done in (nothing, wrong):
        assert done.returncode == 6, done.stderr
        assert f"The token for the Ray cluster at {guarded.address} is missing or wrong" in done.stderr
        assert "0" * 64 not in done.stderr


def test_boosts_on_a_ray_with_a_token(inside: Guarded) -> None:
    """The commands need no Ray token: the controller, which is in the cluster, has it."""
    moved = inside.json("boost", "request", "head", "cpu", "2")
    reserved = inside.json("boost", "request", "head", "cpu", "1", "--delivery", "reserve")
    until(lambda: inside.totals() == {"head": 3.0, "worker": 2.0}, 20)
    done = inside.python(TASK, **inside.ray_auth)
    assert done.stdout.splitlines()[-1:] == ["head"], done.stderr

    for boost in (moved, reserved):
        inside.json("boost", "release", boost["boost_id"], "--wait", "20")

    until(lambda: inside.totals() == {"head": 1.0, "worker": 4.0}, 20)
    refused = inside.python(TOTALS, RAY_NUM_REDIS_GET_RETRIES="1")  # not twenty times, a second apart
    assert refused.returncode != 0, "Ray let a client in without its token"
    assert "AuthenticationError" in refused.stderr


def test_the_doctor_finds_nothing_wrong_with_it(inside: Guarded) -> None:
    findings = {f["code"]: f for f in inside.json("doctor", **inside.ray_auth)["findings"]}

    assert findings["controller"]["severity"] == "ok", findings["controller"]
    assert findings["authentication"]["severity"] == "ok", findings["authentication"]


def test_a_user_elsewhere_logs_in_boosts_and_is_named(inside: Guarded, tmp_path: Path) -> None:
    laptop = GridHome(tmp_path / "laptop")
    url = json.loads(inside.home.controller.read_text())["url"]
    made = inside.json("token", "create", "ana", "--team", "vision", "--scope", "view", "--scope", "lend")

    logged = inside.grid("login", url, "--ca", "ca.pem", home=laptop, stdin=made["token"])
    assert logged.returncode == 0, logged.stderr
    boost = inside.json("boost", "request", "head", "cpu", "1", home=laptop)
    inside.json("boost", "release", boost["boost_id"], home=laptop)
    not_allowed = inside.grid("stop", home=laptop)
    inside.json("token", "revoke", "ana")
    revoked = inside.grid("boost", "status", home=laptop)

    who = {line["event"]: line["who"] for line in AuditLog(inside.home.audit_log).read()}
    assert (who["granted"], who["release_asked"]) == ("ana", "ana")
    assert (not_allowed.returncode, revoked.returncode) == (6, 6)
    assert "needs the scope admin" in not_allowed.stderr


def test_the_controller_has_its_tokens_again_after_a_crash(inside: Guarded) -> None:
    record = json.loads(inside.home.controller.read_text())
    token = inside.json("token", "create", "bob", "--scope", "view")["token"]
    trust = Trust(sha256=record["tls_sha256"])
    bob = GridClient(inside.home, at=Whereabouts(record["url"], token, trust=trust), retry_s=60.0)

    os.kill(record["pid"], 9)

    assert bob.me()["name"] == "bob"
    until(lambda: json.loads(inside.home.controller.read_text())["pid"] != record["pid"], 20)
    bob.close()


def test_the_whole_api_on_a_real_cluster(inside: Guarded) -> None:
    """Short: the volume is in tests/controller."""
    record = json.loads(inside.home.controller.read_text())
    viewer = inside.json("token", "create", "viewer", "--scope", "view")["token"]
    ca = str(inside.folder / "ca.pem")
    document = schemathesis.openapi.from_url(f"{record['url']}/api/v1/openapi.json", verify=ca)
    before = inside.json("boost", "status"), inside.json("token", "ls")
    statuses = set()
    for found in document.get_all_operations():
        operation: Any = found.ok()

        def check(case: Any) -> None:
            case.headers = {k: v for k, v in (case.headers or {}).items() if k.lower() != "authorization"}
            answer = case.call(headers={"Authorization": f"Bearer {viewer}"}, verify=ca)
            assert answer.status_code < 500, (answer.status_code, answer.text)
            looks = case.operation.method.upper() == "GET" or case.operation.path.endswith("/plan")
            statuses.add((looks, answer.status_code))

        few = settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        seed(1)(few(given(operation.as_strategy())(lambda case: check(case))))()

    assert (inside.json("boost", "status"), inside.json("token", "ls")) == before
    assert (True, 200) in statuses
    assert {status for looks, status in statuses if not looks} <= {403, 404, 405}


def test_a_caller_that_guesses_is_put_off_but_not_the_owner_on_the_same_machine(inside: Guarded) -> None:
    record = json.loads(inside.home.controller.read_text())
    errors: list[type[GridError]] = []
    for n in range(MOST_FAILURES):
        place = Whereabouts(record["url"], f"guess-{n}", trust=Trust(sha256=record["tls_sha256"]))
        client = GridClient(inside.home, at=place)
        with pytest.raises(AccessDenied) as denied:
            client.me()
        errors.append(type(denied.value))
        client.close()

    assert errors[0] is AccessDenied
    assert errors[-1] is TooManyAttempts
    assert inside.json("whoami")["scopes"] == ["admin"]
    assert "guess-" not in inside.home.audit_log.read_text()
