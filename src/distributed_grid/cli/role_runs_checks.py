"""What is checked of a workload and its name before a process is started for it."""

from distributed_grid.cli.output import say
from distributed_grid.client import GridClient
from distributed_grid.config.roles_file import load_workload
from distributed_grid.errors import InvalidRole, RoleRunInUse, RoleRunNotFound
from distributed_grid.model.roles.runs import is_over
from distributed_grid.model.roles.workload import Workload


def startable(file: str) -> Workload:

    loaded = load_workload(file)
    for warning in loaded.warnings:
        say(f"Warning: {warning}")
    without = [role.name for role in loaded.workload.roles if role.cls is None]
    if without:
        raise InvalidRole(
            f"{loaded.source} says no class for {', '.join(without)}",
            because=["a role without a class can be planned, but not started"],
            try_next="Give each its class: module:Class",
        )
    return loaded.workload


def free_name(client: GridClient, name: str) -> str:
    """The name, if no run has it that lives; the launcher makes sure of it."""

    try:
        there = client.role_run(name)
    except RoleRunNotFound:
        return name
    if is_over(there):
        return name
    owner = there["owner"]
    raise RoleRunInUse(
        f"A run with the name {name} is {there['state']}",
        because=[f"it is kept by process {owner['pid']} on {owner['node']}"],
        try_next=f"Give this one another name with --name, or end that one: grid roles down {name}",
    )
