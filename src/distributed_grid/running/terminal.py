"""What the terminal of a run is used for just now."""

import os
import termios
from typing import Final

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def is_read_by_key() -> bool:
    """Whether the program reads it key by key, as editors do, and shells and debuggers that ask for the next line."""
    try:
        return os.isatty(_STDOUT) and not termios.tcgetattr(_STDIN)[3] & termios.ICANON
    except termios.error:
        return False  # its input is not the terminal


def is_ours() -> bool:
    """Whether what we start is in its foreground; a run that was sent to the background is not."""
    try:
        return os.isatty(_STDOUT) and os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:  # not a terminal, or somebody else's
        return False
