"""The Python and the Ray that `grid` itself runs with."""

from typing import Final

from distributed_grid.decide.diagnosis.finding import Finding, fail, ok
from distributed_grid.decide.versions import OLDEST_RAY, is_new_enough, numbers
from distributed_grid.model.checkup_facts import MachineFacts

OLDEST_PYTHON: Final = "3.11"


def python(machine: MachineFacts) -> Finding:
    found = f"Python {machine.python} ({machine.executable})"
    if numbers(machine.python) < numbers(OLDEST_PYTHON):
        return fail(
            "python",
            f"{found}: grid needs {OLDEST_PYTHON} or newer",
            f"Install Python {OLDEST_PYTHON} or newer and distributed-grid into it; "
            "the cluster's nodes need the same version.",
        )
    return ok("python", found)


def ray(machine: MachineFacts) -> Finding:
    install = f"{machine.executable} -m pip install --upgrade 'ray[default]>={OLDEST_RAY}'"
    if machine.ray is None:
        return fail("ray", f"Ray cannot be imported: {machine.ray_error or 'it is missing'}", install)
    if not is_new_enough(machine.ray):
        return fail(
            "ray",
            f"Ray {machine.ray} is too old: grid needs {OLDEST_RAY} or newer, "
            "which can change a running node's resources",
            f"{install}   (on every node, then restart the cluster)",
        )
    return ok("ray", f"Ray {machine.ray}")
