"""Tests and benchmarks use what is public. Ruff refuses private attributes (SLF001); this finds the other ways."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/**/*.py")])
ALLOWED = {
    "_get_minimal_env_vars",  # documented, though its name says otherwise
    "_fixtureinfo",  # of pytest
}
PATCHES = {"setattr", "delattr", "getattr", "object", "patch"}


def is_private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.endswith("__") and last != "_" and last not in ALLOWED


def private_names(source: str) -> Iterator[str]:
    """Names of grid that are imported though private, and private names that are given to a patch as text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("distributed_grid", "bench"):
            yield from (name.name for name in node.names if is_private(name.name))
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text for text in texts[:1] if called in PATCHES and is_private(text))


@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_no_test_reaches_into_private_names(folder: str) -> None:
    files = [file for file in FILES if file.relative_to(ROOT).parts[0] == folder]
    found = [(str(file.relative_to(ROOT)), name) for file in files for name in private_names(file.read_text())]

    assert files and found == []


@pytest.mark.parametrize(
    "line",
    [
        "from distributed_grid.threads import _RETRY_AFTER_S",
        "monkeypatch.setattr(module, '_private', None)",
        "monkeypatch.setattr('distributed_grid.threads._RETRY_AFTER_S', 1)",
        "patch.object(thing, '_private')",
        "getattr(thing, '_private')",
    ],
)
def test_each_way_to_a_private_name_is_found(line: str) -> None:
    assert list(private_names(line))
