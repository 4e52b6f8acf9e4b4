"""What is imported comes with grid: a library that only tests have would be missing for all users.

What the tests need comes with the extra `dev`.
"""

import ast
import importlib.util
import re
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "distributed_grid"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# What the founding documents type: `pytest FILE`, `pytest FILE::CLASS`, `pytest FILE --cov=MODULE`.
MEASURED = ("distributed_grid.monitoring.resource_metrics", "distributed_grid.orchestration.resource_sharing_manager")
TEST_FILES = ("tests/test_intelligent_resource_sharing.py", "tests/test_boost_aware_integration.py")
TEST_CLASS = "tests/test_intelligent_resource_sharing.py::TestResourceSharingManager"


def _installed_with_grid() -> set[str]:
    """With the extras that users can ask for, and with all that those bring."""
    extras = [one for name, ones in PROJECT["optional-dependencies"].items() if name != "dev" for one in ones]
    found: set[str] = set()
    waiting = [(Requirement(one), "") for one in [*PROJECT["dependencies"], *extras]]
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


def test_the_documented_test_commands_find_their_files_and_options() -> None:
    dev = {_name(Requirement(one).name) for one in PROJECT["optional-dependencies"]["dev"]}
    file, name = TEST_CLASS.split("::")

    assert {"pytest", "pytest-cov"} <= dev
    assert [one for one in TEST_FILES if not (ROOT / one).is_file()] == []
    assert re.search(rf"^class {name}\b", (ROOT / file).read_text(), flags=re.MULTILINE)
    for module in MEASURED:
        assert importlib.util.find_spec(module) is not None, module


def test_poetry_installs_what_the_tests_need_as_shown() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        shown = re.findall(r"poetry install[^\n`#]*", (ROOT / page).read_text())
        assert {one.strip() for one in shown} == {"poetry install --all-extras"}, page
