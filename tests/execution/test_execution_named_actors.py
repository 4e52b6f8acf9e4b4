"""Actors that are known by a name that another process used."""

import pytest
import ray

from distributed_grid.execution.actors import once_its_name_is_free


class Taken:
    """A name that is taken when it is asked for the first so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def make(self) -> str:
        if self.left > 0:
            self.left -= 1
            raise ray.exceptions.ActorAlreadyExistsError("The name run-1/worker/0 is already taken.")
        return "the actor"


def test_a_name_whose_owner_was_just_killed_is_waited_for() -> None:
    assert once_its_name_is_free(Taken(3).make) == "the actor"


def test_a_name_that_stays_taken_is_reported() -> None:
    with pytest.raises(ray.exceptions.ActorAlreadyExistsError):
        once_its_name_is_free(Taken(10**9).make, within_s=0.0)
