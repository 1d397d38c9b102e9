"""CUPTI, NVIDIA's library for reading a GPU's counters: finding it, calling it, and asking its tables.

The tables (metric names, units, number of passes, for every chip the library knows) need neither a GPU nor a driver.
Nothing is loaded when this module is imported: `load` does that.
"""

from __future__ import annotations

import ctypes as C
import functools
from collections.abc import Sequence
from typing import Any, Self

from rooflight.errors import BadInput, CannotMeasure
from rooflight.measurement.cupti import structs
from rooflight.measurement.cupti.library import CuptiPaths, find_library, has_driver, loaded

Strings = C.Array[C.c_char_p]
Image = C.Array[C.c_uint8]

_DOCTOR = "`rooflight doctor` says more"
_BUSY = (
    "another profiler holds the GPU's counters: end it (ncu, nsys, torch.profiler in this process, a second rooflight; "
    "DCGM: `dcgmi profile --pause`)"
)
_RESTRICTED = (
    "the NVIDIA driver keeps the GPU's counters for administrators: run as root or with CAP_SYS_ADMIN (containers: "
    "--cap-add=SYS_ADMIN), or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
)
REMEDIES: dict[int, str] = {
    2: "CUPTI does not know this device: choose one that `nvidia-smi` lists",
    3: "there is no CUDA context to measure: run something on the GPU first",
    8: "no memory is left for the counters: free some on the GPU, or measure fewer ops at a time",
    9: "the GPU's counters answered with a hardware error: restart the process, then look into `dmesg`",
    14: "this CUPTI and the NVIDIA driver do not fit together: update the driver, or install the CUPTI of its CUDA",
    15: "CUPTI could not start: is a driver loaded (`nvidia-smi`), and do libnvperf_host.so and libnvperf_target.so "
    "lie beside libcupti.so?",
    23: "another CUPTI user in this process has switched profiling off: measure without it",
    26: _BUSY,
    27: "the counters of this GPU or system cannot be read by CUPTI: measure with --counters=none",
    33: "this is a virtual GPU whose counters cannot be read: measure on a whole GPU",
    35: _RESTRICTED,
    36: "an old CUPTI profiler is active in this process (nvprof's interface): run without it",
    38: "this CUPTI no longer reads counters of so old a GPU: install an older one (`nvidia-cuda-cupti-cu12`), or "
    "measure with --counters ncu",
    39: _BUSY,
    40: "the hypervisor keeps this virtual GPU's counters: its administrator has to allow profiling (vGPU setting "
    "`enable_profiling`)",
    41: "counters cannot be read in confidential computing mode: boot the GPU without it",
    42: "counters of mining GPUs (CMP) cannot be read: use another GPU",
    43: "counters cannot be read on this MIG slice: use a whole GPU, or a slice of all its compute (`nvidia-smi mig`)",
    44: "counters cannot be read with SLI: switch it off",
    45: "counters cannot be read under this WSL: use Linux, or update the Windows driver and allow counters there",
    46: "this CUPTI is too old for the GPU: install a newer one (`pip install -U nvidia-cuda-cupti`)",
}
"""What each known answer of CUPTI means to the user, by its code."""
NO_DRIVER = "no NVIDIA driver was found (libcuda.so.1): install it, or start the container with --gpus all"
_COUNTER = 0
"""The kind of metric; the others are ratios and throughputs."""
_SINCE_12_6 = "cuptiRangeProfilerEnable"
_SINCE_13_2 = "cuptiProfilerHostGetSinglePassSets"
_NOT_INITIALISED = "CUDA is not running in this process, or its driver is too old: check `nvidia-smi`"


class CuptiError(CannotMeasure):
    """A call of CUPTI that failed: what that means where it is known, and always the call and its answer."""

    def __init__(self, call: str, status: int, result: str) -> None:
        self.call, self.status, self.result = call, status, result
        remedy = REMEDIES.get(status, f"CUPTI failed; {_DOCTOR}")
        if status == 999 and call == "cuptiProfilerInitialize":
            remedy = _NOT_INITIALISED
        if remedy == _BUSY and len(copies := loaded()) > 1:
            remedy = (
                f"{len(copies)} copies of CUPTI are in this process, and the GPU serves only one: "
                f"{' and '.join(map(str, copies))}; keep torch's own (look into LD_PRELOAD and LD_LIBRARY_PATH)"
            )
        super().__init__("cupti-failed", f"{remedy} ({call}: {result})")


class Cupti:
    """The loaded library. `call` fills a struct, makes its call and checks the answer."""

    def __init__(self, paths: CuptiPaths) -> None:
        self.paths = paths
        try:
            C.CDLL(str(paths.nvperf_host), mode=C.RTLD_GLOBAL)
            self._library = C.CDLL(str(paths.cupti), mode=C.RTLD_GLOBAL)
        except OSError as error:
            raise CannotMeasure(
                "cupti-not-loadable",
                f"{paths.cupti.parent} has a CUPTI that cannot be loaded: {error}; install another with "
                "`pip install nvidia-cuda-cupti`",
            ) from error
        if hasattr(self._library, _SINCE_13_2) and not has_driver():
            # There even asking for the version never comes back (13.2: endless recursion), or fails (13.3, 13.4).
            raise CannotMeasure(
                "no-driver",
                f"{NO_DRIVER} ({paths.cupti} needs one even for its tables; the CUPTI of CUDA 13.0 does not)",
            )
        self.function(_SINCE_12_6)  # said at once, before a call fails for a reason that nobody can guess
        self.function("cuptiGetResultString").argtypes = [C.c_int, C.POINTER(C.c_char_p)]
        version = C.c_uint32()
        self.function("cuptiGetVersion")(C.byref(version))
        self.version = version.value

    def function(self, name: str) -> Any:
        """The library's function of that name; every struct goes in as one pointer."""
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise CannotMeasure(
                "cupti-too-old",
                f"{self.paths.cupti} has no {name}: CUPTI of CUDA 12.6 or newer is needed "
                "(`pip install nvidia-cuda-cupti`)",
            ) from None

    def new(self, kind: type[structs.Params], **fields: Any) -> structs.Params:
        """A struct of that kind, with the size this version knows and the fields given."""
        params = kind()
        params.structSize = kind.size(self.version)
        for name, value in fields.items():
            setattr(params, name, value)
        return params

    def call(self, kind: type[structs.Params], **fields: Any) -> structs.Params:
        """Make the call that takes such a struct; what it fills in is in the struct returned."""
        params = self.new(kind, **fields)
        self.check(kind.call, self.function(kind.call)(C.byref(params)))
        return params

    def check(self, call: str, code: int) -> None:
        if code:
            text = C.c_char_p()
            self.function("cuptiGetResultString")(code, C.byref(text))
            is_named = text.value is not None and text.value != b"<unknown>"
            raise CuptiError(call, code, _text(text.value) if is_named else f"code {code}")


@functools.cache
def load() -> Cupti:
    """CUPTI of this machine, loaded once; `CannotMeasure` where there is none."""
    paths = find_library()
    if paths is None:
        raise CannotMeasure(
            "no-cupti",
            "no CUPTI was found beside torch or in a CUDA toolkit: `pip install nvidia-cuda-cupti` (CUDA 12: "
            "`nvidia-cuda-cupti-cu12`)",
        )
    return Cupti(paths)


def strings(values: Sequence[str]) -> Strings:
    """A C array of strings."""
    return (C.c_char_p * len(values))(*[value.encode() for value in values])


def _text(value: bytes | None) -> str:
    return value.decode() if value else ""


def _listed(values: Any, count: int) -> tuple[str, ...]:
    return tuple(values[index].decode() for index in range(count))


def supported_chips() -> tuple[str, ...]:
    """Names of the chips whose tables the library has."""
    params = load().call(structs.HostGetSupportedChips)
    return _listed(params.ppChipNames, params.numChips)


class Host:
    """CUPTI's tables for one chip, and the evaluator of what was counted. A context manager; needs no GPU.

    `availability` says which counters the device at hand really has; without it, all of the chip's are.
    """

    def __init__(self, chip: str, *, availability: Image | None = None) -> None:
        self.chip = chip.upper()
        self._cupti = load()
        # Kept: the library reads it as long as the object lives.
        self._availability = availability
        try:
            initialised = self._cupti.call(
                structs.HostInitialize,
                profilerType=0,  # the range profiler
                pChipName=self.chip.encode(),
                pCounterAvailabilityImage=C.cast(availability, C.c_void_p) if availability is not None else None,
            )
        except CuptiError as error:
            # CUPTI 12 has no word of its own for a chip it does not know.
            raise CuptiError(error.call, 46 if error.status == 1 else error.status, error.result) from None
        self._object = initialised.pHostObject

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._object is not None:
            held, self._object = self._object, None
            self._cupti.call(structs.HostDeinitialize, pHostObject=held)

    def _call(self, kind: type[structs.Params], **fields: Any) -> structs.Params:
        return self._cupti.call(kind, pHostObject=self._object, **fields)

    def base_metrics(self) -> tuple[str, ...]:
        """Counters without their roll-up: `dram__bytes_read`, of which `.sum` and others can be asked."""
        params = self._call(structs.HostGetBaseMetrics, metricType=_COUNTER)
        return _listed(params.ppMetricNames, params.numMetrics)

    def is_known(self, metric: str) -> bool:
        """Can this metric, with its roll-up, be asked of the chip?"""
        try:
            with Host(self.chip, availability=self._availability) as other:
                other.config_image([metric])
        except (CuptiError, BadInput):
            return False
        return True

    def passes(self, metrics: Sequence[str]) -> int:
        """How often the step must run so that all of them are counted."""
        with Host(self.chip, availability=self._availability) as other:
            return other.passes_of(other.config_image(metrics))

    def config_image(self, metrics: Sequence[str]) -> Image:
        """Add the metrics to this object's plan and give the plan, as the profiler takes it."""
        try:
            self._call(structs.HostConfigAddMetrics, ppMetricNames=strings(metrics), numMetrics=len(metrics))
        except CuptiError as error:
            if error.status not in (1, 17):
                raise
            raise BadInput("unknown-counter", self._which_unknown(metrics)) from error
        size = self._call(structs.HostGetConfigImageSize).configImageSize
        image: Image = (C.c_uint8 * size)()
        self._call(structs.HostGetConfigImage, configImageSize=size, pConfigImage=C.cast(image, C.c_void_p))
        return image

    def passes_of(self, image: Image) -> int:
        params = self._cupti.call(
            structs.HostGetNumOfPasses, configImageSize=len(image), pConfigImage=C.cast(image, C.c_void_p)
        )
        return int(params.numOfPasses)

    def evaluate(self, image: Image, index: int, *, names: Strings) -> list[float]:
        """The values of the metrics in one range of a counter image."""
        values = (C.c_double * len(names))()
        self._call(
            structs.HostEvaluate,
            pCounterDataImage=C.cast(image, C.c_void_p),
            counterDataImageSize=len(image),
            rangeIndex=index,
            ppMetricNames=names,
            numMetrics=len(names),
            pMetricValues=values,
        )
        return list(values)

    def _which_unknown(self, metrics: Sequence[str]) -> str:
        for metric in metrics:
            if len(metrics) == 1 or not self.is_known(metric):
                hint = "" if "." in metric else f" (a roll-up is needed: {metric}.sum)"
                return f"{self.chip} has no counter {metric!r}{hint}: `ncu --query-metrics` lists its names"
        return f"{self.chip} cannot count these together: {', '.join(metrics)}"
