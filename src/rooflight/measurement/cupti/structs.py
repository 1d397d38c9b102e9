"""The parameter structs of CUPTI's range profiler and of its host side, as ctypes knows them.

Every call of CUPTI takes one struct. A later version may add fields at the end of one, never elsewhere, and tells the
layouts apart by `structSize`: `Params.size` gives the size that a version knows. Names of fields are CUPTI's own.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, ClassVar

_S, _P, _STR, _STRS, _I, _U16 = C.c_size_t, C.c_void_p, C.c_char_p, C.POINTER(C.c_char_p), C.c_int, C.c_uint16


class Params(C.Structure):
    """What every parameter struct begins with."""

    _fields_ = [("structSize", _S), ("pPriv", _P)]
    call: ClassVar[str] = ""
    since: ClassVar[dict[str, int]] = {}
    """Fields that came later, and the version of CUPTI's interface (`cuptiGetVersion`) they came with."""

    @classmethod
    def size(cls, version: int) -> int:
        """The struct's size without padding at its end, as that version's header computes it."""
        inherited: list[Any] = list(Params._fields_)
        own: list[Any] = list(cls._fields_) if cls is not Params else []
        last = [name for name, *_ in inherited + own if cls.since.get(name, 0) <= version][-1]
        field = getattr(cls, last)
        return int(field.offset + field.size)


class Initialize(Params):
    call = "cuptiProfilerInitialize"
    _fields_ = []


class GetChipName(Params):
    call = "cuptiDeviceGetChipName"
    _fields_ = [("deviceIndex", _S), ("pChipName", _STR)]


class DeviceSupported(Params):
    """Levels: 0 unknown, 1 unsupported, 2 disabled by the system, 3 supported."""

    call = "cuptiProfilerDeviceSupported"
    _fields_ = [
        ("cuDevice", _I),
        ("isSupported", _I),
        ("architecture", _I),
        ("sli", _I),
        ("vGpu", _I),
        ("confidentialCompute", _I),
        ("cmp", _I),
        ("wsl", _I),
        ("api", _I),
        ("sku", _I),
    ]
    since: ClassVar = {"sku": 130100}


class GetCounterAvailability(Params):
    call = "cuptiProfilerGetCounterAvailability"
    _fields_ = [
        ("ctx", _P),
        ("counterAvailabilityImageSize", _S),
        ("pCounterAvailabilityImage", _P),
        ("bAllowDeviceLevelCounters", C.c_uint8),
    ]
    since: ClassVar = {"bAllowDeviceLevelCounters": 130101}


class HostInitialize(Params):
    call = "cuptiProfilerHostInitialize"
    _fields_ = [
        ("profilerType", _I),
        ("pChipName", _STR),
        ("pCounterAvailabilityImage", _P),
        ("pHostObject", _P),
        ("pSinglePassMetricSetName", _STR),
    ]
    since: ClassVar = {"pSinglePassMetricSetName": 130200}


class HostDeinitialize(Params):
    call = "cuptiProfilerHostDeinitialize"
    _fields_ = [("pHostObject", _P)]


class HostGetSupportedChips(Params):
    call = "cuptiProfilerHostGetSupportedChips"
    _fields_ = [("numChips", _S), ("ppChipNames", _STRS)]


class HostGetBaseMetrics(Params):
    call = "cuptiProfilerHostGetBaseMetrics"
    _fields_ = [("pHostObject", _P), ("metricType", _I), ("ppMetricNames", _STRS), ("numMetrics", _S)]


class HostGetMetricProperties(Params):
    call = "cuptiProfilerHostGetMetricProperties"
    _fields_ = [
        ("pHostObject", _P),
        ("pMetricName", _STR),
        ("pDescription", _STR),
        ("pHwUnit", _STR),
        ("pDimUnit", _STR),
        ("metricType", _I),
        ("metricCollectionScope", _I),
    ]
    since: ClassVar = {"metricCollectionScope": 130100}


class HostConfigAddMetrics(Params):
    call = "cuptiProfilerHostConfigAddMetrics"
    _fields_ = [("pHostObject", _P), ("ppMetricNames", _STRS), ("numMetrics", _S)]


class HostGetConfigImageSize(Params):
    call = "cuptiProfilerHostGetConfigImageSize"
    _fields_ = [("pHostObject", _P), ("configImageSize", _S)]


class HostGetConfigImage(Params):
    call = "cuptiProfilerHostGetConfigImage"
    _fields_ = [("pHostObject", _P), ("configImageSize", _S), ("pConfigImage", _P)]


class HostGetNumOfPasses(Params):
    call = "cuptiProfilerHostGetNumOfPasses"
    _fields_ = [("configImageSize", _S), ("pConfigImage", _P), ("numOfPasses", _S)]


class HostEvaluate(Params):
    call = "cuptiProfilerHostEvaluateToGpuValues"
    _fields_ = [
        ("pHostObject", _P),
        ("pCounterDataImage", _P),
        ("counterDataImageSize", _S),
        ("rangeIndex", _S),
        ("ppMetricNames", _STRS),
        ("numMetrics", _S),
        ("pMetricValues", C.POINTER(C.c_double)),
    ]


class Enable(Params):
    call = "cuptiRangeProfilerEnable"
    _fields_ = [("ctx", _P), ("pRangeProfilerObject", _P), ("cacheControlMode", _I)]
    since: ClassVar = {"cacheControlMode": 130400}


class Disable(Params):
    call = "cuptiRangeProfilerDisable"
    _fields_ = [("pRangeProfilerObject", _P)]


class SetConfig(Params):
    call = "cuptiRangeProfilerSetConfig"
    _fields_ = [
        ("pRangeProfilerObject", _P),
        ("configSize", _S),
        ("pConfig", _P),
        ("counterDataImageSize", _S),
        ("pCounterDataImage", _P),
        ("range", _I),
        ("replayMode", _I),
        ("maxRangesPerPass", _S),
        ("numNestingLevels", _U16),
        ("minNestingLevel", _U16),
        ("passIndex", _S),
        ("targetNestingLevel", _U16),
    ]


class Start(Params):
    call = "cuptiRangeProfilerStart"
    _fields_ = [("pRangeProfilerObject", _P)]


class Stop(Params):
    call = "cuptiRangeProfilerStop"
    _fields_ = [
        ("pRangeProfilerObject", _P),
        ("passIndex", _S),
        ("targetNestingLevel", _S),
        ("isAllPassSubmitted", C.c_uint8),
    ]


class PushRange(Params):
    call = "cuptiRangeProfilerPushRange"
    _fields_ = [("pRangeProfilerObject", _P), ("pRangeName", _STR)]


class PopRange(Params):
    call = "cuptiRangeProfilerPopRange"
    _fields_ = [("pRangeProfilerObject", _P)]


class DecodeData(Params):
    call = "cuptiRangeProfilerDecodeData"
    _fields_ = [("pRangeProfilerObject", _P), ("numOfRangeDropped", _S)]


class GetCounterDataSize(Params):
    call = "cuptiRangeProfilerGetCounterDataSize"
    _fields_ = [
        ("pRangeProfilerObject", _P),
        ("pMetricNames", _STRS),
        ("numMetrics", _S),
        ("maxNumOfRanges", _S),
        ("maxNumRangeTreeNodes", C.c_uint32),
        ("counterDataSize", _S),
    ]


class CounterDataImageInitialize(Params):
    call = "cuptiRangeProfilerCounterDataImageInitialize"
    _fields_ = [("pRangeProfilerObject", _P), ("counterDataSize", _S), ("pCounterData", _P)]


class GetCounterDataInfo(Params):
    call = "cuptiRangeProfilerGetCounterDataInfo"
    _fields_ = [("pCounterDataImage", _P), ("counterDataImageSize", _S), ("numTotalRanges", _S)]


class GetRangeInfo(Params):
    call = "cuptiRangeProfilerCounterDataGetRangeInfo"
    _fields_ = [
        ("pCounterDataImage", _P),
        ("counterDataImageSize", _S),
        ("rangeIndex", _S),
        ("rangeDelimiter", _STR),
        ("rangeName", _STR),
    ]
