"""The rules in force: the configuration, and what commands have changed since. Changes survive restarts."""

from distributed_grid.decide.policies import POLICIES, PolicyNumbers, headroom_under, numbers_under
from distributed_grid.decide.queue.claims import charged
from distributed_grid.errors import SharingDisabled
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.plans import Companions, Headroom, Rules, RulesFor
from distributed_grid.model.policies import CONFIGURED, SharingMode, check_change
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import BUILT_IN, CPU, MEMORY, scale, total

_LONGEST_HORIZON_S = 3600.0
_STEP_S = 300.0


def check_enabled(p: EngineContext) -> None:
    """Raise `SharingDisabled` if the configuration disables sharing."""
    if not p.config.resource_sharing.enabled:
        raise SharingDisabled(
            "Resource sharing not enabled",
            try_next="Set resource_sharing.enabled: true in the configuration and start the cluster again with it.",
        )


def rules_for(p: EngineContext, ask: Ask) -> Rules:
    """The rules that apply to this request."""
    sharing = p.config.resource_sharing
    extra = sharing.gpu_companions
    return Rules(
        default_delivery=sharing.delivery,
        companions=Companions(
            cpu_per_gpu=round(extra.cpu * scale(CPU)), memory_per_gpu=round(extra.memory_gb * scale(MEMORY))
        ),
        no_transfers_because=_why_no_transfers(p),
        headroom=_headroom(p, ask),
        teams=p.teams,
        cordoned=frozenset(p.sharing.cordoned),
    )


def rules_of_one_look(p: EngineContext) -> RulesFor:
    """The rules for all decisions of one moment.

    Their forecasts depend on the duration of a lease and cover every node, so requests of about the same duration
    share them.
    """
    known: dict[float, Rules] = {}

    def rules(ask: Ask) -> Rules:
        horizon = round(min(ask.duration_s, _LONGEST_HORIZON_S) / _STEP_S)
        if horizon not in known:
            known[horizon] = rules_for(p, ask)
        return known[horizon]

    return rules


def numbers(p: EngineContext) -> PolicyNumbers:
    """The policy's numbers, with the configuration's overrides."""
    sharing = p.config.resource_sharing
    hold_s = None if sharing.min_hold_seconds is None else float(sharing.min_hold_seconds)
    return numbers_under(p.sharing.policy, float(sharing.thresholds.excess_threshold), hold_s)


def _why_no_transfers(p: EngineContext) -> str | None:
    if p.sharing.mode is SharingMode.OFFLOAD_ONLY:
        return "the mode offload_only moves work, not capacity"
    return p.cluster.why_no_transfers()


def _headroom(p: EngineContext, ask: Ask) -> Headroom:
    excess = float(p.config.resource_sharing.thresholds.excess_threshold)
    if p.forecast is None or not POLICIES[p.sharing.policy].foresees:
        return headroom_under(p.sharing.policy, excess)
    horizon = min(ask.duration_s, _LONGEST_HORIZON_S)
    found = {(n, kind): p.forecast(n, kind, horizon) for n in p.observer.naming.raylets for kind in BUILT_IN}
    expected = {key: forecast for key, forecast in found.items() if forecast is not None}
    return headroom_under(p.sharing.policy, excess, expected)


def charge(p: EngineContext) -> None:
    """Charge each team for its use since the last call. The order of waiting requests depends on it."""
    bases = total([node.base for node in p.last_seen.alive])
    p.sharing.accounts = charged(p.sharing.accounts, p.ledger.snapshot(), bases, p.now())


async def set_policy(
    p: EngineContext, *, policy: str | None = None, mode: str | None = None, who: str = "grid"
) -> None:
    """Change the policy, the mode or both; `configured` restores the configured value."""
    new_policy, new_mode = check_change(policy, mode)
    if policy is not None:
        p.sharing.set_policy = new_policy
    if mode is not None or (policy is not None and policy.lower() == CONFIGURED):
        p.sharing.set_mode = new_mode
    await p.commit_sharing()
    p.journal.note("policy_set", f"policy {p.sharing.policy}, mode {p.sharing.mode}", who=who)
    p.something_changed()
