"""The measurements of the last hour, so that a restart does not lose them.

Nothing depends on the file: one that cannot be understood is not used, and the next save replaces it. It is a line of
JSON, and after it the values as compressed 16-bit numbers.
"""

import hashlib
import json
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from distributed_grid.model.series import Recorded
from distributed_grid.store.boost_file import ClusterIdentity, decode_identity, encode_identity
from distributed_grid.store.durable import bytes_of, json_of, replace_durably

VERSION: Final = 1
MOST_VALUES: Final = 2_500_000
"""An hour of a thousand nodes at 10 s. Of more, only every second or third sample is kept."""
LARGEST: Final = 8 * 2**20
_STEPS: Final = 10_000
_GAP: Final = 2**16 - 1
_NUMBERS: Final = np.dtype("<u2")


class HistoryFile:
    """One cluster's measurements; the process that saves holds the `WriterLock`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, cluster: ClusterIdentity) -> Recorded | None:
        """The saved measurements; None if there is no file.

        Raises `StoreBroken` if the file cannot be read, and `ValueError` if it is damaged or another cluster's.
        """
        data = bytes_of(self.path, LARGEST)
        return None if data is None else decode(data, cluster)

    def save(self, recorded: Recorded, cluster: ClusterIdentity) -> None:
        """On `OSError` the old file is unchanged."""
        replace_durably(self.path, encode(recorded, cluster))


def encode(recorded: Recorded, cluster: ClusterIdentity) -> bytes:
    kept = recorded.at_most(MOST_VALUES)
    numbers = np.where(np.isnan(kept.values), _GAP, np.clip(np.rint(kept.values * _STEPS), 0, _GAP - 1))
    body = zlib.compress(numbers.astype(_NUMBERS).tobytes(), 1)
    head = {
        "version": VERSION,
        "cluster": encode_identity(cluster),
        "nodes": kept.nodes,
        "series": kept.series,
        "times": [round(at, 3) for at in kept.times.tolist()],
        "checksum": _checksum(body),
    }
    return json.dumps(head).encode() + b"\n" + body


def decode(data: bytes, cluster: ClusterIdentity) -> Recorded:
    """The reverse; a `ValueError` says why this is not a history of the cluster."""
    line, _, body = data.partition(b"\n")
    head = json_of(line)
    if not isinstance(head, dict) or head.get("version") != VERSION:
        raise ValueError("it was written by another version of grid")
    if not decode_identity(head.get("cluster")).same_cluster(cluster):
        raise ValueError("it belongs to another cluster")
    nodes, series, times = _names(head.get("nodes")), _names(head.get("series")), head.get("times")
    if not isinstance(times, list) or not all(type(at) in (int, float) and abs(at) < 1e12 for at in times):
        raise ValueError("its times are not numbers")
    if any(later <= sooner for sooner, later in pairwise(times)):
        raise ValueError("its times are not ascending")
    count = len(nodes) * len(series) * len(times)
    if count > MOST_VALUES:
        raise ValueError(f"it declares {count} values; the limit is {MOST_VALUES}")
    if head.get("checksum") != _checksum(body):
        raise ValueError("its checksum does not match")
    numbers = _numbers(body, count).reshape(len(nodes), len(series), len(times))
    values = np.where(numbers == _GAP, np.nan, numbers / np.float32(_STEPS)).astype(np.float32)
    return Recorded(nodes, series, np.array(times, dtype=np.float64), values)


def _names(said: object) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said) or len({*said}) < len(said):
        raise ValueError("its nodes or series are not lists of unique names")
    return tuple(said)


def _numbers(body: bytes, count: int) -> "npt.NDArray[np.uint16]":
    unpacking, size = zlib.decompressobj(), count * _NUMBERS.itemsize
    try:
        found = unpacking.decompress(body, size + 1)  # however much is packed into it
    except zlib.error as error:
        raise ValueError(f"its values cannot be unpacked: {error}") from None
    if len(found) != size:
        raise ValueError("its number of values differs from the declared number")
    return np.frombuffer(found, _NUMBERS)


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
