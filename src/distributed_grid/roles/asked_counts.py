"""The member counts that a role may be scaled to."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from distributed_grid.errors import InvalidRole, did_you_mean
from distributed_grid.model.roles.checks import Wrong, name
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload


def spec_named(workload: Workload, role: str | Enum) -> RoleSpec:
    asked = text_of_role(role)
    found = workload.role(asked)
    if found is None:
        names = [spec.name for spec in workload.roles]
        said = f"The workload {workload.name} has no role {asked!r}{did_you_mean(asked, names)}"
        raise InvalidRole(said, because=[f"it has {', '.join(names)}"])
    return found


def text_of_role(role: Any) -> str:
    """The name, from text or from a member of any Enum."""
    try:
        return name(role)
    except Wrong as wrong:
        raise InvalidRole(f"A role {wrong}") from None


def scaled_counts(workload: Workload, role: str | Enum, count: int) -> Mapping[str, int]:
    """The count of each role that changes. Roles of a colocation group change together."""
    spec = spec_named(workload, role)
    if not spec.least <= count <= spec.most:
        asked = str(spec.least) if spec.least == spec.most else f"{spec.least} to {spec.most}"
        raise InvalidRole(
            f"{spec.name} may have {asked} members, not {count}",
            try_next=f"Give it the count ({count}, ...) when it is made.",
        )
    together = next(group for group in workload.together if spec in group)
    return {one.name: count for one in together}
