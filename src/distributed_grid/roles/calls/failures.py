"""The errors of calls to members, for every transport."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from distributed_grid.errors import CallTimedOut, GridError, MemberFailed, MemberLost, UnknownMethod, did_you_mean
from distributed_grid.roles.calls.endpoints import Endpoint

_MOST_LISTED: Final = 10
_TAKE_ALONG: Final = (
    'Let Ray ship your modules: ray.init(runtime_env={"working_dir": "."}), or grid roles up --working-dir .'
)


@dataclass(frozen=True, slots=True)
class Failed:
    """How one of several calls failed. A class of its own, since values may be exceptions, too."""

    error: GridError


def member_failed(endpoint: Endpoint, method: str, cause: BaseException | None, traceback: str) -> MemberFailed:
    """`cause`: the exception, where it is available; otherwise the traceback describes it."""
    said = _raised_in(traceback) if cause is None else _first_line(cause)
    error = MemberFailed(f"{_who(endpoint)} failed in {method}(): {said}", because=[traceback] if traceback else [])
    error.role, error.rank, error.node, error.remote_traceback = endpoint.role, endpoint.rank, endpoint.node, traceback
    error.__cause__ = cause
    if traceback and (cause is None or cause.__traceback__ is None):
        error.add_note(traceback)  # otherwise Python shows the cause's own traceback for an uncaught error
    return error


def did_not_start(endpoint: Endpoint, said: str, traceback: str) -> MemberFailed:
    """Its constructor failed, or its process ended before the constructor returned."""
    error = MemberFailed(
        f"{_who(endpoint)} did not start: {said}",
        because=[traceback] if traceback else [],
        try_next=_TAKE_ALONG if said.startswith(("ModuleNotFoundError", "ImportError")) else None,
    )
    error.role, error.rank, error.node, error.remote_traceback = endpoint.role, endpoint.rank, endpoint.node, traceback
    return error


def member_lost(endpoint: Endpoint, method: str, why: str, *, sent: bool = True) -> MemberLost:
    """`sent`: the member may have begun the call. The call is not repeated, since it may have had effects."""
    reason = why or endpoint.why or "its process ended"
    when = f"was lost during {method}()" if sent else f"is gone, so {method}() was not called"
    error = MemberLost(
        f"{_who(endpoint)} {when}: {reason}",
        because=["it may have had effects, so it is not called again"] if sent else [],
    )
    error.role, error.rank, error.why = endpoint.role, endpoint.rank, reason
    return error


def no_members(role: str, why: str) -> MemberLost:
    error = MemberLost(f"{role} has no members{why and ': '}{why}")
    error.role, error.why = role, why
    return error


def none_free(role: str, method: str, within_s: float) -> CallTimedOut:
    error = CallTimedOut(f"No member of {role} was free for {method}(){_within(within_s)}")
    error.role = role
    return error


def timed_out(endpoint: Endpoint, method: str, within_s: float | None) -> CallTimedOut:
    """The member did not answer in time, or was away for that long."""
    away = endpoint.target is None
    said = f"is not running and did not return for {method}()" if away else f"did not answer {method}()"
    error = CallTimedOut(
        f"{_who(endpoint)} {said}{_within(within_s)}",
        because=[endpoint.why] if away and endpoint.why else [],
        try_next=None if away else "The call continues on the member. To wait longer: options(deadline_s=...).",
    )
    error.role, error.ranks = endpoint.role, (endpoint.rank,)
    return error


def given_up(endpoint: Endpoint, method: str) -> CallTimedOut:
    """The caller no longer waits for this call, since another one failed."""
    error = CallTimedOut(f"{_who(endpoint)} had not answered {method}() when another one failed")
    error.role, error.ranks = endpoint.role, (endpoint.rank,)
    return error


def not_up(endpoint: Endpoint, within_s: float | None) -> CallTimedOut:
    error = CallTimedOut(
        f"{_who(endpoint)} was not up{_within(within_s)}",
        because=["its constructor, or on_peers(), has not returned"],
        try_next="To allow more time: startup_deadline_seconds of the role.",
    )
    error.role, error.ranks = endpoint.role, (endpoint.rank,)
    return error


def first_of(failures: Sequence[GridError], method: str, total: int, within_s: float | None) -> GridError:
    """The error to raise for several calls: the first failure, with the others listed.

    Failures come before deadlines, since they may be why other members do not answer.
    """
    late = [error for error in failures if isinstance(error, CallTimedOut)]
    rest = [error for error in failures if not isinstance(error, CallTimedOut)]
    if rest:
        first = rest[0]
        first.because += tuple(_others(rest[1:], "failed, too", total) + _others(late, "had not answered", total))
        return first
    ranks = tuple(sorted({rank for error in late for rank in error.ranks}))
    if total == 1 or not ranks:
        return late[0]
    answered = total - len(late)
    error = CallTimedOut(
        f"{answered} of {total} answered {method}(){_within(within_s)}; of {late[0].role}, {_ranks(ranks)} did not",
        because=[error.message for error in late[:_MOST_LISTED] if error.because],
        try_next="The calls continue on the members. To wait longer: options(deadline_s=...).",
    )
    error.role, error.ranks = late[0].role, ranks
    return error


def check_method(role: str, method: str, known: Iterable[str]) -> None:
    """Check the method name before anything is sent."""
    names = sorted(known)
    if method not in names:
        there = f"it has {', '.join(names)}" if names else "its class has none"
        raise UnknownMethod(f"{role} has no method {method!r}{did_you_mean(method, names)}", because=[there])


def _others(errors: Sequence[GridError], did: str, total: int) -> list[str]:
    if not errors:
        return []
    messages = [error.message for error in errors[:_MOST_LISTED]]
    more = [f"and {len(errors) - _MOST_LISTED} more"] if len(errors) > _MOST_LISTED else []
    return [f"{len(errors)} more of {total} {did}", *messages, *more]


def _who(endpoint: Endpoint) -> str:
    return (
        f"{endpoint.role} {endpoint.rank} on {endpoint.node}" if endpoint.node else f"{endpoint.role} {endpoint.rank}"
    )


def _first_line(cause: BaseException) -> str:
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text.splitlines()[0]}" if text else type(cause).__name__


def _raised_in(traceback: str) -> str:
    """The exception that a traceback names: the line after its last frame."""
    lines = traceback.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] :] if frames else lines
    return next((line for line in after if line.strip() and not line.startswith("  ")), "no reason was given")


def _within(seconds: float | None) -> str:
    return "" if seconds is None else f" within {seconds:g} s"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:_MOST_LISTED]]
    if len(ranks) > _MOST_LISTED:
        return f"ranks {', '.join(shown)} and {len(ranks) - _MOST_LISTED} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
