"""The facts that `grid doctor` collects about an installation and its cluster. `decide.diagnosis` interprets them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

REPORT_PERIOD: Final = "RAY_raylet_report_resources_period_milliseconds"
VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
"""The variable that sets how often a raylet reports its resources."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The Python that `grid` runs in."""

    python: str
    executable: str
    ray: str | None
    ray_error: str = ""


class SecretKind(StrEnum):
    """The secret in a file."""

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
    """The cluster that the boosts belong to; empty for a damaged file."""
    boosts: int = 0
    """How many boosts have not expired."""
    kept_from: str = ""
    """Which file was damaged."""


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """`GRID_HOME`. If it does not exist, all fields but `path` describe the folder in which it would be created."""

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
    """The Ray cluster's report about the controller."""

    UNASKED = "unasked"
    ABSENT = "absent"
    SILENT = "silent"
    THERE = "there"


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """The controller that `controller.json` names, and the one in the Ray cluster."""

    recorded: bool = False
    record_error: str = ""
    url: str = ""
    ray_address: str = ""
    health_error: str = ""
    token_error: str = ""
    problems: tuple[str, ...] = ()
    """Problems that the controller reports itself."""
    actor: ActorState = ActorState.UNASKED
    actor_url: str = ""
    in_use: tuple[str, ...] | None = None
    """Measured use that Ray does not count, in words; None: the controller was not asked."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One live raylet. Fields that only the node itself can report are set if it answered."""

    name: str
    is_head: bool
    answered: bool
    python: str = ""
    ray: str = ""
    home: str = ""
    home_writable: bool = True
    clock_offset_s: float | None = None
    """Its clock minus the clock of the machine that asked, give or take half of the round trip."""
    round_trip_s: float = 0.0
    env: Mapping[str, str] | None = None
    """The raylet's variables that matter to grid."""
    token_auth: bool | None = None
    gpus: int = 0
    """How many Ray hands out there."""
    gpu_devices: int | None = None
    """How many its machine has."""
    machine: str = ""
    """The same for all nodes of one machine."""


@dataclass(frozen=True, slots=True)
class ResizeFacts:
    """A harmless resource, grown to 1 and back to 0 on the head: the last replies, and when the view showed it."""

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
    """The control service's report about an autoscaler."""

    node_types: tuple[str, ...] = ()
    """The node types that a first-generation autoscaler reports."""
    instance_types: tuple[str, ...] = ()
    """The types that the nodes were started as."""
    reports_state: bool = False
    """A second-generation autoscaler reports its state; one without a provider does so too."""
    has_config: bool = False


class Trouble(StrEnum):
    """Why a cluster is not reached."""

    ADDRESS = "address"
    NOTHING_THERE = "nothing there"
    SILENT = "silent"
    NOT_RAY = "not ray"
    TOKEN = "token"
    VERSIONS = "versions"
    ELSEWHERE = "elsewhere"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Unreached:
    """A cluster that could not be reached, and why."""

    trouble: Trouble
    why: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The Ray cluster. A part that is None was not examined: `errors` says why, or the cluster was not reached."""

    address: str
    address_from: str
    unreached: Unreached | None = None
    stuck_at: str = ""
    """The step that did not finish."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why a check could not be made, by check."""
    patience_s: float = 0.0
    """How long to wait for each node."""
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
    """None: there is no address to examine."""


def in_one_line(error: BaseException) -> str:
    """An error as one line of the facts; some of Ray's errors fill a screen."""
    return " ".join(str(error).split())[:400] or type(error).__name__
