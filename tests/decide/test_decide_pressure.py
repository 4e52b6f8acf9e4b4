"""Pressure, on values computed by hand."""

import pytest
from builders import amounts, reading
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.monitoring.pressure import WEIGHTS, combined, gpu_pressure, machine_use, pressure_of
from distributed_grid.model.resources import GB
from distributed_grid.model.snapshots import GpuReading


def gpu(utilisation: float | None = 0.0, used: int = 0, total: int = 80) -> GpuReading:
    return GpuReading(0, "GPU-1", "H200", utilisation, total * GB, used * GB)


def test_the_weights_are_those_that_users_were_promised() -> None:
    assert WEIGHTS == {"cpu": 0.3, "memory": 0.3, "gpu": 0.4}


def test_a_node_with_its_own_machine_is_pressed_as_the_machine_is() -> None:
    found = pressure_of(reading(), amounts(cpu=4, memory=8), shares_its_host=False)

    assert (found.cpu, found.memory, found.gpu) == (0.5, 0.25, None)
    assert found.overall == pytest.approx(0.375)  # halves: there is no GPU


def test_of_nodes_on_one_machine_each_is_pressed_by_its_own_work_and_at_least_as_the_machine_is() -> None:
    busy = pressure_of(reading(), amounts(cpu=4, memory=8), shares_its_host=True)
    idle = pressure_of(reading(own_cpu=0.0, cpu_used=16.0), amounts(cpu=4, memory=8), shares_its_host=True)

    assert (busy.cpu, busy.memory) == (busy.own("cpu"), busy.own("memory")) == (0.5, 0.5)  # 2 of 4 cores, 4 of 8 GB
    assert (idle.cpu, idle.own("cpu")) == (1.0, 0.0)  # others use all 16 cores of the machine


def test_none_of_them_has_more_than_the_machine() -> None:
    found = pressure_of(reading(cpus=2.0), amounts(cpu=8, memory=800), shares_its_host=True)

    assert (found.own("cpu"), found.own("memory")) == (1.0, 0.0625)  # 2 of the machine's 2 cores, 4 of its 64 GB


@given(st.floats(0, 64), st.floats(0, 64), st.integers(1, 64), st.booleans())
def test_no_node_is_less_pressed_than_its_machine(busy: float, own: float, cores: int, shared: bool) -> None:
    measured = reading(cpus=16.0, cpu_used=busy, own_cpu=own)

    found = pressure_of(measured, amounts(cpu=cores, memory=8), shares_its_host=shared)

    assert found.cpu >= machine_use(measured.host, "cpu")
    assert found.memory >= machine_use(measured.host, "memory")
    assert found.cpu >= (found.own("cpu") or 0.0)
    assert shared or found.own("cpu") == found.cpu


def test_with_a_gpu_all_three_have_their_weight() -> None:
    found = pressure_of(reading(gpu(1.0)), amounts(cpu=16), shares_its_host=False)

    assert found.overall == pytest.approx(0.3 * 0.5 + 0.3 * 0.25 + 0.4 * 1.0)


def test_a_gpu_is_pressed_by_its_kernels_or_by_what_fills_its_memory() -> None:
    assert gpu_pressure((gpu(0.2, used=60), gpu(0.5, used=8))) == pytest.approx((0.75 + 0.5) / 2)
    assert gpu_pressure((gpu(None, used=20),)) == 0.25
    assert gpu_pressure(()) is None


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.one_of(st.none(), st.floats(0, 1)), st.booleans())
def test_it_is_never_outside_0_and_1(busy: float, cores: float, kernels: float | None, shared: bool) -> None:
    measured = reading(gpu(kernels), cpus=cores, cpu_used=busy, own_cpu=busy)

    found = pressure_of(measured, amounts(cpu=cores), shares_its_host=shared)

    assert all(0.0 <= value <= 1.0 for value in (found.overall, found.cpu, found.memory, found.gpu))


@given(*[st.floats(0, 1)] * 3)
def test_more_of_anything_is_never_less_pressure(cpu: float, memory: float, gpu: float) -> None:
    found = combined(cpu, memory, gpu).overall

    assert combined(1.0, memory, gpu).overall >= found - 1e-6
    assert min(cpu, memory, gpu) - 1e-6 <= found <= max(cpu, memory, gpu) + 1e-6
