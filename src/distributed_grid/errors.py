"""One tree of errors: each says what happened, why, and what to do next.

Below each exit code of `grid` are its base class, the meaning, and the subclasses:

    1  GridError       an error without a code of its own
         MoveFailed (a process was stopped, and not started again), MemberFailed (a call to a member of a role raised)
    2  InvalidRequest  the request is not valid
         UnknownResource, InvalidAmount, InvalidDuration, SameNode, ConfigInvalid, TooLarge, InvalidRole, UnknownMethod
    3  NotFound        the request names something that does not exist
         TargetNotFound, SourceNotFound, BoostNotFound, AmbiguousBoost, RequestNotFound, RunNotFound, TokenNotFound,
         ProcessNotFound, OffloadNotFound, RoleRunNotFound, RoleNotFound, WindowNotFound
    4  Refused         the request is valid, but refused
         NoCapacity, SharingDisabled, NotRenewable, NotReserved, TransfersUnavailable, ConfigDiffers, NotOnHead,
         HomeInUse, CannotMove, DoesNotFit, RoleRunInUse, RoleRunOver, CannotScale, WindowExists, ReservedForWindow
    5  Unavailable     the controller, the cluster or a member does not answer, or cannot do it now
         NoCluster, ControllerUnreachable, AlreadyRunning, PortTaken, ClusterStartFailed, ExtraMissing, LeaseLost,
         MemberLost, CallTimedOut, StartTimedOut, TooBusy, TooManyRequests
    6  AccessDenied    the caller lacks permission, or the controller cannot be trusted
         ScopeMissing, NotOwner, PriorityNotAllowed, TooManyAttempts, WrongHost, CertificateUntrusted
    7  RayUnsuitable   Ray is too old, or lacks what grid needs
    8  StoreBroken     the state on disk cannot be read or written
    9  CheckFailed     a check of grid, or of the cluster, failed

The API and `--json` carry `code` and the exit code.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

if TYPE_CHECKING:
    from distributed_grid.wire.values import ErrorBody, NoCapacityBody

__all__ = [
    "AccessDenied",
    "AlreadyRunning",
    "AmbiguousBoost",
    "BoostNotFound",
    "CallTimedOut",
    "CannotMove",
    "CannotScale",
    "CertificateUntrusted",
    "CheckFailed",
    "ClusterStartFailed",
    "ConfigDiffers",
    "ConfigInvalid",
    "ControllerUnreachable",
    "DoesNotFit",
    "ExtraMissing",
    "GridError",
    "HomeInUse",
    "InvalidAmount",
    "InvalidDuration",
    "InvalidRequest",
    "InvalidRole",
    "LeaseLost",
    "MemberFailed",
    "MemberLost",
    "MoveFailed",
    "NoCapacity",
    "NoCluster",
    "NotFound",
    "NotOnHead",
    "NotOwner",
    "NotRenewable",
    "NotReserved",
    "OffloadNotFound",
    "PortTaken",
    "PriorityNotAllowed",
    "ProcessNotFound",
    "RayUnsuitable",
    "Refused",
    "RequestNotFound",
    "ReservedForWindow",
    "RoleNotFound",
    "RoleRunInUse",
    "RoleRunNotFound",
    "RoleRunOver",
    "RunNotFound",
    "SameNode",
    "ScopeMissing",
    "SharingDisabled",
    "SourceNotFound",
    "StartTimedOut",
    "StoreBroken",
    "TargetNotFound",
    "TokenNotFound",
    "TooBusy",
    "TooLarge",
    "TooManyAttempts",
    "TooManyRequests",
    "TransfersUnavailable",
    "Unavailable",
    "UnknownMethod",
    "UnknownResource",
    "WindowExists",
    "WindowNotFound",
    "WrongHost",
    "error_from_dict",
]


class GridError(Exception):
    """An error with a message for a person; never shown as a traceback."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, because: Sequence[str] = (), try_next: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.because = tuple(because)
        self.try_next = try_next

    def to_dict(self) -> "ErrorBody":
        return {
            "code": self.code,
            "message": self.message,
            "because": list(self.because),
            "try_next": self.try_next,
            "exit_code": self.exit_code,
        }


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to append to a message; empty if nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {close[0]!r}?" if close else ""


def said_by(error: BaseException) -> str:
    """Any error as part of a sentence: for a grid error the message, for others also their type."""
    if isinstance(error, GridError):
        return error.message
    first, _, _ = str(error).strip().partition("\n")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class MoveFailed(GridError):
    """A process was stopped on its node, and could not be started on the other node. A person has to start it."""

    code = "MOVE_FAILED"


class MemberFailed(GridError):
    """A call to a member of a role raised. `cause` is the exception, if it is available here."""

    code = "MEMBER_FAILED"
    role: str = ""
    rank: int | None = None
    node: str = ""
    remote_traceback: str = ""

    @property
    def cause(self) -> BaseException | None:
        return self.__cause__


class InvalidRequest(GridError):
    code, exit_code, http_status = "INVALID_REQUEST", 2, 422


class UnknownResource(InvalidRequest):
    code = "UNKNOWN_RESOURCE"


class InvalidAmount(InvalidRequest):
    code = "INVALID_AMOUNT"


class InvalidDuration(InvalidRequest):
    code = "INVALID_DURATION"


class SameNode(InvalidRequest):
    code = "SAME_NODE"


class ConfigInvalid(InvalidRequest):
    code = "CONFIG_INVALID"


class TooLarge(InvalidRequest):
    code, http_status = "TOO_LARGE", 413


class InvalidRole(InvalidRequest, ValueError):
    """A role, a pool or a whole workload is not valid. `problems`: each place, and what is wrong there.

    Also a `ValueError`, which is what the documented API has always raised; so is `RoleNotFound`.
    """

    code = "INVALID_ROLE"
    problems: tuple[tuple[tuple[str | int, ...], str], ...] = ()


class UnknownMethod(InvalidRequest, AttributeError):
    """A role's class has no such method; also an `AttributeError`, since handles have methods as attributes."""

    code = "UNKNOWN_METHOD"


class NotFound(GridError):
    code, exit_code, http_status = "NOT_FOUND", 3, 404


class TargetNotFound(NotFound):
    code = "TARGET_NOT_FOUND"


class SourceNotFound(NotFound):
    code = "SOURCE_NOT_FOUND"


class BoostNotFound(NotFound):
    code = "BOOST_NOT_FOUND"


class AmbiguousBoost(NotFound):
    code, http_status = "AMBIGUOUS_BOOST", 409


class RequestNotFound(NotFound):
    code = "REQUEST_NOT_FOUND"


class RunNotFound(NotFound):
    code = "RUN_NOT_FOUND"


class TokenNotFound(NotFound):
    code = "TOKEN_NOT_FOUND"


class ProcessNotFound(NotFound):
    code = "PROCESS_NOT_FOUND"


class OffloadNotFound(NotFound):
    code = "OFFLOAD_NOT_FOUND"


class RoleRunNotFound(NotFound):
    code = "ROLE_RUN_NOT_FOUND"


class RoleNotFound(NotFound, ValueError):
    code = "ROLE_NOT_FOUND"


class WindowNotFound(NotFound):
    code = "WINDOW_NOT_FOUND"


class Refused(GridError):
    code, exit_code, http_status = "REFUSED", 4, 409


class NoCapacity(Refused):
    """No node can lend the capacity now. `expected_start`: when the request would be met if it waited; None if
    unknown."""

    code = "NO_CAPACITY"
    expected_start: str | None = None

    def to_dict(self) -> "NoCapacityBody":
        return {**super().to_dict(), "expected_start": self.expected_start}


class SharingDisabled(Refused):
    code, http_status = "SHARING_DISABLED", 403


class NotRenewable(Refused):
    code = "NOT_RENEWABLE"


class WindowExists(Refused):
    code = "WINDOW_EXISTS"


class ReservedForWindow(Refused):
    """A lease cannot be renewed beyond the beginning of a window. Once the window is cancelled, it can."""

    code = "RESERVED_FOR_WINDOW"


class NotReserved(Refused):
    code = "NOT_RESERVED"


class TransfersUnavailable(Refused):
    code = "TRANSFERS_UNAVAILABLE"


class ConfigDiffers(Refused):
    code = "CONFIG_DIFFERS"


class NotOnHead(Refused):
    code = "NOT_ON_HEAD"


class HomeInUse(Refused):
    code = "HOME_IN_USE"


class CannotMove(Refused):
    """A process cannot run on another node; each obstacle is a reason."""

    code = "CANNOT_MOVE"


class DoesNotFit(Refused):
    """A workload does not fit; each reason names a role and what it lacks."""

    code = "DOES_NOT_FIT"


class RoleRunInUse(Refused):
    """The name of a run of roles belongs to another live run."""

    code = "ROLE_RUN_IN_USE"


class RoleRunOver(Refused):
    """A run of roles is ending, or is over: it accepts no more requests."""

    code = "ROLE_RUN_OVER"


class CannotScale(Refused):
    """A role did not reach the requested count."""

    code = "CANNOT_SCALE"


class Unavailable(GridError):
    code, exit_code, http_status = "UNAVAILABLE", 5, 503


class NoCluster(Unavailable):
    code = "NO_CLUSTER"


class ControllerUnreachable(Unavailable):
    code = "CONTROLLER_UNREACHABLE"


class AlreadyRunning(Unavailable):
    code = "ALREADY_RUNNING"


class PortTaken(Unavailable):
    code = "PORT_TAKEN"


class ClusterStartFailed(Unavailable):
    code = "CLUSTER_START_FAILED"


class LeaseLost(Unavailable):
    code = "LEASE_LOST"


class MemberLost(Unavailable):
    """A member of a role is gone, and its calls with it; `why`: the reason, if known."""

    code = "MEMBER_LOST"
    role: str = ""
    rank: int | None = None
    why: str = ""


class CallTimedOut(Unavailable):
    """Not all members answered in time. `ranks`: those that did not."""

    code, http_status = "CALL_TIMED_OUT", 504
    role: str = ""
    ranks: tuple[int, ...] = ()


class StartTimedOut(Unavailable):
    """A workload was not up in time. All of it was removed."""

    code, http_status = "START_TIMED_OUT", 504


class TooBusy(Unavailable):
    """The controller is at its limit with other work: ask again in `retry_after_s`."""

    code = "TOO_BUSY"

    def __init__(
        self,
        message: str,
        *,
        because: Sequence[str] = (),
        try_next: str | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        super().__init__(message, because=because, try_next=try_next)
        self.retry_after_s = retry_after_s


class TooManyRequests(TooBusy):
    """One token sends more than its limits allow."""

    code, http_status = "TOO_MANY_REQUESTS", 429


class ExtraMissing(Unavailable):
    """A configured feature needs an extra that is not installed."""

    code = "EXTRA_MISSING"


class AccessDenied(GridError):
    code, exit_code, http_status = "ACCESS_DENIED", 6, 401


class ScopeMissing(AccessDenied):
    code, http_status = "SCOPE_MISSING", 403


class NotOwner(AccessDenied):
    """The caller tried to change what belongs to another user and team."""

    code, http_status = "NOT_OWNER", 403


class PriorityNotAllowed(AccessDenied):
    """The caller's token or team may not request this priority."""

    code, http_status = "PRIORITY_NOT_ALLOWED", 403


class TooManyAttempts(AccessDenied):
    code, http_status = "TOO_MANY_ATTEMPTS", 429


class WrongHost(AccessDenied):
    code, http_status = "WRONG_HOST", 421


class CertificateUntrusted(AccessDenied):
    code = "CERTIFICATE_UNTRUSTED"


class RayUnsuitable(GridError):
    code, exit_code, http_status = "RAY_UNSUITABLE", 7, 503


class StoreBroken(GridError):
    code, exit_code, http_status = "STORE_BROKEN", 8, 500


class CheckFailed(GridError):
    code, exit_code, http_status = "CHECK_FAILED", 9, 500


def _tree(cls: type[GridError]) -> dict[str, type[GridError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _tree(sub)
    return found


_BY_CODE = _tree(GridError)


def error_from_dict(data: "ErrorBody | NoCapacityBody") -> GridError:
    """The error that an API answer describes; an unknown code becomes a plain `GridError`."""
    cls = _BY_CODE.get(str(data.get("code")), GridError)
    error = cls(
        str(data.get("message", "the controller gave no reason")),
        because=[str(line) for line in data.get("because", ())],
        try_next=data.get("try_next"),
    )
    if isinstance(error, NoCapacity):
        error.expected_start = cast("NoCapacityBody", data).get("expected_start")
    return error
