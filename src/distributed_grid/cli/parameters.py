"""Shell completion for the words of a command: fixed words, and names that the controller knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click
from click.types import StringParamType

from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import DeliveryChoice
from distributed_grid.model.policies import CONFIGURED, AllocationPriority, SharingMode, SharingPolicy
from distributed_grid.model.principals import Scope
from distributed_grid.model.resources import BUILT_IN

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from distributed_grid.client import GridClient
    from distributed_grid.wire.boosts import Boost

PATIENCE_S: Final = 1.0
"""A shell waits for a completion; a controller that does not answer by then completes nothing."""

Known = Callable[["GridClient"], Iterable[tuple[str, str]]]
"""Words, each with a description, from the controller's answers."""


class Word(StringParamType):
    """Text that the model checks. `fixed` and `known` are what a shell completes."""

    def __init__(self, *fixed: str, known: Known | None = None) -> None:
        self._fixed: Sequence[str] = fixed
        self._known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [*((word, "") for word in self._fixed), *(answer_of(self._known) if self._known else ())]
        return [CompletionItem(word, help=meaning) for word, meaning in found if word.startswith(incomplete)]


def answer_of(known: Known) -> list[tuple[str, str]]:
    """The controller's answer; nothing if there is no controller, or if it does not answer soon."""
    from distributed_grid.client import GridClient
    from distributed_grid.errors import GridError

    found: list[tuple[str, str]] = []

    def ask() -> None:
        client = GridClient(retry_s=0.0, plain=True)
        try:
            found.extend(known(client))
        except (GridError, OSError, ValueError, KeyError, TypeError):
            found.clear()
        finally:
            client.close()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return [] if thread.is_alive() else found


def _nodes(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(node["name"], node["state"]) for node in client.nodes()["nodes"]]


def _kinds(client: GridClient) -> Iterable[tuple[str, str]]:
    kinds = {kind for node in client.nodes()["nodes"] for kind in node["total"]}
    return [(kind, "custom resource") for kind in sorted(kinds - {*BUILT_IN})]


def _boosts(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(boost["boost_id"][:8], _lent(boost)) for boost in client.boost_status()["boosts"]]


def _requests(client: GridClient) -> Iterable[tuple[str, str]]:
    return [
        (one["request_id"][:8], f"{one['amount']} {one['resource_type']} for {one['target_node']}, waiting")
        for one in client.queue()["requests"]
    ]


def _lent(boost: Boost) -> str:
    from distributed_grid.cli.tables import lenders

    what = f"{boost['amount']} {boost['resource_type']}"
    return f"{what} from {lenders(boost)} to {boost['target_node']}, {boost['state']}"


def _teams(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(team["name"], "") for team in client.sharing_status()["teams"]]


def _tokens(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(token["id"], token["name"]) for token in client.tokens()["tokens"]]


def _offloads(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(one["offload_id"][:8], one["label"]) for one in client.offloads()["offloads"]]


def _role_runs(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(run["name"], run["state"]) for run in client.role_runs()["runs"]]


def _windows(client: GridClient) -> Iterable[tuple[str, str]]:
    return [(window["name"], f"{window['at']} ({window['time_zone']})") for window in client.windows()]


def _local_runs(client: GridClient) -> Iterable[tuple[str, str]]:
    from distributed_grid.run.records import Runs

    return [(run.id, run.command) for run in Runs(client.home).all()]


NODE: Final = Word(known=_nodes)
NODE_OR_AUTO: Final = Word("auto", known=_nodes)
KIND: Final = Word(*BUILT_IN, known=_kinds)
PRIORITY: Final = Word(*AllocationPriority)
DELIVERY: Final = Word(*DeliveryChoice)
ON_GRACE_END: Final = Word(*OnGraceEnd)
POLICY: Final = Word(*SharingPolicy, CONFIGURED)
MODE: Final = Word(*SharingMode, CONFIGURED)
SCOPE: Final = Word(*Scope)
BOOST: Final = Word(known=_boosts)
REQUEST: Final = Word(known=lambda client: [*_requests(client), *_boosts(client)])
TEAM: Final = Word(known=_teams)
TOKEN: Final = Word(known=_tokens)
OFFLOAD: Final = Word(known=_offloads)
ROLE_RUN: Final = Word(known=_role_runs)
WINDOW: Final = Word(known=_windows)
LOCAL_RUN: Final = Word(known=_local_runs)
