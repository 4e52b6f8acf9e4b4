"""The sessions that the pages show, run on a real cluster: they work, and print what is shown."""

import shutil
from collections.abc import Iterator

import pytest
from live_grid import PACKAGED, LiveGrid, until
from page_sessions import ROOT, SHOWN_ADDRESS, Reader, Shell, files, steps

pytestmark = pytest.mark.cluster

CONFIG = PACKAGED

PAGES = (
    "README.md",
    "docs/boosts.md",
    "docs/running.md",
    "docs/offloading.md",
    "docs/sharing.md",
    "docs/windows.md",
    "docs/monitoring.md",
    "docs/api.md",
    "docs/security.md",
    "docs/operations.md",
)

NOT_RUN = {
    "grid cluster start": "the fixture has started the cluster, and a second one is refused",
    "grid cluster stop": "the fixture stops it",
    "grid start --address 192.0.2.10:6379": "another cluster; test_existing_cluster.py does this on one",
    "grid start --address 192.0.2.10:6379 --supervise": "it stays; test_supervise.py does this",
    "grid top": "it stays, and needs a terminal; test_cli_top.py uses it",
    "grid stop": "it would take grid out of the cluster; test_existing_cluster.py does this, too",
}
EXIT_CODES = {
    "grid boost request gpu-master cpu 13": 4,
    "grid boost request gpu-master cpu 10 --max-sources 1": 4,
    "grid plan gpu-master cpu 13": 4,
    "grid run --nodes 3 --gpus 1 -- count.py 100": 4,
}


@pytest.fixture
def shell(grid: LiveGrid) -> Iterator[Shell]:
    for name, text in files(*PAGES).items():
        (grid.folder / name).write_text(text)
    shell = Shell(grid)
    yield shell
    shell.close()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_happens(grid: LiveGrid, shell: Shell, page: str) -> None:
    if "curl" in (ROOT / page).read_text() and shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    grid.settled()
    until(lambda: {node["state"] for node in grid.client.nodes()["nodes"]} == {"ok"}, 60, "all nodes measured")
    if "Waiting: nothing" in (ROOT / page).read_text():
        until(lambda: not grid.client.demand()["demand"], 30, "what waited for the page before is forgotten")
    reader = Reader(shell, grid.address, EXIT_CODES)

    for step in steps(page):
        if step.command not in NOT_RUN:
            reader.type(step)


def test_there_are_sessions_to_run_and_no_exception_is_out_of_date() -> None:
    commands = [step.command for page in PAGES for step in steps(page)]

    assert len(commands) > 20
    assert {*NOT_RUN, *EXIT_CODES} <= set(commands)
    for command in set(commands) - {*NOT_RUN}:
        assert "192.0.2." not in SHOWN_ADDRESS.sub("", command), f"nothing answers there: {command}"
    assert set(files(*PAGES)) == {"train_model.py", "boosts.py", "sharing.py", "count.py", "crunch.py"}
