"""GPUs, as drivers of all kinds tell of them: what they do not tell is None, and why there are none is said."""

import zlib
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeDevice, FakeNvml

from distributed_grid.decide.monitoring.pressure import gpu_pressure
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.snapshots import GpuProcess, GpuReading, Reading
from distributed_grid.monitoring.on_node_probe.gpus import Gpus, nvml_from, parse_visible, visible_to

MIG = "MIG-11112222-3333-4444-5555-666677778888"


def read(nvml: FakeNvml, visible: str | None = None, count: int = 8, now: float = 1.0) -> Any:
    return Gpus(nvml, visible, count).read(now)


def _process(pid: int, memory: int | None, *, ours: bool | None = None) -> dict[str, Any]:
    return {"pid": pid, "memory_bytes": memory, "ours": ours}


def test_a_device_tells_all_it_can() -> None:
    (gpu,), reason = read(FakeNvml(FakeDevice()), count=1)

    assert reason is None
    assert gpu == {
        "index": 0,
        "uuid": "GPU-aaaa-1",
        "name": "NVIDIA A100",
        "utilisation": 0.7,
        "memory_total": 80_000,
        "memory_used": 20_000,
        "temperature_c": 55.0,
        "processes": [_process(4711, 19_000)],
        "silent_because": None,
    }


@pytest.mark.parametrize(
    ("asked", "untold"),
    [
        ("utilisation", {"utilisation"}),
        ("memory_v2", {"memory_total", "memory_used"}),
        ("temperature", {"temperature_c"}),
        ("processes", {"processes"}),
        ("name", {"name"}),
        ("uuid", {"uuid"}),
    ],
)
@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_NOT_SUPPORTED, FakeNvml.NVML_ERROR_NO_PERMISSION])
def test_what_the_driver_does_not_tell_is_none_and_the_rest_is_there(asked: str, untold: set[str], error: int) -> None:
    (gpu,), reason = read(FakeNvml(FakeDevice(**{asked: error})), count=1)

    assert reason is None
    assert {name for name, value in gpu.items() if value is None} == untold | {"silent_because"}


def test_an_old_driver_counts_what_it_keeps_as_used() -> None:
    (gpu,), _ = read(FakeNvml(FakeDevice(memory_v2=FakeNvml.NVML_ERROR_FUNCTION_NOT_FOUND)), count=1)

    assert gpu["memory_used"] == 20_500


def test_names_and_ids_that_come_as_bytes_are_text() -> None:
    device = FakeDevice()
    device.uuid = b"GPU-aaaa-1"

    (gpu,), _ = read(FakeNvml(device), count=1)

    assert gpu["uuid"] == "GPU-aaaa-1"


def test_memory_of_a_process_that_is_not_told_stays_untold() -> None:
    device = FakeDevice()
    device.processes = [(2, None), (1, 10)]

    (gpu,), _ = read(FakeNvml(device), count=1)

    assert gpu["processes"] == [_process(1, 10), _process(2, None)]


def test_processes_of_the_nodes_own_are_told_from_others() -> None:
    device = FakeDevice()
    device.processes = [(2, None), (1, 10)]

    (gpu,), _ = Gpus(FakeNvml(device), None, 1).read(1.0, ours={2})

    assert gpu["processes"] == [_process(1, 10, ours=False), _process(2, None, ours=True)]


@pytest.mark.parametrize("asked", ["everything", "handle", "utilisation", "index"])
def test_a_lost_device_is_listed_with_the_reason_and_the_others_with_their_values(asked: str) -> None:
    lost = FakeDevice("GPU-lost", **{asked: FakeNvml.NVML_ERROR_GPU_IS_LOST})

    (first, second), reason = read(FakeNvml(lost, FakeDevice()), count=2)

    assert reason is None
    assert "lost it" in first["silent_because"]
    assert first["index"] == 0
    assert {first["memory_total"], first["utilisation"], first["processes"]} == {None}
    assert second["silent_because"] is None and second["memory_total"] == 80_000


def test_a_device_that_ray_counts_and_the_driver_does_not_see_is_listed() -> None:
    (_, second), _ = read(FakeNvml(FakeDevice()), count=2)

    assert second["index"] == 1
    assert "sees only 1 GPU on" in second["silent_because"]


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (FakeNvml.NVML_ERROR_NO_PERMISSION, "may not use"),
        (FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine"),
        (FakeNvml.NVML_ERROR_UNKNOWN, "the NVIDIA driver says: error 999"),
    ],
)
def test_a_driver_that_does_not_work_is_a_reason_not_an_error(error: int, reported: str) -> None:
    gpus, reason = read(FakeNvml(FakeDevice(), init_error=error))

    assert gpus == []
    assert reported in reason


def test_no_gpus_for_other_reasons() -> None:
    assert "sees no GPU" in read(FakeNvml())[1]
    assert "Ray was started without GPUs" in read(FakeNvml(FakeDevice()), count=0)[1]
    assert "names no GPU, though the driver sees 1" in read(FakeNvml(FakeDevice()), visible="")[1]


def test_a_driver_that_is_repaired_is_found_after_a_minute() -> None:
    nvml = FakeNvml(FakeDevice(), init_error=FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED)
    gpus = Gpus(nvml, None, 1)
    assert gpus.read(0.0)[0] == []
    nvml.init_error = None

    assert gpus.read(59.0)[0] == []
    assert "not loaded" in gpus.read(59.0)[1]
    assert len(gpus.read(61.0)[0]) == 1
    assert gpus.read(1000.0)[1] is None
    assert nvml.opened == 1


def test_a_lost_device_that_is_repaired_is_found_by_opening_the_driver_again() -> None:
    device = FakeDevice(everything=FakeNvml.NVML_ERROR_GPU_IS_LOST)
    nvml = FakeNvml(device)
    gpus = Gpus(nvml, None, 1)
    assert gpus.read(0.0)[0][0]["silent_because"]
    device.errors = {}

    assert gpus.read(301.0)[0][0]["silent_because"] is None
    assert nvml.opened == 2


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        (" 2 , 0", ["2", "0"]),
        ("0,-1,1", ["0"]),
        ("1,1", ["1"]),
        ("GPU-8932f937,3", ["GPU-8932f937", "3"]),
        (MIG, [MIG]),
        ("MIG-GPU-8932f937/1/0", ["MIG-GPU-8932f937/1/0"]),
        ("0;1", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, meaning: list[str] | None) -> None:
    assert parse_visible(text) == meaning


def test_visible_devices_come_from_the_raylets_environment() -> None:
    assert visible_to("HOME=/root\0CUDA_VISIBLE_DEVICES=1,2\0X=CUDA_VISIBLE_DEVICES=7\0") == "1,2"
    assert visible_to("CUDA_VISIBLE_DEVICES=\0") == ""
    assert visible_to("HOME=/root\0") is None
    assert visible_to(None) is None


def test_only_the_nodes_own_devices_are_read_in_their_order() -> None:
    nvml = FakeNvml(FakeDevice("GPU-a"), FakeDevice("GPU-b"), FakeDevice("GPU-cc"))

    def indices(visible: str | None, count: int) -> list[int]:
        return [gpu["index"] for gpu in read(nvml, visible, count)[0]]

    assert indices("2,0", 2) == [2, 0]
    assert indices("2,0", 1) == [2]
    assert indices("GPU-c,GPU-a", 2) == [2, 0]
    assert indices(None, 2) == [0, 1]


def test_a_part_of_a_device_is_read_by_its_id() -> None:
    whole, part = FakeDevice("GPU-a"), FakeDevice(MIG, index=FakeNvml.NVML_ERROR_NOT_SUPPORTED)
    part.total = 10_000
    whole.parts = [part]

    (gpu,), _ = read(FakeNvml(FakeDevice("GPU-0"), whole), MIG, 1)

    assert (gpu["index"], gpu["uuid"], gpu["memory_total"]) == (1, MIG, 10_000)


def test_a_device_that_is_named_and_not_there_is_listed_with_the_reason() -> None:
    for gone in (MIG, "GPU-gone"):
        (gpu,), _ = read(FakeNvml(FakeDevice("GPU-a")), gone, 1)

        assert (gpu["uuid"], gpu["silent_because"]) == (gone, "the device no longer exists")


def test_the_real_bindings_load_from_their_text_and_name_every_error_we_know() -> None:
    nvml = nvml_from(zlib.compress(Path(pynvml.__file__).read_bytes()))

    assert nvml is not pynvml
    for name in vars(FakeNvml):
        if name.startswith("NVML_") or name == "nvmlMemory_v2":
            assert getattr(nvml, name) == getattr(FakeNvml, name)
        elif name.startswith("nvml"):
            assert callable(getattr(nvml, name))
    assert issubclass(type(nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)), nvml.NVMLError)


def test_a_device_that_tells_nothing_has_no_part_in_the_pressure() -> None:
    silent = GpuReading(0, None, None, None, None, None, silent_because="lost")
    busy = GpuReading(1, "GPU-b", "x", 0.5, 100, 80)
    only_memory = GpuReading(2, "GPU-c", "x", None, 100, 20)

    assert gpu_pressure((silent,)) is None
    assert gpu_pressure((silent, busy)) == 0.8
    assert gpu_pressure((busy, only_memory)) == 0.5


def test_what_travels_becomes_a_reading() -> None:
    gpus, _ = read(FakeNvml(FakeDevice(), FakeDevice("GPU-b", processes=3)), count=2)
    host = {
        "cpus": 2.0,
        "cpu_used": 1.0,
        "load": [1.0, 2.0, 3.0],
        "memory_total": 4,
        "memory_used": 3,
        "swap_total": 2,
        "swap_used": 1,
    }
    own = {"cpu_used": 0.5, "memory_used": 2, "processes": 7}

    reading = PLAIN.decode(Reading, {"host": host, "own": own, "gpus": gpus, "no_gpus_because": None})

    assert reading.host.load == (1.0, 2.0, 3.0)
    assert reading.own.processes == 7
    first, second = reading.gpus
    assert first == GpuReading(0, "GPU-aaaa-1", "NVIDIA A100", 0.7, 80_000, 20_000, 55.0, (GpuProcess(4711, 19_000),))
    assert second.processes is None
