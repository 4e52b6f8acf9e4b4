"""The class of a role as it is seen before anything starts, the same for runs on Ray and in this process."""

from typing import Final

from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.roles.on_node.making import has_async_methods, load_class

_ASYNC_CONCURRENCY: Final = 1000
"""Ray's default for a class with async methods. For other classes it is one."""


def class_of(role: RoleSpec) -> type:
    """The class, loaded here for its methods even if it is imported elsewhere."""
    if role.cls is None:
        raise InvalidRole(
            f"The role {role.name} has no class", try_next="Give it one: cls, in YAML class: module:Class"
        )
    if not isinstance(role.cls, str):
        return role.cls
    try:
        found = load_class(role.cls)
    except (ImportError, AttributeError) as error:
        raise InvalidRole(
            f"The class {role.cls} of the role {role.name} cannot be imported",
            because=[f"{type(error).__name__}: {error}"],
            try_next="Start in the folder that has its module, or install it.",
        ) from error
    if not isinstance(found, type):
        raise InvalidRole(f"{role.cls}, of the role {role.name}, is not a class but a {type(found).__name__}")
    return found


def concurrency_of(cls: type, said: int | None) -> int:
    """How many calls one member works on at a time. Ray's default if the role does not say."""
    return said or (_ASYNC_CONCURRENCY if has_async_methods(cls) else 1)
