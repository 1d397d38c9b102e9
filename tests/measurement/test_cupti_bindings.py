"""CUPTI's bindings: struct sizes of every version, errors, the tables (no GPU needed), and how profilers take turns.

The range profiler itself needs a GPU. Here its calls go to a stand-in that knows the rules of CUPTI's header (what may
follow what), while everything on the host side is the real library. `tests/gpu` runs the real thing.
"""

from __future__ import annotations

import ctypes as C
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rooflight.errors import BadInput, CannotMeasure
from rooflight.measurement.cupti import cupti, gpu, library, ranges, structs
from rooflight.measurement.cupti.ranges import RangeProfiler
from tests.fixtures.cupti_tables import NO_TABLES, needs_tables

needs_no_driver = pytest.mark.skipif(library.has_driver(), reason="this machine has an NVIDIA driver")

# `..._STRUCT_SIZE` of the headers in NVIDIA's wheels, printed by a C program compiled against each of them.
# The columns are cuptiGetVersion() of CUDA 12.6, 12.8, 12.9, 13.0, 13.0.1, 13.1, 13.1.1, 13.2, 13.2.2, 13.3, 13.4.
VERSIONS = (24, 26, 28, 130000, 130001, 130100, 130101, 130200, 130202, 130300, 130400)
SIZES_THAT_CHANGE = {
    structs.Enable: (32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 36),
    structs.HostInitialize: (48, 48, 48, 48, 48, 48, 48, 56, 56, 56, 56),
    structs.GetCounterAvailability: (40, 40, 40, 40, 40, 40, 41, 41, 41, 41, 41),
    structs.DeviceSupported: (52, 52, 52, 52, 52, 56, 56, 56, 56, 56, 56),
}
SIZES_THAT_STAY = {
    structs.Initialize: 16, structs.GetChipName: 32, structs.HostDeinitialize: 24,
    structs.HostGetSupportedChips: 32, structs.HostGetBaseMetrics: 48,
    structs.HostConfigAddMetrics: 40, structs.HostGetConfigImageSize: 32, structs.HostGetConfigImage: 40,
    structs.HostGetNumOfPasses: 40, structs.HostEvaluate: 72, structs.Disable: 24, structs.SetConfig: 90,
    structs.Start: 24, structs.Stop: 41, structs.PushRange: 32, structs.PopRange: 24, structs.DecodeData: 32,
    structs.GetCounterDataSize: 64, structs.CounterDataImageInitialize: 40, structs.GetCounterDataInfo: 40,
    structs.GetRangeInfo: 56,
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES_THAT_CHANGE, ids=lambda kind: kind.call)
def test_struct_sizes_follow_the_version(kind: type[structs.Params]) -> None:
    assert tuple(kind.size(version) for version in VERSIONS) == SIZES_THAT_CHANGE[kind]


@pytest.mark.parametrize("kind", SIZES_THAT_STAY, ids=lambda kind: kind.call)
def test_struct_sizes_of_all_versions(kind: type[structs.Params]) -> None:
    assert {kind.size(version) for version in VERSIONS} == {SIZES_THAT_STAY[kind]}


def test_no_struct_is_left_out_of_the_table() -> None:
    kinds = {kind for kind in vars(structs).values() if isinstance(kind, type) and issubclass(kind, structs.Params)}
    assert kinds - {structs.Params} == {*SIZES_THAT_CHANGE, *SIZES_THAT_STAY}


# Finding and loading.


def test_importing_loads_neither_torch_nor_cupti() -> None:
    code = (
        "import sys; from rooflight.measurement.cupti import cupti, ranges; from rooflight.hardware import counter_tables; "
        "assert 'torch' not in sys.modules; assert 'libcupti' not in open('/proc/self/maps').read()"
    )
    if not Path("/proc/self/maps").exists():
        code = code.partition("; assert 'libcupti'")[0]
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_cupti_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_folders", lambda: iter([tmp_path, tmp_path / "absent"]))
    assert library.find_library() is None
    with pytest.raises(CannotMeasure, match="pip install nvidia-cuda-cupti"):
        cupti.load.__wrapped__()


def test_both_libraries_must_lie_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half, whole = tmp_path / "half", tmp_path / "whole"
    for folder, names in (
        (half, ["libcupti.so.13"]),
        (whole, ["libcupti.so.2025.3.1", "libcupti.so.13", "libnvperf_host.so"]),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.setattr(library, "_folders", lambda: iter([half, whole]))
    assert library.find_library() == library.CuptiPaths(
        cupti=whole / "libcupti.so.13", nvperf_host=whole / "libnvperf_host.so"
    )


def test_a_file_that_is_no_library_is_refused_by_its_path(tmp_path: Path) -> None:
    bad = tmp_path / "libcupti.so.13"
    bad.write_text("not a library")
    with pytest.raises(CannotMeasure, match=r"cannot be loaded.*libcupti\.so\.13"):
        cupti.Cupti(library.CuptiPaths(cupti=bad, nvperf_host=bad))


@pytest.mark.skipif(sys.platform != "linux", reason="uses the C library of Linux")
def test_a_library_without_the_calls_names_the_version_needed() -> None:
    with pytest.raises(CannotMeasure, match=r"has no cuptiRangeProfilerEnable: CUPTI of CUDA 12\.6 or newer"):
        cupti.Cupti(library.CuptiPaths(cupti=Path("libm.so.6"), nvperf_host=Path("libm.so.6")))


# Errors.


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        ("cuptiRangeProfilerStart", 35, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("cuptiRangeProfilerEnable", 39, "another profiler"),
        ("cuptiRangeProfilerStart", 26, "dcgmi profile --pause"),
        ("cuptiRangeProfilerEnable", 33, "virtual GPU"),
        ("cuptiRangeProfilerEnable", 43, "MIG"),
        ("cuptiProfilerInitialize", 999, "nvidia-smi"),
        ("cuptiProfilerInitialize", 14, "driver"),
        ("cuptiRangeProfilerStart", 999, "rooflight doctor"),
    ],
)
def test_errors_name_the_remedy_and_the_call_in_one_line(call: str, code: int, says: str) -> None:
    error = cupti.CuptiError(call, code, "CUPTI_ERROR_X")
    assert isinstance(error, CannotMeasure)
    assert (error.call, error.status, error.result) == (call, code, "CUPTI_ERROR_X")
    assert says in str(error)
    assert str(error).endswith(f"({call}: CUPTI_ERROR_X)")
    assert "\n" not in str(error)


@needs_tables
def test_every_remedy_belongs_to_a_code_the_library_knows() -> None:
    for code in cupti.REMEDIES:
        with pytest.raises(cupti.CuptiError) as caught:
            cupti.load().check("cuptiX", code)
        # 36 is in every header, but the library has no word for it.
        assert caught.value.result.startswith("CUPTI_ERROR_" if code != 36 else "code 36"), code


# The tables.


@needs_tables
def test_chips_and_their_metrics() -> None:
    assert {"TU102", "GA100", "AD102", "GH100", "GB100", "GB202"} <= set(cupti.supported_chips())
    with cupti.Host("gh100") as host:
        assert "dram__bytes_read" in host.base_metrics()
        host.close()  # twice is no harm


@needs_tables
def test_unknown_metrics_are_named() -> None:
    with cupti.Host("GH100") as host:
        assert host.is_known("dram__bytes_read.sum")
        assert not host.is_known("dram__bytes_red.sum")
        with pytest.raises(BadInput, match=r"GH100 has no counter 'dram__bytes_red\.sum'"):
            host.passes(["dram__bytes_read.sum", "dram__bytes_red.sum"])
        with pytest.raises(BadInput, match=r"a roll-up is needed: dram__bytes_read\.sum"):
            host.passes(["dram__bytes_read"])


@needs_tables
def test_an_unknown_chip_asks_for_a_newer_cupti() -> None:
    with pytest.raises(CannotMeasure, match="too old for the GPU"):
        cupti.Host("XY999")


# Without a GPU.


@needs_no_driver
def test_without_a_driver_the_reason_is_told() -> None:
    with pytest.raises(CannotMeasure, match="no NVIDIA driver"):
        ranges.probe()
    with pytest.raises(CannotMeasure, match="no NVIDIA driver"), RangeProfiler(["dram__bytes_read.sum"], max_ranges=1):
        pass


# How profilers take turns.

INVALID_OPERATION = 7
ONE_PASS = ["dram__bytes_read.sum"]
THREE_PASSES = [  # on GH100
    "dram__bytes_read.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "sm__ops_path_tensor_src_fp16.sum",
]


class StandIn(cupti.Cupti):
    """The real library, but for the range profiler: that keeps the rules of the header, and a log."""

    def __init__(self, found: library.CuptiPaths) -> None:
        super().__init__(found)
        self.log: list[Any] = []
        self.fail: dict[str, int] = {}
        self.enabled = self.started = False
        self.configured: tuple[int, int] | None = None
        self.open: list[str] = []
        self.undecoded = 0
        self.images: dict[int, dict[str, set[int]]] = {}
        """For each counter image the ranges in it, and the passes each was counted in."""
        self.seen: list[str] = []
        self.room = self.passes = 0

    def function(self, name: str) -> Any:
        kinds = {kind.call: kind for kind in vars(structs).values() if getattr(kind, "call", "")}
        mine = name.startswith("cuptiRangeProfiler") or name == structs.HostEvaluate.call
        if not mine:
            return super().function(name)
        return lambda pointer: self.answer(name, kinds[name], pointer._obj)

    def answer(self, name: str, kind: type[structs.Params], params: Any) -> int:
        if params.structSize != kind.size(self.version):
            return 1
        short = next(name for name, struct in vars(structs).items() if struct is kind)
        if short in self.fail:
            self.log.append(f"{short} fails")
            return self.fail[short]
        return int(getattr(self, f"do_{short}")(params) or 0)

    def do_Enable(self, params: Any) -> int:  # noqa: N802
        if self.enabled:
            return INVALID_OPERATION
        self.enabled, params.pRangeProfilerObject = True, 77
        self.log.append("Enable")
        return 0

    def do_Disable(self, params: Any) -> int:  # noqa: N802
        if self.started or params.pRangeProfilerObject != 77:
            return INVALID_OPERATION
        self.enabled, self.configured = False, None
        self.log.append("Disable")
        return 0

    def do_GetCounterDataSize(self, params: Any) -> None:  # noqa: N802
        params.counterDataSize = 64

    def do_CounterDataImageInitialize(self, params: Any) -> None:  # noqa: N802
        self.images[params.pCounterData] = {}

    def do_SetConfig(self, params: Any) -> int:  # noqa: N802
        if self.started or self.undecoded:
            return INVALID_OPERATION
        self.configured = (params.pCounterDataImage, params.passIndex)
        self.room = params.maxRangesPerPass
        image = (C.c_uint8 * params.configSize).from_address(params.pConfig)
        counted = super().call(
            structs.HostGetNumOfPasses, configImageSize=params.configSize, pConfigImage=C.cast(image, C.c_void_p)
        )
        self.passes = counted.numOfPasses
        self.log.append(("SetConfig", params.range, params.replayMode, params.passIndex, params.targetNestingLevel))
        return 0

    def do_Start(self, params: Any) -> int:  # noqa: N802
        if self.configured is None or self.started:
            return INVALID_OPERATION
        self.started, self.seen = True, []
        return 0

    def do_PushRange(self, params: Any) -> int:  # noqa: N802
        if not self.started:
            return INVALID_OPERATION
        self.open.append(params.pRangeName.decode())
        return 0

    def do_PopRange(self, params: Any) -> int:  # noqa: N802
        if not self.open:
            return INVALID_OPERATION
        self.seen.append(self.open.pop())
        return 0

    def do_Stop(self, params: Any) -> int:  # noqa: N802
        if not self.started or self.open:
            return INVALID_OPERATION
        assert self.configured is not None
        image, index = self.configured
        for name in self.seen:
            if name in self.images[image] or len(self.images[image]) < self.room:
                self.images[image].setdefault(name, set()).add(index)
            else:
                self.undecoded += 1000
        self.started, self.configured = False, (image, index + 1)
        self.undecoded += 1
        params.passIndex, params.targetNestingLevel = index + 1, 1
        params.isAllPassSubmitted = index + 1 == self.passes
        return 0

    def do_DecodeData(self, params: Any) -> None:  # noqa: N802
        params.numOfRangeDropped, self.undecoded = self.undecoded // 1000, 0
        self.log.append("Decode")

    def do_GetCounterDataInfo(self, params: Any) -> None:  # noqa: N802
        params.numTotalRanges = len(self.images[params.pCounterDataImage])

    def do_GetRangeInfo(self, params: Any) -> None:  # noqa: N802
        params.rangeName = list(self.images[params.pCounterDataImage])[params.rangeIndex].encode()

    def do_HostEvaluate(self, params: Any) -> None:  # noqa: N802
        passes = list(self.images[params.pCounterDataImage].values())[params.rangeIndex]
        for index in range(params.numMetrics):
            params.pMetricValues[index] = float(len(passes)) if index == 0 else float("nan")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    if NO_TABLES is not None:
        pytest.skip(NO_TABLES)
    made = StandIn(cupti.load().paths)
    monkeypatch.setattr(cupti, "load", lambda: made)
    with cupti.Host("GH100"):
        on = gpu.CountedGpu(context=1, chip="GH100", availability=None)
    monkeypatch.setattr(gpu, "device", lambda index=0: on)
    monkeypatch.setattr(gpu, "synchronize", lambda context: None)
    ranges._session.cache_clear()
    yield made
    ranges._session.cache_clear()
    assert not made.enabled, "the profiler was left enabled"


@needs_tables
@pytest.mark.parametrize("chip", ["GV100", "TU116", "GA10B", "GH100", "GB100", "GB10B", "GB202", "GB203", "GB20B"])
def test_the_probe_asks_for_a_counter_that_the_chip_has(
    stand_in: StandIn, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = gpu.CountedGpu(context=1, chip=chip, availability=None)
    monkeypatch.setattr(gpu, "device", lambda index=0: on)
    asked: list[str] = []
    image_of = cupti.Host.config_image

    def noted(host: cupti.Host, names: Any) -> Any:
        asked.extend(names)
        return image_of(host, names)

    monkeypatch.setattr(cupti.Host, "config_image", noted)
    assert ranges.probe(deep=True) == chip
    # Counters of instrumented code need no permission of the driver's: the probe would say too much.
    assert len(asked) == 1 and "sass" not in asked[0]


def one_pass(profiler: RangeProfiler, *names: str) -> bool:
    profiler.start()
    for name in names:
        profiler.push(name)
        profiler.pop()
    return profiler.stop()


def test_ranges_of_several_passes(stand_in: StandIn) -> None:
    with RangeProfiler(THREE_PASSES, max_ranges=2) as profiler:
        assert profiler.passes == 3
        assert [one_pass(profiler, "a", "b") for _ in range(3)] == [False, False, True]
        # Every range was counted in three passes; what cannot be evaluated is left out.
        assert profiler.results() == [ranges.CountedRange(name, {THREE_PASSES[0]: 3.0}) for name in ("a", "b")]
        with pytest.raises(RuntimeError, match="all passes are done"):
            profiler.start()
    # User ranges (2), replayed by us (3), from pass 0 on level 1.
    assert stand_in.log == ["Enable", ("SetConfig", 2, 3, 0, 1), "Decode", "Disable"]


def test_kernels_are_ranges_of_their_own(stand_in: StandIn) -> None:
    with RangeProfiler(ONE_PASS, max_ranges=8, per_kernel=True) as profiler:
        assert one_pass(profiler)
    assert ("SetConfig", 1, 3, 0, 1) in stand_in.log


@pytest.mark.parametrize("interleaved", [False, True])
def test_two_profilers_take_turns(stand_in: StandIn, interleaved: bool) -> None:
    with (
        RangeProfiler(THREE_PASSES, max_ranges=1, interleaved=interleaved) as first,
        RangeProfiler(THREE_PASSES, max_ranges=1, interleaved=interleaved) as second,
    ):
        for _ in range(3):
            first_done, second_done = one_pass(first, "a"), one_pass(second, "b")
        assert first_done
        assert second_done
        assert first.results() == [ranges.CountedRange("a", {THREE_PASSES[0]: 3.0})]
        assert second.results() == [ranges.CountedRange("b", {THREE_PASSES[0]: 3.0})]
    replay = 1 if interleaved else 3
    configured = [entry for entry in stand_in.log if isinstance(entry, tuple)]
    assert configured == [("SetConfig", 2, replay, index, 1) for index in (0, 0, 1, 1, 2, 2)]


def test_ranges_of_two_profilers_are_not_open_together(stand_in: StandIn) -> None:
    with RangeProfiler(ONE_PASS, max_ranges=1) as outer, RangeProfiler(ONE_PASS, max_ranges=1) as inner:
        outer.start()
        with pytest.raises(CannotMeasure, match="two profilers"):
            inner.start()
        assert outer.stop()


def test_a_pass_that_failed_is_thrown_away(stand_in: StandIn) -> None:
    with RangeProfiler(THREE_PASSES, max_ranges=2) as profiler:
        assert not one_pass(profiler, "a")
        profiler.start()
        profiler.push("a")
        profiler.abort()
        assert not stand_in.open
        with pytest.raises(CannotMeasure, match="0 of 3 passes"):
            profiler.results()
        while not one_pass(profiler, "b"):
            pass
        assert profiler.results() == [ranges.CountedRange("b", {THREE_PASSES[0]: 3.0})]


def test_an_exception_in_an_open_range_leaves_nothing_open(stand_in: StandIn) -> None:
    def broken() -> None:
        with RangeProfiler(ONE_PASS, max_ranges=2) as profiler:
            profiler.start()
            profiler.push("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert (stand_in.open, stand_in.started, stand_in.log[-1]) == ([], False, "Disable")


@pytest.mark.parametrize("call", ["GetCounterDataSize", "CounterDataImageInitialize"])
def test_opening_that_fails_halfway_releases_what_it_took(stand_in: StandIn, call: str) -> None:
    stand_in.fail[call] = 8
    with pytest.raises(cupti.CuptiError, match="free some on the GPU"), RangeProfiler(ONE_PASS, max_ranges=1):
        pass
    assert stand_in.log == ["Enable", f"{call} fails", "Disable"]


def test_no_permission_shows_at_the_deep_probe(stand_in: StandIn) -> None:
    assert ranges.probe() == "GH100"
    stand_in.fail["Start"] = 35
    with pytest.raises(CannotMeasure, match="for administrators"):
        ranges.probe(deep=True)
    del stand_in.fail["Start"]
    assert ranges.probe(deep=True) == "GH100"


def test_dropped_ranges_are_an_error(stand_in: StandIn) -> None:
    with RangeProfiler(ONE_PASS, max_ranges=2) as profiler:
        assert one_pass(profiler, "a", "b", "c")
        with pytest.raises(CannotMeasure, match=r"1 ranges did not fit .* room for 2"):
            profiler.results()


def test_unfinished_passes_are_an_error(stand_in: StandIn) -> None:
    with RangeProfiler(THREE_PASSES, max_ranges=1) as profiler:
        one_pass(profiler, "a")
        with pytest.raises(CannotMeasure, match="only 1 of 3 passes"):
            profiler.results()


def test_an_unknown_metric_is_told_before_anything_is_enabled(stand_in: StandIn) -> None:
    with pytest.raises(BadInput, match=r"no counter 'nope\.sum'"), RangeProfiler(["nope.sum"], max_ranges=1):
        pass
    assert stand_in.log == []
