"""Windows on a real cluster: one begins on time although everything was lent and in use; Ray shows it."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import LiveGrid, hold_until, on, until

pytestmark = pytest.mark.cluster

GRACE_S = 4
CONFIG = f"""
name: windows-test
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload
  policy: balanced
  min_hold_seconds: 1
  grace_seconds: {GRACE_S}
  thresholds: {{excess_threshold: 0}}
nodes:
- {{name: head, role: master, cpu_count: 2, memory_gb: 4, resource_sharing: {{can_share: false}}}}
- {{name: one, cpu_count: 4, memory_gb: 4}}
- {{name: two, cpu_count: 4, memory_gb: 4}}
"""


def next_minute(at_least_s: float) -> datetime:
    """The first full minute that is so many seconds away."""
    at = datetime.now(UTC) + timedelta(seconds=at_least_s + 60)
    return at.replace(second=0, microsecond=0)


@pytest.fixture(autouse=True)
def no_windows_remain(grid: LiveGrid) -> Iterator[None]:
    yield
    for each in grid.client.windows():
        grid.client.cancel_window(each["name"], release=True)


def window(grid: LiveGrid, name: str) -> dict[str, Any]:
    return next(each for each in grid.client.windows() if each["name"] == name)


def test_a_window_begins_on_time_although_everything_was_lent_and_in_use(grid: LiveGrid, tmp_path: Path) -> None:
    ask = {"target_node": "head", "resource_type": "cpu", "amount": 4, "priority": "low"}
    lent = [grid.client.request_boost({**ask, "source_node": name}) for name in ("one", "two")]
    grid.total_is("head", "CPU", 10.0)
    work = hold_until.options(**on("head", num_cpus=9), max_retries=0).remote(str(tmp_path / "go"))
    until(lambda: grid.free("head").get("CPU", 0.0) <= 1.0, 60, "the work uses what was lent")

    begin = next_minute(25)
    made = grid.cli(
        "reserve", "create", "training", "head", "cpu", "4",
        "--at", f"{begin:%Y-%m-%d %H:%M}", "--tz", "UTC", "--for", "40s", "--delivery", "reserve",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "one" in made.stdout or "two" in made.stdout
    (occurrence,) = window(grid, "training")["next"]
    assert occurrence["is_on_time"]

    found = until(
        lambda: window(grid, "training") if window(grid, "training")["state"] == "active" else None,
        (begin - datetime.now(UTC)).total_seconds() + 20,
        "the window has its boost",
    )
    boost = grid.client.boost(found["boost_id"])
    late_s = (datetime.fromisoformat(boost["allocated_at"]) - begin).total_seconds()
    assert 0 <= late_s < 5, f"the window began {late_s} s late"
    assert (boost["cause"], boost["label"]) == ("window", "window training")
    assert [grid.state(one) for one in lent].count("active") == 1
    asked = grid.client.audit_log(event="reclaim_asked")
    assert any("the window training begins" in entry["message"] for entry in asked)

    longer = grid.cli("reserve", "cancel", "training")
    assert longer.returncode == 0
    assert "stays until" in longer.stdout
    until(lambda: grid.state(boost) != "active", 60, "the boost ends with its occurrence")
    with suppress(ray.exceptions.RayError):  # what ran in the boost that yielded was ended
        (tmp_path / "go").touch()
        ray.get(work, timeout=30)


def test_a_long_lease_is_refused_before_a_window_and_a_shorter_one_is_granted(grid: LiveGrid) -> None:
    begin = datetime.now(UTC) + timedelta(hours=2)
    made = grid.cli(
        "reserve", "create", "both", "head", "cpu", "8", "--at", f"{begin:%Y-%m-%d %H:%M}", "--tz", "UTC", "--for", "1h"
    )
    assert made.returncode == 0, made.stderr
    refused = grid.cli("boost", "request", "head", "cpu", "2", "--duration", "4h")
    assert refused.returncode == 4
    assert "ReservedForWindow" in refused.stderr
    plan = grid.cli("plan", "head", "cpu", "2", "--duration", "4h")
    assert "the window both begins" in plan.stdout
    granted = grid.cli("boost", "request", "head", "cpu", "2", "--duration", "1h", "--json")
    assert granted.returncode == 0, granted.stderr
    assert grid.cli("reserve", "cancel", "both", "--release").returncode == 0
    assert grid.client.windows() == []
