"""Which file is used: the one named on the command line, GRID_CONFIG, the folder's own, the packaged one."""

from pathlib import Path

import pytest

from distributed_grid.config import ConfigSource, find_config, load_config, packaged_config
from distributed_grid.errors import ConfigInvalid

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with its own configuration and two more to name."""
    (tmp_path / "config").mkdir()
    for name in ("config/my-cluster-enhanced.yaml", "one.yaml", "two.yaml"):
        (tmp_path / name).write_text("name: x\n")
    return tmp_path


def test_each_way_to_name_a_file_wins_over_the_next(folder: Path) -> None:
    environ = {"GRID_CONFIG": "two.yaml"}

    assert find_config("one.yaml", environ, folder) == ConfigSource(folder / "one.yaml", "the command line")
    assert find_config(None, environ, folder) == ConfigSource(folder / "two.yaml", "GRID_CONFIG")
    assert find_config(None, {}, folder) == ConfigSource(
        folder / "config/my-cluster-enhanced.yaml", "the current folder"
    )
    assert find_config(None, {}, folder / "config") == packaged_config()


def test_an_empty_variable_names_nothing(folder: Path) -> None:
    assert find_config(None, {"GRID_CONFIG": ""}, folder).origin == "the current folder"


def test_an_absolute_path_is_taken_as_it_stands(folder: Path) -> None:
    assert find_config(folder / "one.yaml", {}, Path("/")).path == folder / "one.yaml"


@pytest.mark.parametrize(
    ("explicit", "environ", "origin"),
    [
        ("gone.yaml", {}, "the command line"),
        (None, {"GRID_CONFIG": "~nobody-at-all/gone.yaml"}, "GRID_CONFIG"),
    ],
)
def test_a_named_file_that_is_missing_is_an_error_that_says_who_named_it(
    folder: Path, explicit: str | None, environ: dict[str, str], origin: str
) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        find_config(explicit, environ, folder)

    assert "gone.yaml" in caught.value.message
    assert caught.value.because[0].endswith(f"does not exist (named by {origin})")


def test_a_source_below_the_current_folder_is_shown_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    assert str(find_config("one.yaml", {}, folder)) == "one.yaml"
    assert str(ConfigSource(Path("/elsewhere/a.yaml"), "a test")) == "/elsewhere/a.yaml"


def test_the_packaged_file_is_the_repository_one() -> None:
    local = REPOSITORY / "config/my-cluster-enhanced.yaml"

    assert packaged_config().path.read_bytes() == local.read_bytes()


def test_the_default_cluster_is_the_documented_one() -> None:
    loaded = load_config(packaged_config())
    config = loaded.config

    assert loaded.warnings == ()
    assert (config.name, config.embedded, config.resource_sharing.enabled) == ("my-cluster", True, True)
    assert config.head is config.node("gpu-master")
    assert [(n.name, n.cpu_count, n.memory_gb, n.gpu_count) for n in config.nodes] == [
        ("gpu-master", 4, 8, 0),
        ("gpu1", 8, 16, 1),
        ("gpu2", 8, 32, 1),
    ]
    assert not config.limits_for("gpu-master").can_share
    for lender in ("gpu1", "gpu2"):
        limits = config.limits_for(lender)
        assert (limits.max_share_cpu, limits.max_share_memory, limits.max_share_gpu) == (
            60_000,
            12 * 2**30,
            10_000,
        )
