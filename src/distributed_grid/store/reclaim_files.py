"""`GRID_HOME/reclaim/<boost id>.json`: exists while a holder is asked to give a boost up, for scripts that watch."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from distributed_grid.store.durable import replace_durably, sync_folder

_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class ReclaimFiles:
    """One file for each notice, readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shown: dict[str, bytes] | None = None

    def differ(self, wanted: Mapping[str, bytes]) -> bool:
        """True if `show` has something to do."""
        return self._shown != wanted

    def show(self, wanted: Mapping[str, bytes]) -> None:
        """Make the files exactly these: text by boost id. `OSError`: some are not as they should be; call it again."""
        before, self._shown = self._shown, None
        if wanted:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        for boost_id, text in wanted.items():
            if _ID.fullmatch(boost_id) and (before is None or before.get(boost_id) != text):
                replace_durably(self._folder / f"{boost_id}.json", text)
        names = {f"{boost_id}.json" for boost_id in wanted}
        over = [path for path in self._folder.glob("*.json") if path.name not in names]
        for path in over:
            path.unlink(missing_ok=True)
        if over:
            sync_folder(self._folder)
        with suppress(OSError):  # the folder holds other files
            if not wanted and self._folder.exists():
                self._folder.rmdir()
        self._shown = dict(wanted)
