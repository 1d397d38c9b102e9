"""The parameter structs of CUPTI's range profiler and of its host side, as ctypes knows them.

Every call of CUPTI takes one struct. A later version may add fields at the end of one, never elsewhere, and tells the
layouts apart by `structSize`: `Params.size` gives the size that a version knows. Names of fields are CUPTI's own.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, ClassVar

_S, _P, _STR, _STRS, _I = C.c_size_t, C.c_void_p, C.c_char_p, C.POINTER(C.c_char_p), C.c_int
_U8, _U16, _U32, _DOUBLES = C.c_uint8, C.c_uint16, C.c_uint32, C.POINTER(C.c_double)


class Params(C.Structure):
    """What every parameter struct begins with."""

    _fields_ = [("structSize", _S), ("pPriv", _P)]
    call: ClassVar[str] = ""
    names: ClassVar[tuple[str, ...]] = ()
    """All its fields, in order."""
    since: ClassVar[dict[str, int]] = {}
    """Fields that came later, and the version of CUPTI's interface (`cuptiGetVersion`) they came with."""

    @classmethod
    def size(cls, version: int) -> int:
        """The struct's size without padding at its end, as that version's header computes it."""
        last = [name for name in cls.names if cls.since.get(name, 0) <= version][-1]
        field = getattr(cls, last)
        return int(field.offset + field.size)


def _params(call: str, *, since: dict[str, int] | None = None, **fields: Any) -> type[Params]:
    """The struct that a call takes: the types of its fields by name, in order."""
    names = ("structSize", "pPriv", *fields)
    return type(call, (Params,), {"call": call, "names": names, "since": since or {}, "_fields_": [*fields.items()]})


Initialize = _params("cuptiProfilerInitialize")
GetChipName = _params("cuptiDeviceGetChipName", deviceIndex=_S, pChipName=_STR)
DeviceSupported = _params(
    "cuptiProfilerDeviceSupported",
    cuDevice=_I,
    # Levels from here on: 0 unknown, 1 unsupported, 2 disabled by the system, 3 supported.
    **dict.fromkeys(("isSupported", "architecture", "sli", "vGpu", "confidentialCompute", "cmp", "wsl"), _I),
    api=_I,
    sku=_I,
    since={"sku": 130100},
)
GetCounterAvailability = _params(
    "cuptiProfilerGetCounterAvailability",
    ctx=_P,
    counterAvailabilityImageSize=_S,
    pCounterAvailabilityImage=_P,
    bAllowDeviceLevelCounters=_U8,
    since={"bAllowDeviceLevelCounters": 130101},
)

HostInitialize = _params(
    "cuptiProfilerHostInitialize",
    profilerType=_I,
    pChipName=_STR,
    pCounterAvailabilityImage=_P,
    pHostObject=_P,
    pSinglePassMetricSetName=_STR,
    since={"pSinglePassMetricSetName": 130200},
)
HostDeinitialize = _params("cuptiProfilerHostDeinitialize", pHostObject=_P)
HostGetSupportedChips = _params("cuptiProfilerHostGetSupportedChips", numChips=_S, ppChipNames=_STRS)
HostGetBaseMetrics = _params(
    "cuptiProfilerHostGetBaseMetrics", pHostObject=_P, metricType=_I, ppMetricNames=_STRS, numMetrics=_S
)
HostConfigAddMetrics = _params("cuptiProfilerHostConfigAddMetrics", pHostObject=_P, ppMetricNames=_STRS, numMetrics=_S)
HostGetConfigImageSize = _params("cuptiProfilerHostGetConfigImageSize", pHostObject=_P, configImageSize=_S)
HostGetConfigImage = _params("cuptiProfilerHostGetConfigImage", pHostObject=_P, configImageSize=_S, pConfigImage=_P)
HostGetNumOfPasses = _params("cuptiProfilerHostGetNumOfPasses", configImageSize=_S, pConfigImage=_P, numOfPasses=_S)
HostEvaluate = _params(
    "cuptiProfilerHostEvaluateToGpuValues",
    pHostObject=_P,
    pCounterDataImage=_P,
    counterDataImageSize=_S,
    rangeIndex=_S,
    ppMetricNames=_STRS,
    numMetrics=_S,
    pMetricValues=_DOUBLES,
)

Enable = _params(
    "cuptiRangeProfilerEnable", ctx=_P, pRangeProfilerObject=_P, cacheControlMode=_I, since={"cacheControlMode": 130400}
)
Disable = _params("cuptiRangeProfilerDisable", pRangeProfilerObject=_P)
SetConfig = _params(
    "cuptiRangeProfilerSetConfig",
    pRangeProfilerObject=_P,
    configSize=_S,
    pConfig=_P,
    counterDataImageSize=_S,
    pCounterDataImage=_P,
    range=_I,
    replayMode=_I,
    maxRangesPerPass=_S,
    numNestingLevels=_U16,
    minNestingLevel=_U16,
    passIndex=_S,
    targetNestingLevel=_U16,
)
Start = _params("cuptiRangeProfilerStart", pRangeProfilerObject=_P)
Stop = _params(
    "cuptiRangeProfilerStop", pRangeProfilerObject=_P, passIndex=_S, targetNestingLevel=_S, isAllPassSubmitted=_U8
)
PushRange = _params("cuptiRangeProfilerPushRange", pRangeProfilerObject=_P, pRangeName=_STR)
PopRange = _params("cuptiRangeProfilerPopRange", pRangeProfilerObject=_P)
DecodeData = _params("cuptiRangeProfilerDecodeData", pRangeProfilerObject=_P, numOfRangeDropped=_S)
GetCounterDataSize = _params(
    "cuptiRangeProfilerGetCounterDataSize",
    pRangeProfilerObject=_P,
    pMetricNames=_STRS,
    numMetrics=_S,
    maxNumOfRanges=_S,
    maxNumRangeTreeNodes=_U32,
    counterDataSize=_S,
)
CounterDataImageInitialize = _params(
    "cuptiRangeProfilerCounterDataImageInitialize", pRangeProfilerObject=_P, counterDataSize=_S, pCounterData=_P
)
GetCounterDataInfo = _params(
    "cuptiRangeProfilerGetCounterDataInfo", pCounterDataImage=_P, counterDataImageSize=_S, numTotalRanges=_S
)
GetRangeInfo = _params(
    "cuptiRangeProfilerCounterDataGetRangeInfo",
    pCounterDataImage=_P,
    counterDataImageSize=_S,
    rangeIndex=_S,
    rangeDelimiter=_STR,
    rangeName=_STR,
)
