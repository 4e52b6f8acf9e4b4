"""What `distributed_grid` itself exports."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import distributed_grid as grid

PAGES = Path(__file__).parents[2]
PUBLIC_MODULES = ("boosts", "executor", "program_lease", "scheduler", "sharing")


@pytest.mark.parametrize("name", grid.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(grid, name) is not None
    assert name in dir(grid)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_everything_that_a_public_module_exports_is_exported_by_the_package(module: str) -> None:
    # Type checkers see the modules' names, programs see the package's: they are the same.
    public = import_module(f"distributed_grid.sdk.{module}")

    assert set(public.__all__) <= set(grid.__all__)
    assert all(getattr(grid, name) is getattr(public, name) for name in public.__all__)


def test_the_pages_import_from_the_package_alone_or_from_roles() -> None:
    pages = [PAGES / "README.md", *sorted((PAGES / "docs").rglob("*.md"))]
    imports = [
        line for page in pages for line in re.findall(r"^\s*from (distributed_grid\S*) import", page.read_text(), re.M)
    ]

    assert set(imports) == {"distributed_grid", "distributed_grid.roles"}


def test_another_name_is_none_of_its() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(grid, "Nothing")  # noqa: B009 - mypy would refuse it


def test_the_package_loads_nothing_before_it_is_used() -> None:
    code = "import sys, distributed_grid; print([m for m in sys.modules if m.startswith('distributed_grid.')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"
