"""An unforeseen exception still reaches a person as an error: what it was, and what to do."""

from served_grid import ServedGrid

from distributed_grid.errors import GridError


def _error_while(served: ServedGrid, falls: BaseException) -> GridError:
    def fall() -> None:
        raise falls

    for _ in range(20):  # the reconciler looks at the cluster, too, and may be the one who falls
        served.cluster.upcoming(0, fall, call="view")
        try:
            served.client.cluster_status()
        except GridError as error:
            return error
    raise AssertionError("no call fell")


def test_an_unexpected_exception_is_reported(served: ServedGrid) -> None:
    reported = _error_while(served, ZeroDivisionError("so many groups, so few nodes"))

    assert reported.code == "ERROR" and reported.try_next
    assert reported.because == ("ZeroDivisionError: so many groups, so few nodes",)
    assert served.client.cluster_status()["nodes"]
