"""The sessions that the pages show, run on a real cluster: they work, and print what is shown."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from live_grid import LiveGrid, until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/boosts.md",
    "docs/running.md",
    "docs/offloading.md",
    "docs/sharing.md",
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
EXIT_CODES = {"grid boost request gpu-master cpu 7": 4}

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BARS = re.compile("[▏▎▍▌▋▊▉█░▁▂▃▄▅▆▇]+")
SHOWN_ADDRESS = re.compile(r"192\.0\.2\.\d+:\d+")


@dataclass(frozen=True)
class Step:
    """A command of a page, and what is shown below it."""

    place: str
    command: str
    shown: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """In a `console` block, lines with a `$` are typed, those below are printed, and `...` is anything."""
    found: list[Step] = []
    inside = False
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Step(f"{page}:{number}", line.removeprefix("$ "), ()))
        elif inside and line.strip() not in ("", "..."):
            last = found[-1]
            found[-1] = Step(last.place, last.command, (*last.shown, line))
    return found


def programs() -> dict[str, str]:
    """The Python blocks that begin with a file's name."""
    pages = "\n".join((ROOT / page).read_text() for page in PAGES)
    blocks = re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", pages, re.M | re.S)
    return {name: text for text, name in blocks}


def masked(line: str) -> str:
    """A line without what differs from run to run: ids, times, places, amounts, bars; measured GPUs or none."""
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(?!:)", "00:00:00", line)  # what is not today has its date
    line = re.sub(r"(?<=%) +-(?= )", " 0%", BARS.sub("", re.sub(r"https?://", "://", line)))
    without_ids = re.sub(r"\b[0-9a-f]{36}\b|\b[0-9a-f]{8}\b", "#", UUID.sub("#", line))
    return " ".join(re.sub(r"\d+(\.\d+)?", "#", without_ids).split())


class Shell:
    """One bash for a whole page, so that what it sets stays set."""

    def __init__(self, grid: LiveGrid) -> None:
        path = f"{Path(sys.executable).parent}:{grid.env['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            env=grid.env | {"PATH": path},
            cwd=grid.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """Its exit code and what it printed, on stdout and stderr."""
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n<<%s>>\\n' $?\n")
        self._bash.stdin.flush()
        printed: list[str] = []
        for line in self._bash.stdout:
            if ended := re.fullmatch(r"<<(\d+)>>\n", line):
                return int(ended[1]), printed
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended at: {command}")

    def close(self) -> None:
        self._bash.kill()
        self._bash.communicate()


class Reader:
    """Types a page's commands, with the ids that its own boosts got instead of those that are shown."""

    def __init__(self, shell: Shell, address: str) -> None:
        self._shell = shell
        self._address = address
        self._ids: dict[str, str] = {}

    def type(self, step: Step) -> None:
        command = SHOWN_ADDRESS.sub(self._address, step.command)
        for shown, real in self._ids.items():
            command = command.replace(shown, real).replace(shown[:8], real[:8])
        code, printed = self._shell.run(command)
        told = f"{step.place}: {command}\n" + "\n".join(printed)
        assert code == EXIT_CODES.get(step.command, 0), f"exit code {code} from {told}"
        real_lines = {masked(line) for line in printed}
        for line in step.shown:
            assert masked(line) in real_lines, f"{line!r} is shown, but was not printed by {told}"
        self._ids |= zip(_ids("\n".join(step.shown)), _ids("\n".join(printed)), strict=False)


def _ids(text: str) -> list[str]:
    return list(dict.fromkeys(UUID.findall(text)))


@pytest.fixture
def shell(grid: LiveGrid) -> Iterator[Shell]:
    for name, text in programs().items():
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
    until(lambda: not grid.client.demand()["demand"], 30, "what waited for the page before is forgotten")
    reader = Reader(shell, grid.address)

    for step in steps(page):
        if step.command not in NOT_RUN:
            reader.type(step)


def test_there_are_sessions_to_run_and_no_exception_is_out_of_date() -> None:
    commands = [step.command for page in PAGES for step in steps(page)]

    assert len(commands) > 20
    assert {*NOT_RUN, *EXIT_CODES} <= set(commands)
    for command in set(commands) - {*NOT_RUN}:
        assert "192.0.2." not in SHOWN_ADDRESS.sub("", command), f"nothing answers there: {command}"
    assert set(programs()) == {"train_model.py", "boosts.py", "sharing.py", "count.py", "crunch.py"}
