"""The engine in the caller's process answers the same calls as a controller's client."""

import inspect

import pytest

from distributed_grid.client import GridClient
from distributed_grid.sdk.backend import LocalBackend

_OF_ITS_OWN = {"start", "close", "snapshots"}
CALLS = [name for name in vars(LocalBackend) if not name.startswith("_") and name not in _OF_ITS_OWN]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_the_clients_call_of_that_name(call: str) -> None:
    """A remote backend passes the arguments on, so the client must accept each in the same position or by its name."""
    own = [each for each in inspect.signature(getattr(LocalBackend, call)).parameters.values() if each.name != "self"]
    clients = inspect.signature(getattr(GridClient, call))
    by_place = [each.name for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == [*clients.parameters][1 : 1 + len(by_place)]
    by_name = {each.name: each.name for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY}
    clients.bind(None, *by_place, **by_name)
    needed = [each.name for each in own if each.default is inspect.Parameter.empty and each.name not in by_name]
    clients.bind(None, *needed, **by_name)
