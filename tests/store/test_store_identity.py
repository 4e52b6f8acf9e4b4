"""Boosts belong to a cluster, known by its names."""

import pytest

from distributed_grid.store.boost_file import ClusterIdentity, decode_identity, encode_identity


def cluster(name: str, *nodes: str) -> ClusterIdentity:
    return ClusterIdentity(name, frozenset(nodes))


def test_a_cluster_stays_itself_while_nodes_come_and_go() -> None:
    assert cluster("lab", "gpu1", "gpu2").same_cluster(cluster("lab", "gpu2", "gpu3"))


def test_another_name_or_none_of_the_nodes_is_another_cluster() -> None:
    assert not cluster("lab", "gpu1").same_cluster(cluster("prod", "gpu1"))
    assert not cluster("lab", "gpu1").same_cluster(cluster("lab", "gpu2"))


def test_it_comes_back_equal() -> None:
    lab = cluster("lab", "gpu1", "gpu-master")
    assert encode_identity(lab) == {"name": "lab", "nodes": ["gpu-master", "gpu1"]}
    assert decode_identity(encode_identity(lab)) == lab


@pytest.mark.parametrize(
    "data",
    [None, "lab", {"nodes": []}, {"name": "lab"}, {"name": "lab", "nodes": [1]}, {"name": 1, "nodes": []}],
)
def test_anything_else_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"^the cluster"):
        decode_identity(data)
