"""The sessions that the pages show: read, typed in a shell, and held against what is printed."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from live_grid import LiveGrid

ROOT = Path(__file__).parents[2]
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BARS = re.compile("[▏▎▍▌▋▊▉█░▁▂▃▄▅▆▇]+")
SHOWN_ADDRESS = re.compile(r"(?:192\.0\.2\.\d+|LOCALHOST):\d+")


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


def files(*pages: str) -> dict[str, str]:
    """The Python and YAML blocks that begin with a file's name."""
    text = "\n".join((ROOT / page).read_text() for page in pages)
    blocks = re.findall(r"^```(?:python|yaml)\n(# (\w+\.(?:py|yaml))\n.*?)^```$", text, re.M | re.S)
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
            env=grid.env | {"PATH": path, "LOGNAME": "ana", "COLUMNS": "500"},  # the pages' user, on a wide terminal
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

    def __init__(self, shell: Shell, address: str, exit_codes: Mapping[str, int]) -> None:
        """`exit_codes`: of the commands that are shown to fail."""
        self._shell = shell
        self._address = address
        self._exit_codes = exit_codes
        self._ids: dict[str, str] = {}

    def type(self, step: Step) -> None:
        command = SHOWN_ADDRESS.sub(self._address, step.command)
        for shown, real in self._ids.items():
            command = command.replace(shown, real).replace(shown[:8], real[:8])
        code, printed = self._shell.run(command)
        told = f"{step.place}: {command}\n" + "\n".join(printed)
        assert code == self._exit_codes.get(step.command, 0), f"exit code {code} from {told}"
        real_lines = {masked(line) for line in printed}
        for line in step.shown:
            assert masked(line) in real_lines, f"{line!r} is shown, but was not printed by {told}"
        self._ids |= zip(_ids("\n".join(step.shown)), _ids("\n".join(printed)), strict=False)


def _ids(text: str) -> list[str]:
    return list(dict.fromkeys(UUID.findall(text)))
