"""Access to the embedded cluster: with TLS, and with a token of Ray's that lies around and is in nobody's way."""

import json
import secrets
from pathlib import Path

import pytest
import trustme
from live_grid import LiveGrid

from distributed_grid.cluster.processes import child_environment

pytestmark = pytest.mark.cluster

CONFIG = """
name: stray
embedded: true
resource_sharing: {enabled: true}
nodes:
- {name: head, role: master, cpu_count: 1, memory_gb: 1}
- {name: lender, cpu_count: 2, memory_gb: 1}
"""


def test_it_lends_with_tls_and_with_a_token_in_the_users_home_that_a_plain_ray_init_left(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("somewhere.example.org")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    live = LiveGrid(tmp_path, CONFIG)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        live.env.pop(name, None)
    live.env["HOME"] = str(tmp_path)
    try:
        live.start("--tls-cert", "both.pem", "--tls-key", "both.pem")
        assert json.loads(live.home.controller.read_text())["url"].startswith("https://127.0.0.1:")
        live.boost("head", "cpu", 1)
        live.total_is("head", "CPU", 2.0)
        live.release_everything()
    finally:
        live.stop()


def test_a_mode_that_was_set_is_the_clusters() -> None:
    modes = {
        given: child_environment({"RAY_AUTH_MODE": given}, "m")["RAY_AUTH_MODE"] for given in ("token", "disabled", "")
    }

    assert modes == {"token": "token", "disabled": "disabled", "": "disabled"}
    assert child_environment({}, "m")["RAY_AUTH_MODE"] == "disabled"
