"""Another policy or mode, by command: in force from the next decision on, and after restarts."""

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.policies import SharingMode, SharingPolicy
from distributed_grid.orchestration.parts import Parts

CONFIGURED = "configured"


async def set_policy(p: Parts, *, policy: str | None = None, mode: str | None = None, who: str = "grid") -> None:
    """Change what is given; `configured` goes back to what the configuration says."""
    if policy is None and mode is None:
        raise InvalidRequest("Neither a policy nor a mode was given", try_next="Give one: policy set balanced")
    new_policy = None if policy is None or policy.lower() == CONFIGURED else SharingPolicy.parse(policy)
    new_mode = None if mode is None or mode.lower() == CONFIGURED else SharingMode.parse(mode)
    if policy is not None:
        p.sharing.set_policy = new_policy
    if mode is not None:
        p.sharing.set_mode = new_mode
    await p.commit_sharing()
    p.journal.note("policy_set", f"policy {p.sharing.policy}, mode {p.sharing.mode}", who=who)
    p.something_changed()
