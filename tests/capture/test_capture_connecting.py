"""What a captured program's `ray.init` passes on to Ray."""

from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.capture.inside_lease.connecting import ONLY_FOR_A_NEW_CLUSTER, arguments

LEASE_AT = "10.0.0.1:6379"


class Captured(SimpleNamespace):
    """As much of it as is needed here."""

    def __init__(self) -> None:
        self.told: list[str] = []
        super().__init__(
            ray_address=LEASE_AT, reports=SimpleNamespace(rewritten=lambda what, _: self.told.append(what))
        )


@pytest.mark.parametrize("address", [None, "auto", LEASE_AT])
def test_what_only_a_new_cluster_could_have_is_dropped_and_told(address: str | None) -> None:
    captured = Captured()
    given: dict[str, Any] = {
        "num_cpus": 64,
        "resources": {"widget": 1},
        "runtime_env": {"pip": ["a"]},
        "namespace": "n",
    }

    assert arguments(captured, address, given) == {"runtime_env": {"pip": ["a"]}, "namespace": "n"}
    assert captured.told == ["ray.init(num_cpus=64, resources={'widget': 1})"]


@pytest.mark.parametrize("address", ["local", "10.0.0.2:6379", "ray://10.0.0.1:10001"])
def test_another_cluster_gets_what_was_meant_for_it(address: str) -> None:
    captured = Captured()

    assert arguments(captured, address, {"num_cpus": 64}) == {"num_cpus": 64}
    assert captured.told == []


def test_what_says_nothing_is_passed_on_untold() -> None:
    captured = Captured()
    given = dict.fromkeys(ONLY_FOR_A_NEW_CLUSTER)

    assert arguments(captured, None, given) == given
    assert captured.told == []
