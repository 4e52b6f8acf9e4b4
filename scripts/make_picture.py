"""Make docs/images/boost.svg, the picture in the README, from what grid prints on the running cluster.

Usage: grid cluster start && python scripts/make_picture.py
"""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

GRID = str(Path(sys.executable).with_name("grid"))
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "boost.svg"
COMMANDS = ("grid boost request gpu-master cpu 4 --duration 30m", "grid cluster status")
WIDTH = 108
MOST_LINES = 15  # as far as the boost; notes about the hardware of this machine come after it


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        console.print(Text(f"$ {command}", style="bold"))
        shown = printed(command).rstrip().splitlines()
        console.print(Text.from_ansi("\n".join(shown[:MOST_LINES])))
        console.print()
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(self_contained(console.export_svg(title="grid")))
    print(f"Wrote {PICTURE}")


def self_contained(svg: str) -> str:
    """The picture without the fonts that Rich loads from another host: viewers fall back to their own."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def printed(command: str) -> str:
    """The output of a command on a terminal, with its colours."""
    outer, inner = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(WIDTH)}
    words = [GRID, *command.split()[1:]]
    with subprocess.Popen(words, stdout=inner, stderr=subprocess.DEVNULL, env=environment) as running:
        os.close(inner)
        pieces = []
        while True:
            try:
                piece = os.read(outer, 65536)
            except OSError:  # the terminal is closed: the command has ended
                break
            if not piece:
                break
            pieces.append(piece)
        if running.wait() != 0:
            sys.exit(f"{command} failed; is a cluster running, with nothing lent? grid cluster status")
    return b"".join(pieces).decode().replace("\r", "")


if __name__ == "__main__":
    main()
