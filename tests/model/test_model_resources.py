"""Amounts are exact: what is added can be taken away again, and what people and Ray write is read as they mean it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.errors import InvalidAmount, UnknownResource
from distributed_grid.model.resources import (
    CPU,
    GB,
    GPU,
    MEMORY,
    ResourceVector,
    amount_of,
    describe,
    is_internal,
    kind_of,
    scale,
    total,
    units_of,
    whole,
)

kinds = st.sampled_from([CPU, GPU, MEMORY, "tape", "licence:A100"])
vectors = st.dictionaries(kinds, st.integers(-(2**50), 2**50)).map(ResourceVector)
counts = st.dictionaries(kinds, st.integers(0, 2**50)).map(ResourceVector)


# -- reading amounts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "written", "units"),
    [
        (CPU, "1", 10_000),
        (CPU, 2, 20_000),
        (CPU, 0.1, 1_000),
        (CPU, " 0.5 ", 5_000),
        (CPU, "1e1", 100_000),
        (CPU, "0.0001", 1),
        (GPU, 4, 40_000),
        (MEMORY, 1, 2**30),
        (MEMORY, "0.5", 2**29),
        (MEMORY, "1.5", 3 * 2**29),
        ("tape", "2.5", 25_000),
    ],
)
def test_an_amount_is_read_exactly(kind: str, written: object, units: int) -> None:
    assert units_of(kind, written) == units


def test_three_tenths_are_one_tenth_three_times() -> None:
    assert units_of(CPU, 0.3) == 3 * units_of(CPU, 0.1)


@pytest.mark.parametrize(
    "nonsense",
    [
        *("", " ", "two", "1,5", "0x10", "1 2", "--1", None, True, False, [1], {}, b"1", "½"),
        *("nan", "sNaN", "inf", "-inf", float("nan"), float("inf")),
        *(0, -1, "-0.0", "-1e-9", 0.0),
        *("1e-9", 0.00001),
        *(2 * 10**9, "1e30", "1e400", "9" * 400),
    ],
)
@pytest.mark.parametrize("kind", [CPU, MEMORY, "tape"])
def test_nonsense_is_refused_with_a_reason(kind: str, nonsense: object) -> None:
    if nonsense in ("1e-9", 0.00001) and kind == MEMORY:
        pytest.skip("a few bytes are few, but they are bytes")
    with pytest.raises(InvalidAmount):
        units_of(kind, nonsense)


@pytest.mark.parametrize(
    "absurd",
    [
        "1e-9999999",
        "-1e999999",
        "1e999999",
    ],
)
def test_an_absurd_exponent_is_refused_like_any_other_nonsense(absurd: str) -> None:
    with pytest.raises(InvalidAmount):
        units_of(CPU, absurd)


@given(kinds, st.integers(1, 10**9))
def test_what_is_shown_is_read_back(kind: str, steps: int) -> None:
    units = steps * (scale(kind) // 2**10 if kind == MEMORY else 1)
    if kind != MEMORY:
        assert units_of(kind, amount_of(kind, units)) == units
    else:  # people see GB with four digits
        assert abs(units_of(kind, max(amount_of(kind, units), 0.0001)) - units) <= 0.0001 * GB


def test_a_whole_amount_is_shown_without_a_point() -> None:
    shown = amount_of(CPU, 20_000)
    assert (shown, type(shown)) == (2, int)


@pytest.mark.parametrize(
    ("kind", "units", "said"),
    [
        (CPU, 10_000, "1 CPU"),
        (CPU, 40_000, "4 CPUs"),
        (CPU, 5_000, "0.5 CPUs"),
        (GPU, 10_000, "1 GPU"),
        (MEMORY, 5 * GB // 2, "2.5 GB of memory"),
        (MEMORY, GB, "1 GB of memory"),
        ("tape", 20_000, "2 tape"),
    ],
)
def test_amounts_are_described_as_people_say_them(kind: str, units: int, said: str) -> None:
    assert describe(kind, units) == said


@pytest.mark.parametrize(("units", "is_whole"), [(10_000, True), (30_000, True), (5_000, False), (10_001, False)])
def test_a_gpu_is_whole_or_not(units: int, is_whole: bool) -> None:
    assert whole(GPU, units) is is_whole


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "kind"),
    [("cpu", CPU), ("CPU", CPU), (" Gpu ", GPU), ("MEMORY", MEMORY), ("tape", "tape"), ("Tape", "Tape")],
)
def test_built_in_resources_are_known_in_any_case_and_custom_ones_as_they_are_spelled(written: str, kind: str) -> None:
    assert kind_of(written) == kind


@pytest.mark.parametrize(
    "internal",
    [
        *("", "  ", "object_store_memory", "node:10.0.0.1", "node:__internal_head__"),
        *("CPU_group_0_abc", "bundle_group_abc", "tape_group_0_abc", "grid:lent:cpu", "grid:gate"),
        *("accelerator_type:H200", "accelerator_type:TPU-V4", "TPU-v4-16-head"),
    ],
)
def test_what_ray_or_grid_put_there_for_themselves_cannot_be_asked_for(internal: str) -> None:
    with pytest.raises(UnknownResource):
        kind_of(internal)
    assert not internal.strip() or is_internal(internal)


@given(name=st.text(max_size=10), prefix=st.sampled_from(["accelerator_type:", "node:"]))
def test_what_says_what_a_node_is_is_no_amount_of_anything(name: str, prefix: str) -> None:
    described = f"{prefix}{name}"

    assert ResourceVector.from_ray({described: 1.0, "CPU": 2.0}) == ResourceVector.of(cpu=2)
    with pytest.raises(UnknownResource, match=r"describes a node|Unknown resource"):
        kind_of(described)


def test_a_kind_that_only_looks_like_a_description_is_a_custom_resource() -> None:
    assert [kind_of(name) for name in ("TPU", "nodes", "accelerators", "my-accelerator_type:x")] == [
        *("TPU", "nodes", "accelerators", "my-accelerator_type:x")
    ]


# -- vectors -----------------------------------------------------------------------------------------------


@given(vectors, vectors)
def test_what_is_added_can_be_taken_away_exactly(one: ResourceVector, other: ResourceVector) -> None:
    assert one + other - other == one
    assert one + other == other + one
    assert hash(one + other) == hash(other + one)


@given(vectors, vectors, vectors)
def test_it_does_not_matter_how_a_sum_is_bracketed(a: ResourceVector, b: ResourceVector, c: ResourceVector) -> None:
    assert (a + b) + c == a + (b + c) == total([a, b, c]) == total({"x": a, "y": b, "z": c})


@given(vectors)
def test_a_kind_at_zero_is_not_there(vector: ResourceVector) -> None:
    nothing = vector - vector
    assert nothing == ResourceVector()
    assert (len(nothing), list(nothing), CPU in nothing, nothing[CPU]) == (0, [], False, 0)


@given(vectors, vectors)
def test_covering_means_that_nothing_is_missing(one: ResourceVector, other: ResourceVector) -> None:
    missing = (other - one).at_least_zero()
    requested = ResourceVector({k: v for k, v in missing.items() if k in other})
    assert one.covers(other) is (len(requested) == 0)
    assert (one + missing).covers(other)


@given(vectors)
def test_no_amount_is_below_zero_after_at_least_zero(vector: ResourceVector) -> None:
    assert all(units > 0 for units in vector.at_least_zero().values())


@given(counts)
def test_ray_gets_back_exactly_what_it_gave(vector: ResourceVector) -> None:
    assert ResourceVector.from_ray(vector.to_ray()) == vector


def test_ray_counts_memory_in_bytes_and_the_rest_as_people_do() -> None:
    vector = ResourceVector.of(cpu=1.5, memory=2, gpu=1)
    assert vector.to_ray() == {"CPU": 1.5, "memory": 2.0 * 2**30, "GPU": 1.0}


def test_internal_entries_of_a_ray_map_are_left_out() -> None:
    seen = {
        "CPU": 4.0,
        "object_store_memory": 1e9,
        "node:10.0.0.1": 1.0,
        "node:__internal_head__": 1.0,
        "accelerator_type:H200": 1.0,
        "CPU_group_0_a1": 2.0,
        "bundle_group_a1": 1000.0,
        "grid:borrowed:cpu": 2.0,
        "tape": 1.0,
    }
    assert ResourceVector.from_ray(seen) == ResourceVector({CPU: 40_000, "tape": 10_000})


def test_a_custom_resource_spelled_like_a_built_in_one_does_not_change_it() -> None:
    assert ResourceVector.from_ray({"CPU": 4.0, "cpu": 1.0})[CPU] == 40_000
    assert ResourceVector.from_ray({"gpu": 8.0})[GPU] == 0


def test_rays_rounding_noise_vanishes() -> None:
    assert ResourceVector.from_ray({"CPU": 0.1 + 0.2}) == ResourceVector.of(cpu=0.3)


def test_json_always_has_the_built_in_kinds() -> None:
    assert ResourceVector.of(cpu=2).to_amounts() == {"cpu": 2, "gpu": 0, "memory": 0}
    assert ResourceVector({"tape": 15_000}).to_amounts()["tape"] == 1.5


def test_a_vector_is_described_gpus_first() -> None:
    assert ResourceVector.of(cpu=2, gpu=1, memory=4).describe() == "1 GPU, 2 CPUs, 4 GB of memory"
    assert ResourceVector().describe() == "nothing"


def test_a_vector_equals_only_vectors() -> None:
    assert ResourceVector({CPU: 1}) == ResourceVector({CPU: 1, GPU: 0})
    assert ResourceVector({CPU: 1}) != {CPU: 1}
