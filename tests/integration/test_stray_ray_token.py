"""A token of Ray's in the user's home, as any plain `ray.init()` leaves one there, is in nobody's way."""

import secrets
from pathlib import Path

import pytest
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


def test_an_embedded_cluster_starts_and_lends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    live = LiveGrid(tmp_path, CONFIG)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        live.env.pop(name, None)
    live.env["HOME"] = str(tmp_path)
    try:
        live.start()
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
