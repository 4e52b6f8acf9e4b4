"""NVML as its Python bindings show it, with devices and errors of the test's choosing."""

from types import SimpleNamespace
from typing import Any


class FakeNvml:
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_ERROR_UNKNOWN = 999
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 0x2000028

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *devices: "FakeDevice", init_error: int | None = None) -> None:
        self.devices = list(devices)
        self.init_error = init_error
        self.opened = 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise self.NVMLError(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> "FakeDevice":
        return self.devices[index].checked(self, "handle")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> "FakeDevice":
        for device in self.devices:
            for one in (device, *device.parts):
                if one.uuid == uuid:
                    return one
        raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: "FakeDevice") -> "FakeDevice":
        for device in self.devices:
            if part in device.parts:
                return device
        raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetIndex(self, device: "FakeDevice") -> int:
        device.checked(self, "index")
        return self.devices.index(device)

    def nvmlDeviceGetUUID(self, device: "FakeDevice") -> str | bytes:
        return device.checked(self, "uuid").uuid

    def nvmlDeviceGetName(self, device: "FakeDevice") -> str:
        return device.checked(self, "name").name

    def nvmlDeviceGetUtilizationRates(self, device: "FakeDevice") -> Any:
        return SimpleNamespace(gpu=device.checked(self, "utilisation").utilisation, memory=0)

    def nvmlDeviceGetMemoryInfo(self, device: "FakeDevice", version: int | None = None) -> Any:
        device.checked(self, "memory" if version is None else "memory_v2")
        kept = 0 if version else device.reserved  # the first version counts what the driver keeps as used
        return SimpleNamespace(total=device.total, used=device.used + kept)

    def nvmlDeviceGetTemperature(self, device: "FakeDevice", sensor: int) -> int:
        return device.checked(self, "temperature").temperature

    def nvmlDeviceGetComputeRunningProcesses(self, device: "FakeDevice") -> list[Any]:
        device.checked(self, "processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: "FakeDevice") -> list[Any]:
        device.checked(self, "graphics")
        return []


class FakeDevice:
    def __init__(self, uuid: str = "GPU-aaaa-1", /, **errors: int) -> None:
        """`errors`: what may be asked of it -> the error that it gives."""
        self.uuid: str | bytes = uuid
        self.name = "NVIDIA A100"
        self.utilisation = 70
        self.total, self.used, self.reserved = 80_000, 20_000, 500
        self.temperature = 55
        self.processes: list[tuple[int, int | None]] = [(4711, 19_000)]
        self.parts: list[FakeDevice] = []
        self.errors = errors

    def checked(self, nvml: FakeNvml, what: str) -> "FakeDevice":
        if (error := self.errors.get(what, self.errors.get("everything"))) is not None:
            raise nvml.NVMLError(error)
        return self
