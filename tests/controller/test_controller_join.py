"""Joining a Ray cluster: which errors say that it is not up yet, and which that this is the wrong machine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.controller import reach
from distributed_grid.controller.join import connect
from distributed_grid.errors import GridError, InvalidRequest, NoCluster, NotOnHead, RayUnsuitable
from distributed_grid.model.checkup_facts import Trouble, Unreached


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (Trouble.ELSEWHERE, NotOnHead),
        (Trouble.ADDRESS, InvalidRequest),
        (Trouble.NOTHING_THERE, NoCluster),
        (Trouble.SILENT, NoCluster),
        (Trouble.OTHER, NoCluster),
        (Trouble.VERSIONS, RayUnsuitable),
    ],
)
def test_the_wrong_machine_is_told_from_a_cluster_that_is_not_up_yet(
    monkeypatch: pytest.MonkeyPatch, trouble: Trouble, error: type[GridError]
) -> None:
    monkeypatch.setattr(reach, "connect", lambda _: Unreached(trouble, "this is why"))

    with pytest.raises(error) as raised:
        connect("192.0.2.10:6379")

    assert type(raised.value) is error
    assert raised.value.because == ("this is why",)
    assert raised.value.try_next


def test_a_cluster_with_an_older_ray_is_told_what_grid_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray 2.48 and 2.60 say it."""
    said = "Version mismatch: The cluster was started with: Ray: 2.48.0 Python: 3.11.7"
    assert reach.trouble_of(RuntimeError(said)) is Trouble.VERSIONS
    monkeypatch.setattr(reach, "connect", lambda _: Unreached(Trouble.VERSIONS, said))

    with pytest.raises(RayUnsuitable, match="has other versions than this command") as raised:
        connect("192.0.2.10:6379")

    assert "Grid needs Ray 2.55 or newer" in (raised.value.try_next or "")


def node(socket: Path, *, is_head: bool = False) -> Any:
    return SimpleNamespace(raylet_socket_name=str(socket), node_manager_address="192.0.2.10", is_head_node=is_head)


def test_a_cluster_is_joined_only_where_it_has_a_node(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "raylet", tmp_path / "nowhere"
    here.touch()

    assert reach.why_no_node_here([]) is None, "the head's own node is about to come"
    assert reach.why_no_node_here([node(elsewhere, is_head=True), node(here)]) is None
    found = reach.why_no_node_here([node(elsewhere, is_head=True), node(elsewhere)])
    assert found is not None and found.trouble is Trouble.ELSEWHERE
    assert "its head is 192.0.2.10" in found.why
