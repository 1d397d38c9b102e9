"""One GPU as its counters see it: its CUDA context, its chip, which counters it has, or why they cannot be read."""

from __future__ import annotations

import ctypes as C
import functools
from dataclasses import dataclass
from typing import Any

from rooflight.errors import CannotMeasure
from rooflight.measurement.cupti import cupti, structs
from rooflight.measurement.cupti.library import has_driver


@dataclass(frozen=True)
class CountedGpu:
    context: int
    """Handle of its primary context, the one torch works in."""
    chip: str
    availability: cupti.Image
    """Which of the chip's counters this GPU has, as CUPTI tells it."""


@functools.cache
def _driver() -> C.CDLL:
    if not has_driver():
        raise CannotMeasure("no-driver", cupti.NO_DRIVER)
    return C.CDLL("libcuda.so.1")


def _cuda(call: str, *arguments: Any) -> None:
    code = getattr(_driver(), call)(*arguments)
    if code:
        text = C.c_char_p()
        _driver().cuGetErrorName(code, C.byref(text))
        name = text.value.decode() if text.value else f"code {code}"
        raise CannotMeasure("gpu-not-usable", f"the GPU cannot be used: check `nvidia-smi` ({call}: {name})")


def _context(index: int) -> int:
    """The primary context of the device, which is the one torch works in; made where there is none yet."""
    _cuda("cuInit", 0)
    device, context, current = C.c_int(), C.c_void_p(), C.c_void_p()
    _cuda("cuDeviceGet", C.byref(device), index)
    # Never released: it is the process's own, and lives as long as the process in any case.
    _cuda("cuDevicePrimaryCtxRetain", C.byref(context), device)
    _cuda("cuCtxGetCurrent", C.byref(current))
    if current.value is None:
        _cuda("cuCtxSetCurrent", context)
    assert context.value is not None
    return context.value


def synchronize(context: int) -> None:
    """Wait until all that was launched in the context is done."""
    _cuda("cuCtxPushCurrent_v2", C.c_void_p(context))
    try:
        _cuda("cuCtxSynchronize")
    finally:
        _cuda("cuCtxPopCurrent_v2", C.byref(C.c_void_p()))


@functools.cache
def _initialise() -> None:
    cupti.load().call(structs.Initialize)


@functools.cache
def device(index: int = 0) -> CountedGpu:
    """Start CUPTI and ask it about one GPU; `CannotMeasure` says why its counters cannot be read.

    Asked once for each GPU: CUPTI does not answer while something is being counted.
    """
    context = _context(index)
    library = cupti.load()
    # After there is a context: CUPTI does not start in a process that has none.
    _initialise()
    _check_supported(index)
    chip = library.call(structs.GetChipName, deviceIndex=index).pChipName.decode()
    size = library.call(structs.GetCounterAvailability, ctx=context).counterAvailabilityImageSize
    image = (C.c_uint8 * size)()
    library.call(
        structs.GetCounterAvailability,
        ctx=context,
        counterAvailabilityImageSize=size,
        pCounterAvailabilityImage=C.cast(image, C.c_void_p),
    )
    return CountedGpu(context=context, chip=chip, availability=image)


_WHY_UNSUPPORTED = {
    "architecture": "this GPU is older than the range profiler supports: measure with --counters ncu or none",
    "sli": cupti.REMEDIES[44],
    "vGpu": cupti.REMEDIES[40],
    "confidentialCompute": cupti.REMEDIES[41],
    "cmp": cupti.REMEDIES[42],
    "wsl": cupti.REMEDIES[45],
    "sku": "NVIDIA allows no counters on this product: use another GPU",
}
_UNSUPPORTED, _DISABLED, _SUPPORTED = 1, 2, 3


def _check_supported(index: int) -> None:
    levels = cupti.load().call(structs.DeviceSupported, cuDevice=index, api=0)
    if levels.isSupported == _SUPPORTED:
        return
    for feature, reason in _WHY_UNSUPPORTED.items():
        if getattr(levels, feature) in (_UNSUPPORTED, _DISABLED):
            raise CannotMeasure("gpu-not-supported", f"{reason} ({structs.DeviceSupported.call}: {feature})")
