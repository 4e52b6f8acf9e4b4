"""An hour of measurements on disk: what comes back, and what is not taken for it."""

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from distributed_grid.errors import StoreBroken
from distributed_grid.model.series import Recorded
from distributed_grid.store.boost_file import ClusterIdentity
from distributed_grid.store.history_file import LARGEST, MOST_VALUES, HistoryFile, decode, encode

Lab = ClusterIdentity
NOON = 1_750_000_000.0


def measured(nodes: int = 2, times: int = 5) -> Recorded:
    values = np.random.default_rng(1).random((nodes, 2, times), dtype=np.float32)
    values[0, 1, ::2] = np.nan
    names = tuple(f"n{number}" for number in range(nodes))
    return Recorded(names, ("cpu", "memory"), NOON + 10.0 * np.arange(times), values)


def changed(data: bytes, **changes: object) -> bytes:
    line, _, body = data.partition(b"\n")
    return json.dumps(json.loads(line) | changes).encode() + b"\n" + body


def test_what_was_saved_comes_back_to_four_digits(tmp_path: Path, lab: Lab) -> None:
    file, saved = HistoryFile(tmp_path / "history.bin"), measured()
    assert file.load(lab) is None
    file.save(saved, lab)

    found = file.load(lab)

    assert found is not None
    assert (found.nodes, found.series) == (saved.nodes, saved.series)
    assert found.times.tolist() == saved.times.tolist()
    np.testing.assert_allclose(found.values, saved.values, atol=1e-4)  # gaps are gaps
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["history.bin"]


def test_no_other_cluster_takes_it(lab: Lab) -> None:
    with pytest.raises(ValueError, match="another cluster"):
        decode(encode(measured(), lab), ClusterIdentity("other", lab.nodes))


def test_wherever_it_is_cut_off_or_changed_it_is_not_taken(lab: Lab) -> None:
    good = encode(measured(), lab)
    for place in range(len(good)):
        with pytest.raises(ValueError):  # which one depends on the place
            decode(good[:place], lab)
    for place in range(good.index(b"\n") + 1, len(good)):
        with pytest.raises(ValueError, match="checksum"):
            decode(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], lab)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"version": 2}, "another version"),
        ({"cluster": None}, "the cluster must be"),
        ({"nodes": ["n0", "n0"]}, "lists of unique names"),
        ({"nodes": [1, 2]}, "lists of unique names"),
        ({"series": "cpu"}, "lists of unique names"),
        ({"times": ["now"]}, "not numbers"),
        ({"times": [float("nan")]}, "not numbers"),
        ({"times": [1e300]}, "not numbers"),
        ({"times": [True]}, "not numbers"),
        ({"times": [2.0, 1.0]}, "not ascending"),
        ({"times": [1.0, 2.0]}, "differs from the declared"),
        ({"times": list(range(MOST_VALUES))}, "the limit is"),
    ],
)
def test_what_it_says_of_itself_has_to_be_true(changes: dict[str, object], reported: str, lab: Lab) -> None:
    with pytest.raises(ValueError, match=reported):
        decode(changed(encode(measured(), lab), **changes), lab)


def test_what_is_packed_small_does_not_take_all_memory(lab: Lab) -> None:
    bomb = zlib.compress(bytes(2**28))
    good = encode(measured(), lab)
    line = changed(good[: good.index(b"\n")], checksum=f"sha256:{hashlib.sha256(bomb).hexdigest()}")
    with pytest.raises(ValueError, match="differs from the declared"):
        decode(line + bomb, lab)


def test_a_file_that_is_too_large_is_not_even_read(tmp_path: Path, lab: Lab) -> None:
    path = tmp_path / "history.bin"
    path.write_bytes(bytes(LARGEST + 1))
    with pytest.raises(StoreBroken, match="it is 8 MB large; grid's own files have at most 8 MB"):
        HistoryFile(path).load(lab)


def test_of_very_many_nodes_fewer_times_are_kept(lab: Lab) -> None:
    many = measured(nodes=4000, times=361)

    data = encode(many, lab)
    found = decode(data, lab)

    assert len(data) < LARGEST and found.values.size <= MOST_VALUES
    assert found.times.tolist() == many.times[::2].tolist()
    np.testing.assert_allclose(found.values, many.values[:, :, ::2], atol=1e-4)
