"""`grid doctor` without a cluster: exit codes, messages, and what it sees of this machine."""

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import lease
from click import unstyle
from click.testing import CliRunner

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.doctor import doctor, examine
from distributed_grid.cli.findings import findings_view
from distributed_grid.cluster.attach import ask_apart
from distributed_grid.controller.checkup import Checkup
from distributed_grid.controller.checkup.cluster import TRIAL, try_resize
from distributed_grid.controller.checkup.home import look_at_home, mounted_at
from distributed_grid.errors import CheckFailed, Unavailable
from distributed_grid.model.checkup_facts import SecretKind
from distributed_grid.model.findings import Code, ok, warn
from distributed_grid.store.boost_file import ClusterIdentity
from distributed_grid.store.home import GridHome
from distributed_grid.store.set_aside import SetAside

NO_ONE = "127.0.0.1:1"
BELONGS_TO_RAY = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GridHome:
    for name in BELONGS_TO_RAY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRID_HOME", str(tmp_path / "home"))
    return GridHome(tmp_path / "home")


def grid(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """The real command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from distributed_grid.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )


def by_check(output: str) -> dict[str, dict[str, str]]:
    return {finding["code"]: finding for finding in json.loads(output)["findings"]}


def test_without_a_cluster_nothing_fails_and_it_says_how_to_start_one(home: GridHome) -> None:
    done = grid("doctor")

    assert done.returncode == 0, done.stderr
    assert "no --address, no controller, no embedded cluster" in done.stdout
    assert "controller, ray_cluster: Start one: grid cluster start" in done.stdout
    assert not home.path.exists()


def test_without_a_cluster_secrets_that_others_can_read_fail_and_what_is_kept_is_listed(home: GridHome) -> None:
    home.create().login.write_text("{}")
    home.login.chmod(0o644)
    SetAside(home.boosts).keep([lease("b1")], ClusterIdentity("lab", frozenset({"gpu1"})))

    done = grid("doctor", "--json")
    found = by_check(done.stdout)

    assert done.returncode == 9
    assert found["secrets"]["severity"] == "fail"
    assert f"chmod 600 {home.login}" in found["secrets"]["what_to_do"]
    assert found["kept_aside"]["severity"] == "warn"
    assert "resource_boosts.json.of-lab" in found["kept_aside"]["detail"]
    home.login.chmod(0o600)
    assert grid("doctor").returncode == 0


def test_a_cluster_that_is_gone_fails_with_9_after_the_whole_table(home: GridHome) -> None:
    done = grid("doctor", "--address", NO_ONE)

    assert done.returncode == 9
    assert f"{NO_ONE} (from --address): nothing listens" in " ".join(done.stdout.split())
    assert "view_lag" in done.stdout
    assert "To do:" in done.stdout
    assert "1 of 18 checks failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_as_json_the_findings_are_on_stdout_and_the_error_is_on_stderr(home: GridHome) -> None:
    done = grid("doctor", "--address", NO_ONE, "--json")
    reported = json.loads(done.stdout)

    assert done.returncode == 9
    assert reported["ok"] is False
    assert {tuple(finding) for finding in reported["findings"]} == {tuple(ok(Code.RAY, "").to_dict())}
    assert by_check(done.stdout)["ray_cluster"]["severity"] == "fail"
    assert json.loads(done.stderr.partition("\n")[2])["error"]["code"] == "CHECK_FAILED"


@pytest.mark.parametrize(
    ("address", "detail"),
    [
        ("nonsense", "not HOST:PORT"),
        ("127.0.0.1:99999", "99999 is not a port"),
        (NO_ONE, "nothing listens there"),
        ("ray://127.0.0.1:10001", "Ray client server"),
    ],
)
def test_an_address_that_cannot_be_one_is_reported_as_such(home: GridHome, address: str, detail: str) -> None:
    found = by_check(grid("doctor", "--address", address, "--json").stdout)["ray_cluster"]

    assert found["severity"] == "fail"
    assert detail in found["detail"]


def test_the_address_comes_from_the_controller_before_the_embedded_cluster_before_ray(
    home: GridHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str, str]:
        checkup = Checkup(home)
        checkup.look()
        cluster = checkup.facts.cluster
        assert cluster is not None
        return cluster.address, cluster.address_from

    home.create()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:3")
    assert found() == ("127.0.0.1:3", "RAY_ADDRESS")
    home.cluster.write_text(json.dumps({"ray_address": "127.0.0.1:2"}))
    assert found() == ("127.0.0.1:2", "cluster.json")
    home.controller.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 1, "ray_address": NO_ONE}))
    assert found() == (NO_ONE, "controller.json")


def test_a_controller_that_died_with_its_cluster_is_reported_once_each(home: GridHome) -> None:
    home.create().controller.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 1, "ray_address": NO_ONE}))

    found = by_check(grid("doctor", "--json").stdout)

    assert found["controller"]["severity"] == found["ray_cluster"]["severity"] == "fail"
    assert "is gone too" in found["controller"]["detail"]


@pytest.mark.parametrize(
    ("ray", "detail"),
    [
        ("__version__ = '2.9.3'", "Ray 2.9.3 is too old"),
        ("raise ImportError('libray.so: cannot open shared object file')", "cannot be imported: libray.so"),
    ],
)
def test_an_unsuitable_ray_is_a_finding_and_no_traceback(home: GridHome, tmp_path: Path, ray: str, detail: str) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(ray)

    done = grid("doctor", "--address", NO_ONE, "--json", PYTHONPATH=str(tmp_path))
    found = by_check(done.stdout)

    assert done.returncode == 9
    assert found["ray"]["severity"] == "fail"
    assert detail in found["ray"]["detail"]
    assert found["ray_cluster"]["severity"] == found["resize"]["severity"] == "skip"


def test_what_hangs_is_reported_with_all_that_was_seen_before(
    home: GridHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    seen = ask_apart("distributed_grid.controller.checkup", {"home": str(home.path), "limit_s": 4}, patience_s=120)

    assert seen["machine"]["ray_error"] == "importing it did not finish"
    assert seen["home"]["free_bytes"]


def test_the_command_ends_with_the_exit_code_of_a_failed_check(
    home: GridHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("__version__ = '2.9.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    result = CliRunner().invoke(doctor, [])

    assert isinstance(result.exception, CheckFailed)
    assert result.exception.exit_code == 9
    (reported,) = result.exception.because
    assert reported.startswith("ray: Ray 2.9.0 is too old")
    assert reported.removeprefix("ray: ") in " ".join(result.stdout.split())
    assert "'ray[default]>=2.55'" in result.stdout, "brackets are text, not markup"


def test_a_doctor_that_hears_nothing_does_not_send_people_to_the_doctor(
    home: GridHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.cli.doctor.PATIENCE_S", 0.01)

    with pytest.raises(Unavailable) as reported:
        examine(None)

    assert reported.value.try_next
    assert "doctor" not in reported.value.try_next


def test_nothing_is_to_be_done_where_all_is_well() -> None:
    shown = findings_view([("ok", ok(Code.RAY, "Ray 2.60.0").to_dict())], Canvas(80), heading="Check")

    assert "Ray 2.60.0" in shown
    assert "To do" not in shown


def test_in_a_pipe_a_finding_is_one_line_and_on_a_terminal_it_is_wrapped_below_itself() -> None:
    rows = [("warn", warn(Code.VIEW_LAG, "slow " * 60, "wait").to_dict())]

    (line,) = [line for line in findings_view(rows, Canvas()).splitlines() if "slow" in line]
    assert line.count("slow") == 60
    wrapped = unstyle(findings_view(rows, Canvas(80)))
    assert max(map(len, wrapped.splitlines())) <= 80
    assert wrapped.count("slow") == 60


class TestHome:
    def test_one_that_is_there_is_really_written_to_and_left_as_it_was(self, home: GridHome) -> None:
        home.create().token.touch(0o640)

        found = look_at_home(home)

        assert (found.exists, found.error, found.mode) == (True, "", 0o700)
        assert [(file.name, file.mode) for file in found.secrets] == [("token", 0o640)]
        assert found.filesystem
        assert found.free_bytes
        assert [path.name for path in home.path.iterdir()] == ["token"]

    def test_one_that_is_a_file_is_none(self, home: GridHome) -> None:
        home.path.touch()

        assert look_at_home(home).error == "it is not a folder"
        assert "is not a folder" in look_at_home(GridHome(home.path / "below")).error

    def test_secrets_are_known_by_their_names_or_by_what_is_in_them(self, home: GridHome) -> None:
        secret = {
            "token": ("x", SecretKind.OWN_TOKEN),
            "tokens.json": ("{}", SecretKind.USERS_TOKENS),
            "tokens.json.broken-20250601T120000Z": ("{", SecretKind.USERS_TOKENS),
            "login.json": ("{}", SecretKind.LOGIN),
            "ana.txt": ("grid_abc", SecretKind.USER_TOKEN),
            "head.pem": ("cert\n-----BEGIN RSA PRIVATE KEY-----\n", SecretKind.TLS_KEY),
        }
        for name, (text, _) in secret.items():
            (home.create().path / name).write_text(text)
        home.audit_log.write_text("{}")
        (home.path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\n")
        (home.path / "gone").symlink_to("nowhere")
        home.logs.mkdir()

        found = look_at_home(home)

        assert {file.name: file.kind for file in found.secrets} == {name: kind for name, (_, kind) in secret.items()}
        assert {file.owner for file in found.secrets} == {found.owner} == {getpass.getuser()}

    def test_boosts_of_other_clusters_and_damaged_files_are_seen_and_left_as_they_are(self, home: GridHome) -> None:
        past = lease("b2", age_s=7200)  # they last an hour
        current = replace(lease("b1"), expires_at=datetime.now(UTC) + timedelta(hours=1))
        for cluster in ("lab", "lab"):
            SetAside(home.create().boosts).keep([current, past], ClusterIdentity(cluster, frozenset({"gpu1"})))
        (home.path / "resource_boosts.json.of-odd").write_text("{")
        broken = home.path / "resource_boosts.json.broken-20250601T120000Z-2"
        broken.write_text("{")
        os.utime(broken, (0, time.time() - 3600))
        before = {path: path.read_bytes() for path in home.path.iterdir()}

        kept = {file.name: file for file in look_at_home(home).kept}

        assert set(kept) == {"resource_boosts.json.of-lab", "resource_boosts.json.of-odd", broken.name}
        lab = kept["resource_boosts.json.of-lab"]
        assert (lab.cluster, lab.boosts) == ("lab", 1)
        assert kept["resource_boosts.json.of-odd"].cluster == ""
        assert kept[broken.name].kept_from == "resource_boosts.json"
        assert 3600 <= kept[broken.name].age_s < 7200
        assert {path: path.read_bytes() for path in home.path.iterdir()} == before

    def test_a_damaged_record_is_named(self, home: GridHome) -> None:
        home.create().cluster.write_text("{")

        (damage,) = look_at_home(home).damaged

        assert damage.startswith("cluster.json cannot be read")


MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
auto.home /home autofs rw 0 0
server:/home /home nfs4 rw 0 0
server:/big /home/ann/big\040data lustre rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/lib", ("ext4", "/")),
        ("/home/ann", ("nfs4", "/home")),
        ("/home/ann/big data/grid", ("lustre", "/home/ann/big data")),
        ("/homeless", ("ext4", "/")),
    ],
)
def test_a_path_is_on_the_last_of_the_longest_mounts(path: str, found: tuple[str, str]) -> None:
    assert mounted_at(Path(path), MOUNTS) == found


class FakeRaylets:
    """One node, whose view shows what it is told to; calls fail from the given one on, until told otherwise."""

    def __init__(self, *, blind: bool = False, fails_at: int | None = None) -> None:
        self.total = 0.0
        self.blind = blind
        self.fails_at = fails_at
        self.calls: list[float] = []

    def resize(self, node_id: str, resources: Mapping[str, float]) -> dict[str, float]:
        self.calls.append(resources[TRIAL])
        if self.fails_at == len(self.calls):
            raise RuntimeError("the raylet said no")
        self.total = resources[TRIAL]
        return {"CPU": 1.0} | ({TRIAL: self.total} if self.total else {})

    def totals(self) -> dict[str, dict[str, float]]:
        return {"a": {TRIAL: 0.0 if self.blind else self.total}}


def trial(raylets: Any) -> Any:
    ticks = iter(range(10**6))
    return try_resize(raylets, "a", clock=lambda: next(ticks) / 10)


def test_the_trial_resource_is_grown_and_taken_away_three_times() -> None:
    raylets = FakeRaylets()

    found = trial(raylets)

    assert (found.grown_to, found.back_to, found.error) == (1.0, 0.0, "")
    assert len(found.lags_s) == 3
    assert raylets.total == 0.0


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_the_trial_resource_is_taken_away_whatever_happens(fails_at: int) -> None:
    raylets = FakeRaylets(fails_at=fails_at)

    found = trial(raylets)

    assert found.error == "the raylet said no"
    assert raylets.calls[-1] == raylets.total == 0.0


def test_a_view_that_never_shows_it_is_reported_and_the_resource_taken_away() -> None:
    raylets = FakeRaylets(blind=True)

    found = trial(raylets)

    assert found.unseen
    assert raylets.total == 0.0
