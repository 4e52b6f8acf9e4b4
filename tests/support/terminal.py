"""A real terminal with a shell in it, for tests that type."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
from live_grid import until

CTRL_C: Final = "\x03"
CTRL_Z: Final = "\x1a"
_TELLS_THE_CODE: Final = 'codes=("${PIPESTATUS[@]}"); echo "[ended ${codes[0]}]"'


class Terminal:
    """Bash with job control, as a person has it. It tells `[ended CODE]` when the first command of a line has ended."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self._keyboard, screen = pty.openpty()
        self.resize(24, 80)
        prompt = {"PS1": "", "HISTFILE": "", "TERM": "dumb"}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            stdin=screen,
            stdout=screen,
            stderr=screen,
            cwd=folder,
            env={**env, **prompt},
            start_new_session=True,
            # Of this session, it is the controlling terminal; and whatever ran the tests, Ctrl-C is heard here.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(screen)
        self._shown = bytearray()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.run(f"PROMPT_COMMAND='{_TELLS_THE_CODE}'")
        self.until_shown("[ended 0]")

    @property
    def shell(self) -> psutil.Process:
        return psutil.Process(self._bash.pid)

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def run(self, line: str) -> None:
        """Type a command; what was shown before it is forgotten."""
        self._shown.clear()
        self.type(line + "\n")

    def shows(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def until_shown(self, text: str, within_s: float = 30.0) -> str:
        try:
            until(lambda: text in self.shows(), within_s, f"{text!r} on the terminal")
        except AssertionError as error:
            error.add_note(f"It shows {self.shows()!r}")
            raise
        return self.shows()

    def until_ended(self) -> int:
        """The exit code of the command that was typed."""
        shown = self.until_shown("[ended ")
        until(lambda: "]" in self.shows().split("[ended ", 1)[1], 30, shown)
        return int(self.shows().split("[ended ", 1)[1].split("]")[0])

    def close(self) -> None:
        self._bash.kill()
        self._bash.wait()
        os.close(self._keyboard)

    def _read(self) -> None:
        try:
            while piece := os.read(self._keyboard, 65536):
                self._shown += piece
        except OSError:
            return  # closed
