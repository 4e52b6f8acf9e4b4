"""A node's GPUs as the driver reports them: through NVML, with bindings that travel along as text."""

import contextlib
import sys
import types
import zlib
from collections.abc import Callable, Collection
from typing import Any, Final

_MODULE: Final = "grid_pynvml"
_TRY_AGAIN_S: Final = 60.0
"""A driver that does not work may be repaired."""
_OPEN_AGAIN_S: Final = 300.0
"""A device may be repaired, too. But an open driver never shows a lost device again, and opening it is not cheap."""

_WHY_NONE: Final = {
    "LIBRARY_NOT_FOUND": "there is no NVIDIA driver on this node",
    "DRIVER_NOT_LOADED": "the NVIDIA driver of this node is not loaded",
    "NO_PERMISSION": "this user or container may not use the NVIDIA driver",
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated while it ran: restart the machine",
}
_WHY_SILENT: Final = {
    "GPU_IS_LOST": "the driver lost it: reset it, or restart the machine",
    "NO_PERMISSION": "this user or container may not see it",
    "NOT_FOUND": "the device no longer exists",
}


class Gpus:
    """The devices that belong to one node.

    `visible` is the raylet's own CUDA_VISIBLE_DEVICES, or None if it has none. `count` is the number of GPUs that Ray
    has there; Ray uses the first ones that it sees. The driver stays open between readings: without any user it would
    put the devices to sleep, and waking them takes a second each.
    """

    def __init__(self, nvml: Any, visible: str | None, count: int) -> None:
        self._nvml = nvml
        self._visible = parse_visible(visible)
        self._count = count
        self._is_open = False
        self._reason = ""
        self._try_again_at = 0.0
        self._ours: Collection[int] | None = None

    def read(self, now: float, ours: Collection[int] | None = None) -> tuple[list[dict[str, object]], str | None]:
        """A reading of each device, or none and why. `ours`: the node's own processes; None if they are unknown."""
        self._ours = ours
        if not self._open(now):
            return [], self._reason
        try:
            there = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            self._close(now)
            self._reason = _message(self._nvml, error, _WHY_NONE)
            return [], self._reason
        if reason := self._why_none(there):
            return [], reason
        found = [self._device(which, there) for which in self._chosen()]
        if any(gpu["silent_because"] for gpu in found) and self._try_again_at == 0:
            self._try_again_at = now + _OPEN_AGAIN_S
        return found, None

    def _open(self, now: float) -> bool:
        if self._is_open and 0 < self._try_again_at <= now:
            self._close(now)
            self._try_again_at = 0.0
        if not self._is_open and now >= self._try_again_at:
            try:
                self._nvml.nvmlInit()
                self._is_open, self._try_again_at = True, 0.0
            except self._nvml.NVMLError as error:
                self._reason = _message(self._nvml, error, _WHY_NONE)
                self._try_again_at = now + _TRY_AGAIN_S
        return self._is_open

    def _close(self, now: float) -> None:
        self._is_open, self._try_again_at = False, now + _TRY_AGAIN_S
        with contextlib.suppress(self._nvml.NVMLError):  # the driver may already be closed
            self._nvml.nvmlShutdown()

    def _why_none(self, there: int) -> str | None:
        if there == 0:
            return "the NVIDIA driver of this node sees no GPU"
        if self._count == 0:
            return f"Ray was started without GPUs on this node, though the driver sees {there}"
        if self._visible == []:
            return f"CUDA_VISIBLE_DEVICES of this node's raylet names no GPU, though the driver sees {there}"
        return None

    def _chosen(self) -> list[str]:
        """Indices or UUIDs."""
        if self._visible is not None:
            return self._visible[: self._count]
        return [str(index) for index in range(self._count)]

    def _device(self, which: str, there: int) -> dict[str, object]:
        """One reading. What the driver does not report is None."""
        is_index = which.isdigit()
        found: dict[str, object] = {
            "index": int(which) if is_index else None,
            "uuid": None if is_index else which,
            "name": None,
            "utilisation": None,
            "memory_total": None,
            "memory_used": None,
            "temperature_c": None,
            "processes": None,
            "silent_because": None,
        }
        if is_index and int(which) >= there:
            return found | {"silent_because": f"the driver sees only {there} GPU{'s' * (there != 1)} on this node"}
        try:
            return found | self._read(self._handle(which, there))
        except self._nvml.NVMLError as error:
            return found | {"silent_because": _message(self._nvml, error, _WHY_SILENT)}

    def _read(self, handle: Any) -> dict[str, object]:
        nvml, asked = self._nvml, self._asked
        memory = asked(self._memory, handle)
        utilisation = asked(nvml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "index": asked(self._index, handle),
            "uuid": _text(asked(nvml.nvmlDeviceGetUUID, handle)),
            "name": _text(asked(nvml.nvmlDeviceGetName, handle)),
            "utilisation": None if utilisation is None else utilisation.gpu / 100,
            "memory_total": None if memory is None else int(memory.total),
            "memory_used": None if memory is None else int(memory.used),
            "temperature_c": asked(self._temperature, handle),
            "processes": asked(self._processes, handle),
        }

    def _asked(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None if the driver has none for this device. A lost device raises instead."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_UNINITIALIZED):
                raise
            return None

    def _handle(self, which: str, there: int) -> Any:
        nvml = self._nvml
        if which.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(which))
        if which.startswith("GPU-"):  # a prefix is enough
            for index in range(there):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                if (_text(nvml.nvmlDeviceGetUUID(handle)) or "").startswith(which):
                    return handle
        return nvml.nvmlDeviceGetHandleByUUID(which)  # also accepts a part of a device (MIG)

    def _index(self, handle: Any) -> int:
        """The driver's index of a device, or of the device that this one is a part of."""
        try:
            return int(self._nvml.nvmlDeviceGetIndex(handle))
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return int(self._nvml.nvmlDeviceGetIndex(self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)))

    def _memory(self, handle: Any) -> Any:
        """As `nvidia-smi` shows it: what the driver reserves is not in use. Old drivers count it as used."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError as error:
            nvml = self._nvml
            if error.value not in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                raise
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _temperature(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def _processes(self, handle: Any) -> list[dict[str, object]]:
        """All processes that compute or draw there, and whether each is the node's own."""
        computing = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        drawing = self._asked(self._nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or []
        memory = {process.pid: process.usedGpuMemory for process in [*drawing, *computing]}
        return [
            {"pid": pid, "memory_bytes": memory[pid], "ours": None if self._ours is None else pid in self._ours}
            for pid in sorted(memory)
        ]


def parse_visible(text: str | None) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES as CUDA reads it; None: all. Entries after one that names no device are hidden."""
    if text is None:
        return None
    chosen: list[str] = []
    for entry in text.split(","):
        which = entry.strip()
        if not (which.isdigit() or which.startswith(("GPU-", "MIG-"))) or which in chosen:
            break
        chosen.append(which)
    return chosen


def visible_to(environment: str | None) -> str | None:
    """CUDA_VISIBLE_DEVICES in a process's environment, as the kernel shows it."""
    for entry in (environment or "").split("\0"):
        name, _, value = entry.partition("=")
        if name == "CUDA_VISIBLE_DEVICES":
            return value
    return None


def nvml_from(compressed_source: bytes) -> Any:
    """The bindings as a module: they are not installed on the node."""
    module = types.ModuleType(_MODULE)
    sys.modules[_MODULE] = module  # they look themselves up while they load
    exec(compile(zlib.decompress(compressed_source), "pynvml.py", "exec"), module.__dict__)
    return module


def _message(nvml: Any, error: Any, known: dict[str, str]) -> str:
    """For a person: a known explanation, else the driver's own words."""
    for name, meaning in known.items():
        if error.value == getattr(nvml, f"NVML_ERROR_{name}"):
            return meaning
    return f"the NVIDIA driver says: {error}"


def _text(value: object) -> str | None:
    """Old drivers return names as bytes."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) else None
