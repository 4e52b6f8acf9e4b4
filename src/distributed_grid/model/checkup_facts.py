"""What `grid doctor` can see of an installation and its cluster. What it means is for `decide.diagnosis` to say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

REPORT_PERIOD: Final = "RAY_raylet_report_resources_period_milliseconds"
"""The variable with which a raylet is told how often to report what it has."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The Python that `grid` runs in."""

    python: str
    executable: str
    ray: str | None
    ray_error: str = ""


class SecretKind(StrEnum):
    """What a secret file holds."""

    OWN_TOKEN = "own token"
    USERS_TOKENS = "users' tokens"
    LOGIN = "login"
    USER_TOKEN = "user's token"
    TLS_KEY = "tls key"


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that only the owner of `GRID_HOME` should be able to read."""

    name: str
    kind: SecretKind
    mode: int
    owner: str


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that grid put aside instead of using or overwriting it."""

    name: str
    age_s: float
    cluster: str = ""
    """Whose boosts they are; empty for what was damaged."""
    boosts: int = 0
    """Those that have not expired."""
    kept_from: str = ""
    """What was damaged."""


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """`GRID_HOME`. Without `exists`, all but `path` is about the folder in which it would be created."""

    path: str
    exists: bool
    error: str = ""
    """Why it cannot be written or created."""
    mode: int = 0o700
    damaged: tuple[str, ...] = ()
    filesystem: str = ""
    mount_point: str = ""
    free_bytes: int | None = None
    owner: str = ""
    secrets: tuple[SecretFile, ...] = ()
    kept: tuple[KeptFile, ...] = ()


class ActorState(StrEnum):
    """What the Ray cluster says of the controller."""

    UNASKED = "unasked"
    ABSENT = "absent"
    SILENT = "silent"
    THERE = "there"


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """The controller that `controller.json` names, and the one that is in the Ray cluster."""

    recorded: bool = False
    record_error: str = ""
    url: str = ""
    ray_address: str = ""
    health_error: str = ""
    token_error: str = ""
    problems: tuple[str, ...] = ()
    """What the controller itself says is wrong."""
    actor: ActorState = ActorState.UNASKED
    actor_url: str = ""
    in_use: tuple[str, ...] | None = None
    """What it measured in use on nodes that Ray does not count, in words; None: it was not asked."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One live raylet. What only the node itself can tell is there if it answered."""

    name: str
    is_head: bool
    answered: bool
    python: str = ""
    ray: str = ""
    home: str = ""
    home_writable: bool = True
    clock_offset_s: float | None = None
    """Its clock minus the clock of the machine that looked, give or take half of the round trip."""
    round_trip_s: float = 0.0
    env: Mapping[str, str] | None = None
    """Those of the raylet's variables that mean something to grid."""
    token_auth: bool | None = None


@dataclass(frozen=True, slots=True)
class ResizeFacts:
    """A harmless resource, grown to 1 and back to 0 on the head; the last replies, and when everybody saw it."""

    grown_to: float | None = None
    back_to: float | None = None
    error: str = ""
    lags_s: tuple[float, ...] = ()
    unseen: bool = False
    """The cluster's view did not show a change in time."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A tiny placement group, pinned to one node by label."""

    node: str = ""
    bundle: str = ""
    landed_on: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """What the cluster's control service knows about an autoscaler."""

    node_types: tuple[str, ...] = ()
    """The types that a first-generation autoscaler reports its nodes to be."""
    instance_types: tuple[str, ...] = ()
    """The types that the nodes themselves were started as."""
    reports_state: bool = False
    """A second-generation autoscaler reports, which one without a provider does too."""
    has_config: bool = False


class Trouble(StrEnum):
    """Why a cluster is not reached."""

    ADDRESS = "address"
    NOBODY = "nobody"
    SILENT = "silent"
    NOT_RAY = "not ray"
    TOKEN = "token"
    VERSIONS = "versions"
    ELSEWHERE = "elsewhere"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Unreached:
    """A cluster that could not be joined, and what was seen of it."""

    trouble: Trouble
    why: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The Ray cluster. A part that is None was not looked at: `errors` says why, or the cluster is not reached."""

    address: str
    address_from: str
    unreached: Unreached | None = None
    stuck_at: str = ""
    """The step that did not end."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why a check could not be made, by its name."""
    patience_s: float = 0.0
    """How long each node was waited for."""
    nodes: tuple[NodeFacts, ...] | None = None
    missing: tuple[str, ...] = ()
    naming_problems: tuple[str, ...] = ()
    resize: ResizeFacts | None = None
    group: GroupFacts | None = None
    head_labels: Mapping[str, str] = field(default_factory=dict)
    autoscaler: AutoscalerFacts | None = None

    @property
    def head(self) -> NodeFacts | None:
        """The head node, if it answered."""
        return next((node for node in self.nodes or () if node.is_head and node.answered), None)


@dataclass(frozen=True, slots=True)
class Facts:
    machine: MachineFacts
    home: HomeFacts
    controller: ControllerFacts
    cluster: ClusterFacts | None
    """None: there is no address to look at."""


def in_one_line(error: BaseException) -> str:
    """How facts tell of an error; some of Ray's fill a screen."""
    return " ".join(str(error).split())[:400] or type(error).__name__
