"""Diagnosis: the meaning of the facts about an installation and its cluster, and remedies.

`controller.checkup` collects the facts; this package only interprets them. Every check reports something, even if all
is well or the check could not be made.
"""

from distributed_grid.decide.diagnosis import checks, home, nodes
from distributed_grid.decide.diagnosis.checks import HOW_TO_REACH, is_new_enough
from distributed_grid.model.checkup_facts import Facts
from distributed_grid.model.findings import CHECKS_INSIDE, Finding, skip

__all__ = ["HOW_TO_REACH", "diagnose"]


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Every check's result, in the order in which a person would go through them."""
    return (
        checks.python(facts.machine),
        checks.ray(facts.machine),
        home.folder(facts.home),
        home.filesystem(facts.home),
        home.secrets(facts.home),
        home.kept_aside(facts.home),
        home.disk_space(facts.home),
        checks.controller(facts.controller, facts.cluster),
        checks.measured_use(facts.controller),
        checks.ray_cluster(facts.cluster, facts.machine),
        *_inside(facts),
    )


def _inside(facts: Facts) -> tuple[Finding, ...]:
    """The checks that need a cluster that was reached."""
    inside = facts.cluster
    if inside is None or inside.unreached or not is_new_enough(facts.machine.ray):
        return tuple(skip(code, "there is no Ray cluster to ask") for code in CHECKS_INSIDE)
    return (
        *nodes.fit_the_head(inside, facts.machine),
        nodes.gpus(inside),
        checks.resize(inside),
        checks.reservations(inside),
        nodes.authentication(inside),
        nodes.autoscaler(inside),
        nodes.kuberay(inside),
        checks.view_lag(inside),
    )
