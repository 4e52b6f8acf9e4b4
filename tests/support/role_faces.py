"""What members meet, as they see it themselves: the same with Ray and without. Each check gets a run of `FACES`."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import numpy as np
from role_classes import small

from distributed_grid.errors import MemberFailed
from distributed_grid.roles import Workload


class Keeper:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def on_peers(self, peers: Any) -> None:
        self.peers = peers

    def count(self) -> int:
        self.config["n"] += 1
        self.config["array"] += 1
        return int(self.config["n"])

    def apply(self, function: Callable[[int], Any]) -> Any:
        return function(self.config["n"])

    def relay(self, peer: Any, nested: dict[str, Any]) -> tuple[str, int, int]:
        """Both came along in an argument, and lead to where they led before."""
        return peer.role, self.peers.fetch(peer.count.remote()), self.peers.fetch(nested["ref"])

    def zeros(self) -> Any:
        return np.zeros(3)

    def write_into(self, array: Any) -> None:
        array[0] = 1

    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)

    def numbers_and_an_error(self) -> Iterator[int]:
        yield 1
        raise ValueError("no more")


class Flow:
    async def letters(self, text: str) -> AsyncIterator[str]:
        for letter in text:
            yield letter


class Asker:
    """Its methods say what they met."""

    def on_peers(self, peers: Any) -> None:
        self.peers, self.keeper = peers, peers["keeper"][0]

    def face(self) -> tuple[str, int, list[str]]:
        absent = ("call", "submit", "options", "node")
        return self.keeper.role, self.keeper.rank, [name for name in absent if hasattr(self.keeper, name)]

    def mistakes(self) -> list[str]:
        found = []
        for mistake in (lambda: self.keeper.nonsense, lambda: self.keeper.count()):
            try:
                mistake()
            except (AttributeError, TypeError) as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    def relayed(self) -> list[Any]:
        other = self.peers["keeper"][1]
        return list(self.peers.fetch(self.keeper.relay.remote(other, {"ref": other.count.remote()})))

    def streamed(self) -> list[int]:
        return [self.peers.fetch(ref) for ref in self.keeper.numbers.remote(3)]

    def streamed_until_it_failed(self) -> list[Any]:
        found: list[Any] = []
        try:
            for ref in self.keeper.numbers_and_an_error.remote():
                found.append(self.peers.fetch(ref))
        except ValueError:
            found.append("ValueError")
        return found

    def is_read_only(self) -> bool:
        return not self.peers.fetch(self.keeper.zeros.remote()).flags.writeable


class AsyncAsker:
    async def on_peers(self, peers: Any) -> None:
        self.peers = peers

    async def streamed(self) -> str:
        return "".join([await ref async for ref in self.peers["flow"][0].letters.remote("abc")])


def only_first() -> type:
    """A class of which only the first instance can be made."""

    class OnlyFirst:
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            if type(self).made > 1:
                raise OSError("no disk")

        def quick(self) -> int:
            return 1

    return OnlyFirst


def faces() -> tuple[Workload, dict[str, Any]]:
    """And the config of its keepers, as the caller has it."""
    config = {"n": 0, "array": np.zeros(2)}
    roles = (
        small("keeper", Keeper, count=2, config=config),
        small("flow", Flow),
        small("asker", Asker),
        small("async_asker", AsyncAsker),
    )
    return Workload("faces", roles), config


def each_has_a_config_of_its_own(run: Any, config: dict[str, Any]) -> None:
    before = [member.call("apply", lambda n: n) for member in run["keeper"]]
    assert [member.call("count") for member in run["keeper"]] == [one + 1 for one in before]
    assert config["n"] == 0 and not config["array"].any()


def functions_travel_with_what_they_need(run: Any, config: dict[str, Any]) -> None:
    met: list[int] = []
    assert run["keeper"][0].call("apply", lambda n: met.append(n) or len(met)) == 1
    assert met == []


def peers_have_one_face(run: Any, config: dict[str, Any]) -> None:
    assert run["asker"][0].call("face") == ("keeper", 0, [])
    unknown, plain = run["asker"][0].call("mistakes")
    assert unknown == "AttributeError: keeper has no method 'nonsense'"
    assert plain.startswith("TypeError") and "remote" in plain


def peers_and_references_can_be_handed_on(run: Any, config: dict[str, Any]) -> None:
    role, later, earlier = run["asker"][0].call("relayed")
    assert (role, later) == ("keeper", earlier + 1)


def generators_give_a_reference_for_each_value(run: Any, config: dict[str, Any]) -> None:
    assert run["asker"][0].call("streamed") == [0, 1, 2]
    assert run["asker"][0].call("streamed_until_it_failed") == [1, "ValueError"]
    assert run["async_asker"][0].call("streamed") == "abc"
    keeper = run["keeper"][0]
    for stream in (keeper.numbers.remote(2), keeper.call("numbers", 2)):
        assert [ref.future().result() for ref in stream] == [0, 1]


def arrays_are_read_only_where_they_arrive(run: Any, config: dict[str, Any]) -> None:
    assert run["asker"][0].call("is_read_only")
    try:
        run["keeper"][0].call("write_into", np.zeros(2))
    except MemberFailed as error:
        assert "read-only" in str(error)
    else:
        raise AssertionError("it wrote into what it was given")


CHECKS: Final = (
    each_has_a_config_of_its_own,
    functions_travel_with_what_they_need,
    peers_have_one_face,
    peers_and_references_can_be_handed_on,
    generators_give_a_reference_for_each_value,
    arrays_are_read_only_where_they_arrive,
)
