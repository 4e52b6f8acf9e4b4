"""Classes and functions of users where they arrive: imported as at home, or taken from a copy.

This module travels by value, because grid is not installed on other nodes. `packing.py` makes what it reads.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def look_for_modules_in(before: Sequence[str], after: Sequence[str]) -> None:
    """Add the sender's own folders, as far as they are here, before and after what is installed here."""
    sys.path[:0] = [folder for folder in before if folder not in sys.path and Path(folder).is_dir()]
    sys.path += [folder for folder in after if folder not in sys.path and Path(folder).is_dir()]


def _as_it_is(found: Any) -> Any:
    return found


def unpacked(packed: bytes, load: Callable[[Any], Any] = _as_it_is) -> Any:
    """What was packed: imported if its module is here, else from the copy. `load` finishes the import."""
    from ray import cloudpickle

    by_name, whole, why_not_whole = cloudpickle.loads(packed)
    try:
        return load(cloudpickle.loads(by_name))
    except (ImportError, AttributeError) as error:  # no such module, or another one of that name
        if whole:
            return cloudpickle.loads(whole)
        if why_not_whole:
            raise ImportError(f"{error}: {why_not_whole}") from error
        raise
