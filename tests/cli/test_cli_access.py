"""grid token, login, logout and whoami, as typed, against a real server with a real certificate."""

import asyncio
import json
import os
import pty
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme
from served_grid import ServedGrid

from distributed_grid.client import GridClient
from distributed_grid.client.connections import Trust
from distributed_grid.client.whereabouts import Whereabouts, logged_in
from distributed_grid.errors import CertificateUntrusted, ScopeMissing
from distributed_grid.model.listening import Listening
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.store.home import GridHome

GRID = str(Path(sys.executable).with_name("grid"))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[ServedGrid]:
    """A controller with a certificate for `localhost`, which an unknown authority has signed."""
    folder = tmp_path_factory.mktemp("head")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    listening = Listening(tls_cert=str(folder / "cert.pem"), tls_key=str(folder / "key.pem"))
    grid = ServedGrid(folder, listening, teams=[{"name": "vision"}])
    yield grid
    grid.close()


class Laptop:
    """Another machine: a home of its own that knows nothing of the head."""

    def __init__(self, folder: Path, head: ServedGrid) -> None:
        self.home = GridHome(folder / "laptop")
        self.url = head.url.replace("127.0.0.1", "localhost")
        self.ca = str(head.home.path.parent / "ca.pem")

    def grid(self, *args: str, stdin: str = "", home: GridHome | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [GRID, *args],
            env=os.environ | {"GRID_HOME": str((home or self.home).path), "RAY_ADDRESS": ""},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def login(self, token: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return self.grid("login", self.url, "--ca", self.ca, *more, stdin=f"{token}\n")


@pytest.fixture
def laptop(tmp_path: Path, head: ServedGrid) -> Laptop:
    return Laptop(tmp_path, head)


def test_make_hand_out_use_and_revoke_a_token(head: ServedGrid, laptop: Laptop) -> None:
    made = laptop.grid(
        "token", "create", "ana", "--team", "vision", "--scope", "view", "--scope", "lend", home=head.home
    )
    assert made.returncode == 0, made.stderr
    assert "is configured" not in made.stderr
    token = made.stdout.strip()
    assert token not in made.stderr

    assert "Logged in at https://localhost" in laptop.login(token).stdout
    me = laptop.grid("whoami")
    assert me.stdout.startswith("ana of team vision, who may: lend, view; priority up to normal (token ")
    asked = laptop.grid("boost", "request", "a", "cpu", "1", "--json")
    assert asked.returncode == 0, asked.stderr
    assert laptop.grid("boost", "release", json.loads(asked.stdout)["boost_id"]).returncode == 0
    assert [line["who"] for line in head.audit() if line["event"] == "granted"][-1] == "ana"

    listed = laptop.grid("token", "ls", home=head.home)
    assert "ana   vision  lend,view" in listed.stdout
    assert token not in listed.stdout
    refused = laptop.grid("token", "ls")
    assert refused.returncode == 6
    assert "needs the scope admin" in refused.stderr

    revoked = laptop.grid("token", "revoke", "ana", home=head.home)
    assert revoked.returncode == 0
    assert "of ana (vision)" in revoked.stdout
    after = laptop.grid("boost", "status")
    assert after.returncode == 6
    assert "missing or wrong" in after.stderr
    assert token not in after.stderr


def test_scopes_and_lifetimes_can_be_written_as_they_are_shown(head: ServedGrid, laptop: Laptop) -> None:
    made = laptop.grid("token", "create", "zoe", "--scope", "view,lend", "--expires", "30d", home=head.home)

    assert made.returncode == 0, made.stderr
    assert f"To use it:  grid login {head.url}" in made.stderr
    (listed,) = [each for each in head.client.tokens()["tokens"] if each["name"] == "zoe"]
    assert listed["scopes"] == ["lend", "view"]
    lifetime = datetime.fromisoformat(listed["expires_at"]) - datetime.fromisoformat(listed["created_at"])
    assert lifetime == timedelta(days=30)
    for wrong in (["--expires", "0d"], ["--expires", "soon"], ["--scope", "view,"], ["--scope", "view,all"]):
        assert laptop.grid("token", "create", "zoe", *wrong, home=head.home).returncode == 2


def test_json_has_the_apis_schema(head: ServedGrid, laptop: Laptop) -> None:
    made = json.loads(laptop.grid("token", "create", "json", "--expires", "60", "--json", home=head.home).stdout)

    assert made["name"] == "json" and made["scopes"] == ["view"] and made["expires_at"]
    logged = laptop.grid("login", laptop.url, "--ca", laptop.ca, "--json", stdin=made["token"])
    assert json.loads(logged.stdout)["url"] == laptop.url
    assert json.loads(laptop.grid("whoami", "--json").stdout)["token_id"] == made["id"]
    listed = json.loads(laptop.grid("token", "ls", "--json", home=head.home).stdout)["tokens"]
    assert made["id"] in [entry["id"] for entry in listed] and "token" not in listed[0]
    revoked = json.loads(laptop.grid("token", "revoke", made["id"], "--json", home=head.home).stdout)
    assert [entry["id"] for entry in revoked["revoked"]] == [made["id"]]


def test_what_is_stored_is_for_its_owner_only_and_goes_with_logout(head: ServedGrid, laptop: Laptop) -> None:
    laptop.login(head.token("bob", "view"))

    assert laptop.home.login.stat().st_mode & 0o777 == 0o600
    assert "Logged out" in laptop.grid("logout").stdout
    assert not laptop.home.login.exists()
    assert laptop.grid("boost", "status").returncode == 5
    assert "not logged in" in laptop.grid("logout").stdout


def test_a_wrong_token_logs_no_user_in(head: ServedGrid, laptop: Laptop) -> None:
    for token in ("grid_wrong", "", "two words"):
        done = laptop.login(token)
        assert done.returncode == 6, done.stderr
        assert not laptop.home.login.exists()
        assert "grid_wrong" not in done.stderr


def test_a_certificate_without_an_authority_is_refused_at_once_and_gets_no_token(
    head: ServedGrid, laptop: Laptop, tmp_path: Path
) -> None:
    token = head.token("cy", "view")
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("hello")

    unknown = laptop.grid("login", laptop.url, stdin=token)
    wrong_ca = laptop.grid("login", laptop.url, "--ca", str(other), stdin=token)
    wrong_name = laptop.grid("login", head.url, "--ca", laptop.ca, stdin=token)
    no_ca = laptop.grid("login", laptop.url, "--ca", str(nonsense), stdin=token)

    for done in (unknown, wrong_ca, wrong_name):
        assert done.returncode == 6, done.stderr
        assert "is not trusted" in done.stderr
        assert "grid login URL --ca FILE" in done.stderr
    assert no_ca.returncode == 2
    assert not laptop.home.login.exists()


def test_a_client_with_the_same_home_knows_the_very_certificate(head: ServedGrid, tmp_path: Path) -> None:
    """No authority and no name is needed there: controller.json says which one it is."""
    assert head.client.me()["scopes"] == ["admin"]

    record = json.loads(head.home.controller.read_text())
    pinned = Trust(sha256="0" * 64)
    stranger = GridClient(head.home, at=Whereabouts(record["url"], "secret", trust=pinned), retry_s=0.0)
    with pytest.raises(CertificateUntrusted):
        stranger.me()
    stranger.close()


NO_URLS = [
    *("ftp://head", "https://", "https://head:x", "https://head:99999", "https://head/path", "https://u:p@head"),
    *("not a url", "https://a..b", "https://head?x=1", "https://head#x", "https://@head", f"https://{'x' * 64}"),
]


@pytest.mark.parametrize("url", NO_URLS)
@pytest.mark.parametrize("stdin", ["grid_x", ""], ids=["with a token", "without"])
def test_what_is_no_url_of_a_controller_is_told_before_a_token_is_wanted(laptop: Laptop, url: str, stdin: str) -> None:
    done = laptop.grid("login", url, stdin=stdin)

    assert done.returncode == 2
    assert f"{url!r} is not the URL of a controller" in done.stderr
    assert "grid login https://HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["http://192.0.2.1:9"], 2, "could read your token"),
        (["https://localhost:9", "--ca", "/nowhere"], 2, "--ca /nowhere cannot be read"),
        (["https://localhost:9", "--ca", "/dev/zero"], 2, "--ca /dev/zero is larger than 4 MB"),
        (["https://localhost:9", "--ca", __file__], 2, "no certificate in PEM format"),
        (["http://localhost:9", "--ca", __file__], 2, "--ca needs an https:// URL"),
        (["https://localhost:9"], 5, "at https://localhost:9 does not answer"),
        (["https://nowhere.invalid"], 5, "at https://nowhere.invalid does not answer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_everything_else_that_is_wrong_is_told_before_a_token_is_wanted(
    laptop: Laptop, arguments: list[str], code: int, told: str
) -> None:
    done = laptop.grid("login", *arguments, stdin="")

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "This is not a token" not in done.stderr


def test_a_token_without_an_end_is_none(laptop: Laptop) -> None:
    with Path("/dev/zero").open("rb") as endless:
        done = subprocess.run(
            [GRID, "login", laptop.url, "--ca", laptop.ca],
            env=os.environ | {"GRID_HOME": str(laptop.home.path)},
            stdin=endless,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 6
    assert "This is not a token" in done.stderr


def test_a_place_that_is_not_grids_or_not_to_be_trusted_is_told_before_a_token_is_wanted(
    head: ServedGrid, laptop: Laptop
) -> None:
    untrusted = laptop.grid("login", laptop.url)
    in_clear_text = laptop.grid("login", laptop.url.replace("https", "http"))

    assert untrusted.returncode == 6 and "is not trusted" in untrusted.stderr
    assert in_clear_text.returncode == 5 and "does not answer" in in_clear_text.stderr


class _AnotherServer(BaseHTTPRequestHandler):
    """A web server that welcomes any caller."""

    came: ClassVar[list[Message]] = []

    def do_GET(self) -> None:
        self.came.append(self.headers)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>Welcome</h1>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_another_server_that_answers_gets_no_token(laptop: Laptop) -> None:
    with HTTPServer(("127.0.0.1", 0), _AnotherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = laptop.grid("login", f"http://127.0.0.1:{server.server_port}", stdin="grid_x")
        server.shutdown()

    assert done.returncode == 5
    assert "is not grid's controller" in done.stderr
    assert _AnotherServer.came and all("Authorization" not in headers for headers in _AnotherServer.came)


def test_a_port_that_speaks_no_http_is_told_in_words(laptop: Laptop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):
                connection = server.accept()[0]
                connection.sendall(b"\x1b[2Jhello\r\n")
                connection.recv(1000)
                connection.close()

        threading.Thread(target=greet, daemon=True).start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        plain = laptop.grid("login", f"http://{place}", stdin="grid_x")
        tls = laptop.grid("login", f"https://{place}", stdin="grid_x")

    assert plain.returncode == tls.returncode == 5
    assert "its answer is not HTTP" in plain.stderr and "\x1b[2J" not in plain.stderr
    assert "it does not speak TLS" in tls.stderr


def test_a_token_is_not_sent_in_clear_text_unless_told_to(laptop: Laptop) -> None:
    done = laptop.grid("login", "http://192.0.2.1:9", stdin="grid_x")

    assert done.returncode == 2
    assert "read your token" in done.stderr
    assert "--insecure" in done.stderr


def test_on_a_terminal_the_token_is_asked_for_and_not_shown(head: ServedGrid, laptop: Laptop) -> None:
    token = head.token("dee", "view")
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [GRID, "login", laptop.url, "--ca", laptop.ca],
        env=os.environ | {"GRID_HOME": str(laptop.home.path)},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(inside)
    shown = b""
    deadline = time.monotonic() + 30
    while b"Token" not in shown and time.monotonic() < deadline:
        shown += os.read(terminal, 1024)
    os.write(terminal, f"{token}\n".encode())
    while True:
        try:
            part = os.read(terminal, 1024)
        except OSError:  # the other side is gone
            break
        if not part:
            break
        shown += part
    assert process.wait(30) == 0, shown
    os.close(terminal)
    assert b"as dee" in shown
    assert token.encode() not in shown


def test_a_controller_of_its_own_comes_first(head: ServedGrid, laptop: Laptop) -> None:
    token = head.token("eli", "view")
    laptop.login(token)
    (laptop.home.path / "token").write_text("t\n")
    laptop.home.controller.write_text(
        json.dumps({"url": "http://127.0.0.1:9", "pid": 1, "ray_address": "127.0.0.1:9", "tls_sha256": None})
    )

    done = laptop.grid("whoami")
    again = laptop.login(token)

    assert done.returncode == 5
    assert "takes precedence while it exists" in done.stderr
    assert "has a controller of its own" in again.stderr
    laptop.home.controller.unlink()
    assert laptop.grid("whoami").returncode == 0


def test_a_damaged_login_says_so_and_shows_nothing_of_it(laptop: Laptop) -> None:
    laptop.home.create().login.write_text('{"url": "https://x", "token": "grid_secret"')

    done = laptop.grid("boost", "status")

    assert done.returncode == 6
    assert "Log in again" in done.stderr
    assert "grid_secret" not in done.stderr


def test_python_goes_where_the_command_goes(head: ServedGrid, laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop.login(head.token("fay", "view", "lend"))
    monkeypatch.setenv("GRID_HOME", str(laptop.home.path))

    async def use() -> None:
        async with ResourceBoostManager() as manager:
            boost_id = await manager.request_boost(ResourceBoostRequest("a", "cpu", 1, duration_seconds=60))
            assert boost_id is not None
            assert [boost.boost_id for boost in await manager.get_active_boosts("a")] == [boost_id]
            assert await manager.release_boost(boost_id)

    asyncio.run(use())
    assert [line["who"] for line in head.audit() if line["event"] == "granted"][-1] == "fay"


def test_python_without_the_scope_is_told_what_it_lacks(
    head: ServedGrid, laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop.login(head.token("gus", "view"))
    monkeypatch.setenv("GRID_HOME", str(laptop.home.path))

    async def use() -> None:
        async with ResourceBoostManager() as manager:
            await manager.request_boost(ResourceBoostRequest("a", "cpu", 1))

    with pytest.raises(ScopeMissing, match="needs the scope lend"):
        asyncio.run(use())


def test_a_place_never_shows_its_token() -> None:
    place = Whereabouts("https://head", "grid_secret")

    assert "grid_secret" not in f"{place} {place!r}"


@pytest.mark.parametrize("command", [["start", "--address", "127.0.0.1:1"], ["cluster", "start"]], ids=" ".join)
def test_nothing_is_started_off_loopback_without_tls(laptop: Laptop, command: list[str]) -> None:
    refused = laptop.grid(*command, "--host", "0.0.0.0")

    assert refused.returncode == 2
    assert "Beyond loopback, grid listens only with TLS" in refused.stderr
    assert not laptop.home.cluster.exists()


def test_what_login_wrote_is_what_clients_read(head: ServedGrid, laptop: Laptop) -> None:
    token = head.token("hal", "view")
    laptop.login(token)

    found: Any = logged_in(laptop.home)

    assert (found.url, found.token) == (laptop.url, token)
    assert "BEGIN CERTIFICATE" in found.trust.ca
