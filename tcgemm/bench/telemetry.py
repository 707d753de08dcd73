"""SM clock, power and throttle reasons while a kernel is timed, read from NVML by a thread.

Everything is None or empty where NVML or the GPU cannot be reached: telemetry never fails a run.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from .timing import median

INTERVAL_S = 0.01
POWER_INSTANT = 186
"""NVML_FI_DEV_POWER_INSTANT: milliwatts now; the plain query averages over a second."""

THROTTLE_REASONS = {
    0x02: "application clocks",
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that say why the clock is below its maximum."""


def throttle_names(bits: int) -> list[str]:
    """The reasons in words."""
    return [name for bit, name in THROTTLE_REASONS.items() if bits & bit]


def device_handle(uuid: str | None = None) -> tuple[Any, Any] | None:
    """(pynvml, handle) of the GPU with that UUID as torch gives it, or the first; None without."""
    try:
        import pynvml

        pynvml.nvmlInit()
        if uuid:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:
        return None


class Telemetry:
    """Samples while the ``with`` block runs; medians afterwards."""

    def __init__(self, uuid: str | None = None) -> None:
        self._device = device_handle(uuid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._clocks: list[float] = []
        self._powers: list[float] = []
        self._throttle = 0

    @property
    def sm_clock_mhz(self) -> float | None:
        return median(self._clocks)

    @property
    def power_w(self) -> float | None:
        return median(self._powers)

    @property
    def throttle_reasons(self) -> list[str]:
        """All reasons seen, in words."""
        return throttle_names(self._throttle)

    def __enter__(self) -> Telemetry:
        if self._device:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        assert self._device
        nvml, handle = self._device
        while True:
            with suppress(nvml.NVMLError):
                self._clocks.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            with suppress(nvml.NVMLError):
                self._powers.append(_power_w(nvml, handle))
            with suppress(nvml.NVMLError):
                self._throttle |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            if self._stop.wait(INTERVAL_S):
                return


def _power_w(nvml: Any, handle: Any) -> float:
    with suppress(nvml.NVMLError):
        field = nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT])[0]
        if field.nvmlReturn == 0 and field.value.uiVal:
            return field.value.uiVal / 1e3
    return nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
