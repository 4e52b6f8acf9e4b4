"""`grid config`: data on stdout, warnings on stderr, mistakes as `ConfigInvalid`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from distributed_grid.cli.config import config
from distributed_grid.errors import ConfigInvalid

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRID_CONFIG", raising=False)
    (tmp_path / "good.yaml").write_text("name: lab\nnodes:\n- {name: a, cpu_count: 4}\n- {name: b, colour: red}\n")
    return tmp_path


def grid_config(*arguments: str) -> Result:
    return CliRunner().invoke(config, list(arguments))


def test_check_says_ok_and_warns_on_stderr() -> None:
    result = grid_config("check", "good.yaml")

    assert result.exit_code == 0
    assert result.stdout == "OK: good.yaml: 2 nodes, resource sharing not enabled\n"
    assert result.stderr == "Warning: good.yaml:4:13: nodes[1].colour: unknown key 'colour' (ignored)\n"


def test_check_without_a_file_checks_the_one_in_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = grid_config("check")
    monkeypatch.setenv("GRID_CONFIG", "good.yaml")
    chosen = grid_config("check")

    assert "my-cluster-enhanced.yaml: 3 nodes, resource sharing enabled" in packaged.stdout
    assert "good.yaml: 2 nodes" in chosen.stdout


def test_check_raises_what_is_wrong_with_exit_code_2(folder: Path) -> None:
    (folder / "bad.yaml").write_text("nodes:\n- {name: a, cpu_count: -1}\n- {}\n")

    error = grid_config("check", "bad.yaml").exception

    assert isinstance(error, ConfigInvalid)
    assert error.exit_code == 2
    assert error.message == "The configuration bad.yaml has 2 problems"
    assert error.because == (
        "bad.yaml:2:24: nodes[0].cpu_count: must be zero or more, not -1",
        "bad.yaml:3:3: nodes[1].name: is missing",
    )
    assert error.try_next == "Correct the file, then check it: grid config check bad.yaml"


def test_check_of_a_missing_file_is_an_error() -> None:
    assert isinstance(grid_config("check", "gone.yaml").exception, ConfigInvalid)


def test_schema_is_json_on_stdout() -> None:
    schema = json.loads(grid_config("schema").stdout)

    assert schema["title"] == "Distributed Grid configuration"
    assert {"nodes", "resource_sharing", "execution", "cluster_name"} <= schema["properties"].keys()


def test_show_as_json_tells_each_value_and_its_origin() -> None:
    shown = json.loads(grid_config("show", "--config", "good.yaml", "--json").stdout)

    assert shown["source"] == "good.yaml"
    assert shown["values"]["name"] == {"value": "lab", "from": "good.yaml:1:7"}
    assert shown["values"]["nodes[0].cpu_count"] == {"value": 4, "from": "good.yaml:3:24"}
    assert shown["values"]["nodes[1].colour"] == {"value": "red", "from": "good.yaml:4:21"}
    assert shown["values"]["resource_sharing.grace_seconds"] == {"value": 30, "from": "default"}


def test_show_as_a_table_names_the_file_once_and_each_origin() -> None:
    shown = grid_config("show", "--config", "good.yaml").stdout

    assert shown.startswith("good.yaml (named by the command line)")
    rows = {cells[0]: cells[1:] for line in shown.splitlines() if (cells := line.split())}
    assert rows["nodes[0].cpu_count"] == ["4", "good.yaml:3:24"]
    assert rows["embedded"] == ["false", "default"]
    assert rows["resource_sharing.delivery"] == ["-", "default"]


def test_in_a_pipe_every_setting_is_on_one_line_for_grep() -> None:
    command = [str(Path(sys.executable).with_name("grid")), "config", "show", "--config", "good.yaml"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    (line,) = [line for line in shown.splitlines() if "cpu_pressure_high" in line]
    assert line.split()[0] == "resource_sharing.thresholds.cpu_pressure_high"
    assert line.split()[2] == "default"


def test_check_as_json_has_the_warnings_too() -> None:
    found = json.loads(grid_config("check", "good.yaml", "--json").stdout)

    assert found["ok"] is True
    assert found["nodes"] == ["a", "b"]
    assert "unknown key 'colour'" in found["warnings"][0]


def test_starting_the_command_loads_nothing_heavy() -> None:
    heavy = ["pydantic", "ruamel.yaml", "rich", "ray"]
    code = f"import sys, distributed_grid.cli.config; print([m for m in {heavy} if m in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout.strip() == "[]"


def test_check_warns_of_guarantees_that_all_nodes_together_cannot_keep(folder: Path) -> None:
    (folder / "much.yaml").write_text(
        "nodes:\n- {name: a, cpu_count: 4}\nresource_sharing:\n  teams:\n  - {name: t, guaranteed: {cpu: 9999}}\n"
    )

    result = grid_config("check", "much.yaml")

    assert result.exit_code == 0
    guaranteed = "teams are guaranteed 9999 cpu in total, but all nodes together have 4"
    said = f"much.yaml:5:3: resource_sharing.teams: {guaranteed}\n"
    assert f"Warning: {said}" in result.stderr


@pytest.mark.parametrize(
    ("guaranteed", "has"),
    [
        ("cpu: 9999", "guaranteed 9999 cpu in total, but all nodes together have 5"),
        ("gpu: 9999", "guaranteed 9999 gpu in total, but all nodes together have 0"),
        ("memory_gb: 9999", "guaranteed 9999 memory_gb in total, but all nodes together have 3"),
    ],
)
def test_check_refuses_guarantees_that_an_embedded_cluster_can_never_keep(
    folder: Path, guaranteed: str, has: str
) -> None:
    """Amounts that the file leaves out count as the embedded cluster starts them."""
    teams = f"resource_sharing: {{teams: [{{name: t, guaranteed: {{{guaranteed}}}}}]}}\n"
    nodes = "nodes:\n- {name: a, cpu_count: 4}\n- {name: b, memory_gb: 2}\n"
    (folder / "much.yaml").write_text(nodes + teams)
    assert "guaranteed" not in grid_config("check", "much.yaml").stderr, "what Ray finds is not known yet"
    (folder / "much.yaml").write_text("embedded: true\n" + nodes + teams)

    result = grid_config("check", "much.yaml")

    assert isinstance(result.exception, ConfigInvalid)
    assert result.exception.because == (f"much.yaml:5:27: resource_sharing.teams: teams are {has}",)
    (folder / "much.yaml").write_text("embedded: true\n" + nodes + teams.replace("9999", "0"))
    assert grid_config("check", "much.yaml").exit_code == 0
