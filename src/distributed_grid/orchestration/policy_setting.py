"""Another policy or mode, by command: in force from the next decision on, and after restarts."""

from distributed_grid.model.policies import check_change
from distributed_grid.orchestration.parts import Parts


async def set_policy(p: Parts, *, policy: str | None = None, mode: str | None = None, who: str = "grid") -> None:
    """Change what is given; `configured` goes back to what the configuration says."""
    new_policy, new_mode = check_change(policy, mode)
    if policy is not None:
        p.sharing.set_policy = new_policy
    if mode is not None:
        p.sharing.set_mode = new_mode
    await p.commit_sharing()
    p.journal.note("policy_set", f"policy {p.sharing.policy}, mode {p.sharing.mode}", who=who)
    p.something_changed()
