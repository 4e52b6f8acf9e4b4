"""Where a client finds its controller: the one of its own GRID_HOME, otherwise the one that it is logged in to."""

import json
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.client.connections import Trust, listens
from distributed_grid.errors import AccessDenied, NoCluster, StoreBroken
from distributed_grid.store.durable import record_of, replace_durably, text_in, text_of
from distributed_grid.store.home import GridHome

NO_CLUSTER: Final = (
    "Start one with: grid cluster start   (or add grid to a running one: grid start --address HOST:PORT; "
    "or use one elsewhere: grid login URL)"
)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A controller's address, how to verify it, and the token for it."""

    url: str
    token: str
    ray_address: str = ""
    """Empty if only the controller itself can tell."""
    trust: Trust = field(default_factory=Trust)

    def __repr__(self) -> str:
        """Without the token: this may end up in a traceback."""
        return f"Whereabouts({self.url!r})"

    @classmethod
    def of(cls, home: GridHome) -> "Whereabouts":
        """A controller that was started from this home comes first: it is nearer, and it ends with its cluster."""
        try:
            record = record_of(text_of(home.controller))
            url, ray_address = text_in(record, "url"), text_in(record, "ray_address")
            sha256 = text_in(record, "tls_sha256") if record.get("tls_sha256") else ""
        except FileNotFoundError:
            return logged_in(home) or _nowhere(home)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise NoCluster(f"{home.controller} cannot be read: {why}", try_next=NO_CLUSTER) from error
        try:
            token = text_of(home.token)
        except OSError as error:
            raise AccessDenied(
                f"The token {home.token} cannot be read: {error.strerror}",
                try_next="Run grid as the user who started it, or set GRID_HOME.",
            ) from error
        return cls(url, token, ray_address, Trust(sha256=sha256))


def logged_in(home: GridHome) -> Whereabouts | None:
    """The record that `grid login` wrote."""
    try:
        record = record_of(text_of(home.login))
        return Whereabouts(text_in(record, "url"), text_in(record, "token"), trust=Trust(ca=text_in(record, "ca")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is damaged"  # the rest could be part of the token
        raise AccessDenied(f"{home.login} cannot be read: {why}", try_next="Log in again: grid login URL") from None


def remember(home: GridHome, found: Whereabouts) -> None:
    """Store the place and the token of a login, readable by the user alone."""
    record = {"url": found.url, "token": found.token, "ca": found.trust.ca}
    try:
        replace_durably(home.create().login, json.dumps(record, indent=2).encode() + b"\n")
    except OSError as error:
        raise StoreBroken(
            f"Cannot write {home.login}: {error.strerror}",
            try_next="Set GRID_HOME to a folder that you can write to.",
        ) from error


def _nowhere(home: GridHome) -> Whereabouts:
    """No controller; but if an embedded cluster still runs without grid, that is the one to use."""
    try:
        address = text_in(record_of(text_of(home.cluster)), "ray_address")
    except (OSError, ValueError):
        raise NoCluster("No cluster is running", try_next=NO_CLUSTER) from None
    if not listens(address):
        raise NoCluster("No cluster is running", try_next=NO_CLUSTER)
    raise NoCluster(
        "grid is not in the cluster",
        because=[f"the embedded cluster runs at {address}, but grid was removed from it"],
        try_next=f"grid start --address {address}   (or end it: grid cluster stop)",
    )
