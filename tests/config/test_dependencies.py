"""What is imported comes with grid: a library that only tests have would be missing for all users."""

import ast
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "distributed_grid"


def _installed_with_grid() -> set[str]:
    """With the extras that users can ask for, and with all that those bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name, ones in project["optional-dependencies"].items() if name != "dev" for one in ones]
    found: set[str] = set()
    waiting = [(Requirement(one), "") for one in [*project["dependencies"], *extras]]
    while waiting:
        asked, extra = waiting.pop()
        name = _name(asked.name)
        if asked.marker is not None and not asked.marker.evaluate({"extra": extra}):
            continue
        known = name in found and not asked.extras
        found.add(name)
        if not known and name != "distributed-grid":
            with suppress(PackageNotFoundError):
                brings = [Requirement(one) for one in requires(name) or []]
                waiting += [(one, wanted) for wanted in ["", *asked.extras] for one in brings]
    return found


def _name(text: str) -> str:
    return text.lower().replace("_", "-")


def _imported(file: Path) -> set[str]:
    tree = ast.walk(ast.parse(file.read_text()))
    found = set()
    for node in tree:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_everything_that_is_imported_is_installed_with_grid() -> None:
    distributions = packages_distributions()
    installed = _installed_with_grid()
    missing = {
        f"{file.relative_to(SOURCE)}: {module}"
        for file in SOURCE.rglob("*.py")
        for module in _imported(file) - {"distributed_grid", *sys.stdlib_module_names}
        if not installed & {_name(one) for one in distributions.get(module, [])}
    }

    assert missing == set()
