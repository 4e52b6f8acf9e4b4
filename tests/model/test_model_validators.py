"""One rule for each kind of value, wherever it is given."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.scheduling import SchedulingRequest
from distributed_grid.model.validators import Wrong, is_whole, label, one_of, port, ray_process, word
from distributed_grid.wire.boosts import BoostRequest, ProgramRequest
from distributed_grid.wire.scheduling import TaskRequest


@pytest.mark.parametrize("given", ["offload_only", "OFFLOAD_ONLY", "offload-only", SharingMode.OFFLOAD_ONLY])
def test_a_word_may_be_in_upper_case_and_with_hyphens_in_a_request_and_in_a_setting(given: object) -> None:
    assert one_of("mode", SharingMode, given) is SharingMode.OFFLOAD_ONLY
    assert word(SharingMode)(given) is SharingMode.OFFLOAD_ONLY


def test_another_word_is_refused_with_those_that_may_be_used() -> None:
    words = "offload_only, share_and_offload, dynamic_balancing"
    with pytest.raises(InvalidRequest) as refused:
        one_of("mode", SharingMode, "offload")
    assert refused.value.try_next == f"Use one of: {words}."
    with pytest.raises(Wrong, match=f"must be one of {words}, not 'offload'; did you mean 'offload_only'\\?"):
        word(SharingMode)("offload")


@pytest.mark.parametrize("given", [0, 65536, True, "80", 80.0, None])
def test_a_port_is_a_whole_number_in_its_range(given: Any) -> None:
    with pytest.raises(Wrong, match="must be a port number from 1 to 65535"):
        port(given)
    assert not is_whole(given, 1, 65535)
    assert port(80) == 80


def documented(limit: str, key: str, body: Any) -> int:
    """A limit in the API's documents, which import nothing of the checks."""
    schema = TypeAdapter(body).json_schema()["properties"][key]
    return next(one[limit] for one in (schema, *schema.get("anyOf", ())) if limit in one)


def test_the_limits_in_the_apis_documents_are_those_of_the_checks() -> None:
    longest = documented("maxLength", "label", ProgramRequest)
    assert label("x" * (longest + 1)) == "x" * longest
    assert f"the first {longest} characters are kept" in str(TypeAdapter(BoostRequest).json_schema())

    process = "a" * documented("maxLength", "ends_with", BoostRequest)
    assert ray_process(process) == process

    most = documented("maximum", "count", TaskRequest)
    assert SchedulingRequest(count=most).count == most
    with pytest.raises(InvalidRequest):
        SchedulingRequest(count=most + 1)
