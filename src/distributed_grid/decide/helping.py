"""Who could help a node that is short of something: the request to make, or what would have to change."""

from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.rebalancing.borrowing import may_not_lend
from distributed_grid.decide.rebalancing.observed import Observed
from distributed_grid.decide.shortage import find_lender, with_nothing_to_lend
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant, Refusal, RefusalCode, Refused
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, amount_of, describe
from distributed_grid.model.rules import RulesFor

_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Help:
    """What can be done, in words; and the request that does it, if one does."""

    told: str
    ask: Ask | None = None
    command: str | None = None
    because: str = ""
    """Why nobody helps, by node."""


def who_helps(seen: Observed, ask: Ask, rules_for: RulesFor, *, least: int) -> Help:
    """The node that can lend what is asked, or part of it; else what would let one."""
    rules = rules_for(ask)
    if ask.delivery == Delivery.TRANSFER and rules.no_transfers_because is not None:
        return Help(f"capacity cannot be moved to {ask.target}", because=rules.no_transfers_because)
    short = may_not_lend(seen, ask.kind) - {ask.target}
    plan = find_lender(ask, with_nothing_to_lend(seen.nodes, short), seen.loans, rules, least=least)
    if isinstance(plan, Refused):
        return _nobody(plan, short, least)
    asked = replace(plan.ask, source=plan.source, delivery=_said(plan))
    verb = "lend" if plan.delivery is Delivery.TRANSFER else "reserve"
    told = f"{plan.source} can {verb} {describe(asked.kind, asked.units)}"
    return Help(told, asked, command(asked))


def command(ask: Ask) -> str:
    """ "grid boost request gpu-master memory 8 --source gpu2 --duration 3600"."""
    delivery = f" --delivery {ask.delivery}" if ask.delivery else ""
    return (
        f"grid boost request {ask.target} {ask.kind} {amount_of(ask.kind, ask.units)} "
        f"--source {ask.source} --duration {ask.duration_s:.0f}{delivery}"
    )


def _said(plan: Grant) -> str | None:
    """The delivery, where a plain request would not be delivered so."""
    return str(Delivery.RESERVE) if plan.delivery is Delivery.RESERVE and plan.ask.kind != GPU else None


def _nobody(refused: Refused, short: set[NodeName], least: int) -> Help:
    ask = refused.ask
    others = [one for one in refused.refusals if one.code is not RefusalCode.IS_TARGET]
    reasons = [f"{one.node} {'needs it itself' if one.node in short else one.detail}" for one in others]
    more = f"; {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    because = "; ".join(reasons[:_MOST_REASONS]) + more
    if refused.team_limit is not None:
        return Help(f"no node may lend it: {refused.team_limit}", because=because)
    remedy = _remedy(ask, [one for one in others if one.node not in short])
    even = "even " if least < ask.units else ""
    return Help(f"no node can lend {even}{describe(ask.kind, least)}: {remedy}", because=because)


def _remedy(ask: Ask, refusals: list[Refusal]) -> str:
    """What somebody could change, the easiest first."""
    by_code = {one.code: one.node for one in reversed(refusals)}
    limit = {"cpu": "max_share_cpu", "memory": "max_share_memory_gb", "gpu": "max_share_gpu"}.get(ask.kind, "limit")
    remedies = {
        RefusalCode.COOLING_DOWN: "{0} is cooling down: grid cooldown {0} --off",
        RefusalCode.GPU_IN_USE: "end the programs that use GPUs of {0} beside Ray",
        RefusalCode.KEPT_FREE: "a bolder policy would let {0} lend what it keeps free",
        RefusalCode.LENDING_LIMIT_REACHED: f"a higher {limit} of {{0}} would help",
        RefusalCode.SHARING_DISABLED: "can_share: true on {0} would help",
        RefusalCode.STALE: "{0} lends again once its probe answers",
        RefusalCode.NODE_DOWN: "{0} is down, and would help if it were back",
    }
    for code, text in remedies.items():
        if code in by_code:
            return text.format(by_code[code])
    return "work that ends elsewhere would help, or another node"
