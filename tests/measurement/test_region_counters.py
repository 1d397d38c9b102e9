"""Counters of a region: how they are grouped into passes, and how executions complete each other.

The tables (which counters go together) are CUPTI's own, which need no GPU. The GPU itself is stood in for by
`StandIn`: a clock, an allocator and counters that tell what they were set to.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import CannotMeasure
from rooflight.hardware import counter_tables
from rooflight.measurement.cupti import cupti, gpu, library, ranges
from rooflight.measurement.regions import plain, region, regions_ledger, scheduler, settings
from rooflight.measurement.regions.counters import CounterGroup, CounterPlan, group_by_pass
from rooflight.reporting.sections.region_tables import region_table
from tests.fixtures.notes import note_texts

needs_tables = pytest.mark.skipif(library.find_library() is None, reason="no CUPTI to ask for its tables")
MEBI = 1024 * 1024
FLOPS_CONV2 = 2 * 9 * 32 * 64 * 576 * 64  # 1,358,954,496: MNIST's second convolution, batch 64
HMMA = "sm__inst_executed_pipe_tensor_op_hmma.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
HFMA = "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"
FP16 = "sm__ops_path_tensor_src_fp16.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"


# --- groups ---


def by_letter(names):
    """Counters of the same letter share a pass; a digit says how many passes that letter takes."""
    return sum({name[0]: int(name[1]) for name in names}.values())


def test_counters_that_share_a_pass_are_grouped():
    names = ["a1x", "b1x", "a1y", "c2x", "b1y", "a1x"]
    assert group_by_pass(names, by_letter) == [
        CounterGroup(("c2x",), 2),
        CounterGroup(("a1x", "a1y"), 1),
        CounterGroup(("b1x", "b1y"), 1),
    ]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)).map(lambda pair: f"{pair[0]}1{pair[1]}")))
def test_every_counter_is_in_one_group(names):
    groups = group_by_pass(names, by_letter)
    assert sorted(name for group in groups for name in group.metrics) == sorted(set(names))
    assert sum(group.passes for group in groups) == len({name[0] for name in names})


@needs_tables
@pytest.mark.parametrize(("chip", "passes"), [("GV100", 2), ("TU102", 2), ("GA100", 5), ("GH100", 5)])
def test_groups_take_no_more_passes_than_all_together(chip, passes):
    scout = dict.fromkeys(counter_tables.scout_metrics(chip), 0.0)
    scout[counter_tables.scout_metrics(chip)[0]] = 1.0  # the pipe of floating-point matrices
    wanted = (*counter_tables.tensor_counters_in_use(chip, scout), *counter_tables.cuda_core_counters(chip))
    names = [counter.metric for counter in wanted]
    with cupti.Host(chip) as host:
        groups = group_by_pass(names, host.passes)
        assert host.passes(names) == sum(group.passes for group in groups) == passes
        first = [
            *counter_tables.scout_metrics(chip),
            *(c.metric for c in counter_tables.byte_counters(["dram"], chip=chip)),
        ]
        assert len(group_by_pass(first, host.passes)) == host.passes(first) == 1


# --- a GPU to stand in ---


class StandIn:
    """What torch.cuda and CUPTI say. Kernels are `work(...)`: they take time and memory, and are counted."""

    __spec__ = importlib.util.find_spec("torch")  # where CUPTI is looked for

    def __init__(self):
        self.now_s = 0.0
        self.allocated = self.peak = 0
        self.waits = 0
        self.capturing = self.autocast = False
        self.passes = []
        """The counters of every pass that was run to its end."""
        self.open: Profiler | None = None
        self.error: Exception | None = None
        self.values = {HMMA: 1000.0, TF32: float(FLOPS_CONV2), READ: 3e6, WRITTEN: 1e6, FFMA: 10.0}
        self.cuda = SimpleNamespace(
            Event=self._event, synchronize=self._wait, current_device=lambda: 0, is_initialized=lambda: True,
            memory_allocated=lambda: self.allocated, max_memory_allocated=lambda: self.peak,
            reset_peak_memory_stats=self._reset, is_current_stream_capturing=lambda: self.capturing,
        )  # fmt: skip
        self._C = SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False))
        self.is_autocast_enabled = lambda device: self.autocast and device == "cuda"
        self.__version__ = "stand-in"
        self.version = SimpleNamespace(cuda="13.0")
        switch = SimpleNamespace(allow_tf32=True)
        self.backends = SimpleNamespace(cudnn=switch, cuda=SimpleNamespace(matmul=switch))

    def _event(self, *, enable_timing):
        event = SimpleNamespace(at_s=None)
        event.record = lambda: setattr(event, "at_s", self.now_s)
        event.elapsed_time = lambda other: (other.at_s - event.at_s) * 1e3
        return event

    def _wait(self):
        assert not self.capturing, "waiting would break the capture"
        self.waits += 1
        if self.error is not None:
            raise self.error

    def _reset(self):
        self.peak = self.allocated

    def work(self, *, time_s=1.0, keeps=0, needs=0):
        self.now_s += time_s if self.open is None else 100.0
        self.peak = max(self.peak, self.allocated + needs)
        self.allocated += keeps


class Profiler:
    """A range profiler whose counters are the stand-in's; how many passes they take is asked of CUPTI's tables."""

    on: StandIn
    alive = 0

    def __init__(self, metrics, *, max_ranges, device, interleaved):
        assert (max_ranges, device, interleaved) == (1, 0, True)
        self.metrics, self._done, self._ranges = metrics, 0, 0

    def __enter__(self):
        with cupti.Host("GH100") as host:
            self.passes = host.passes(self.metrics)
        Profiler.alive += 1
        return self

    def start(self):
        assert self.on.open is None
        self.on.open = self

    def push(self, name):
        self._ranges += 1

    def pop(self):
        self._ranges -= 1

    def stop(self):
        assert self._ranges == 0
        self.on.open = None
        self._done += 1
        self.on.passes.append(self.metrics)
        return self._done == self.passes

    def abort(self):
        assert self.on.open is self
        self.on.open, self._ranges = None, 0

    def results(self):
        assert self._done == self.passes
        return [ranges.CountedRange("region", {name: self.on.values.get(name, 0.0) for name in self.metrics})]

    def close(self):
        if self.on.open is self:
            self.on.open = None
        Profiler.alive -= 1


@pytest.fixture
def stand_in(monkeypatch):
    for name in (settings.RUN, settings.COUNTERS, "RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    stand_in = StandIn()
    monkeypatch.setattr(scheduler, "_process", scheduler.RegionProcess())
    monkeypatch.setattr(plain, "perf_counter_ns", lambda: round(stand_in.now_s * 1e9))
    monkeypatch.setattr(gpu, "device", lambda index: gpu.CountedGpu(0, "GH100", None))
    monkeypatch.setattr(ranges, "RangeProfiler", Profiler)
    monkeypatch.setattr(Profiler, "on", stand_in, raising=False)
    monkeypatch.setattr(Profiler, "alive", 0)
    with monkeypatch.context() as only:
        only.setitem(sys.modules, "torch", stand_in)
        yield stand_in
    scheduler.process().failure = None  # it would be told when the tests end


def execute(stand_in, name="conv2", times=1, **work):
    for _ in range(times):
        with region(name) as r:
            stand_in.work(**work)
    return r


# 1 first, 1 plain, 1 for bytes and the scout, 5 for the FLOPs of CUDA cores and four tensor families (see above).
EXECUTIONS = 8

pytestmark = needs_tables


def test_successive_executions_complete_the_set(stand_in):
    lines = []
    for _ in range(EXECUTIONS):
        r = execute(stand_in)
        lines.append(r.missing)
    counted = "FLOPs and DRAM bytes: at least 2 more executions"
    assert lines == [
        ("a time without what the first execution sets up: 1 more execution", counted),
        (counted,),
        ("FLOPs: 5 more executions",),
        ("FLOPs: 4 more executions",),
        ("FLOPs: 3 more executions",),
        ("FLOPs: 2 more executions",),
        ("FLOPs: 1 more execution",),
        (),
    ]
    assert r.complete
    assert (r.flops, r.bytes_read, r.bytes_written) == (FLOPS_CONV2 + 20, 3_000_000, 1_000_000)
    assert r.intensity == (FLOPS_CONV2 + 20) / 4e6
    assert r.quantities["tensor_flops_tf32"].value == FLOPS_CONV2
    assert r.quantities["cuda_flops_fp32"].value == 20
    assert r.quantities["tensor_flops_int8"].value == 0  # proven by the scout, never asked for
    assert not any("int8" in name for group in stand_in.passes for name in group)
    assert Profiler.alive == 0


def test_the_table_has_a_column_for_every_unit_in_use(stand_in):
    execute(stand_in, times=EXECUTIONS, time_s=0.002, keeps=MEBI, needs=MEBI)
    execute(stand_in, "loss", times=2)
    table = region_table(regions_ledger())
    names = [column.name for column in table.columns]
    assert names == [
        "region", "executions", "timed", "time", "GPU span", "tf32 tensor", "fp32 CUDA", "FLOPs", "DRAM read", "DRAM written",
        "FLOP/B", "growth", "peak",
    ]  # fmt: skip
    first, second = table.rows
    assert first[:2] == ("conv2", EXECUTIONS)
    assert first[5:11] == (
        FLOPS_CONV2, 20, FLOPS_CONV2 + 20, 3_000_000, 1_000_000, (FLOPS_CONV2 + 20) / 4_000_000,
    )  # fmt: skip
    assert first[11] == MEBI
    assert table.written()[0][3:6] == ["2.00 ms", "2.00 ms", "1.36 G"]
    assert second[5:11] == (None,) * 6


def test_times_never_come_from_executions_under_counters(stand_in):
    r = execute(stand_in, times=EXECUTIONS + 4, time_s=2.0)
    time = r.quantities["wall_time_s"]
    assert (time.value, time.low, time.high) == (2.0, 2.0, 2.0)
    assert time.origin == "host clock, synchronised before and after: median of 5 executions"
    assert r.gpu_time_s == 2.0


def test_after_all_is_known_nothing_waits_for_the_gpu(stand_in):
    execute(stand_in, times=EXECUTIONS + 20)
    waits = stand_in.waits
    execute(stand_in, times=50)
    assert stand_in.waits == waits


def test_memory_is_that_of_the_allocator(stand_in):
    stand_in.allocated = stand_in.peak = 500 * MEBI
    r = execute(stand_in, times=4, keeps=2 * MEBI, needs=30 * MEBI)
    assert r.growth_bytes == 2 * MEBI
    # The second execution begins at 502 MiB.
    assert r.peak_bytes == 532 * MEBI


def test_torchs_own_peak_begins_anew_only_once(stand_in):
    execute(stand_in, times=2)
    stand_in.peak = 900 * MEBI
    execute(stand_in, times=30)
    assert stand_in.peak == 900 * MEBI


def _fail_inside_a_pass(stand_in, error):
    assert stand_in.open is not None
    raise error


def test_an_exception_during_a_pass_costs_only_that_pass(stand_in):
    execute(stand_in, times=3)
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError) as caught, region("conv2") as r:
        _fail_inside_a_pass(stand_in, error)
    assert caught.value is error
    assert stand_in.open is None and Profiler.alive <= 1
    assert r.missing == ("FLOPs: 5 more executions",)
    assert execute(stand_in, times=5).flops == FLOPS_CONV2 + 20


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_every_second_execution_may_fail(stand_in, error):
    for number in range(2 * EXECUTIONS):
        try:
            with region("conv2") as r:
                stand_in.work()
                if number % 2 == 0:
                    raise error
        except error:
            assert stand_in.open is None
    assert (r.executions, r.failures) == (EXECUTIONS, EXECUTIONS)
    # No pass is done twice because another one failed.
    assert r.complete and r.flops == FLOPS_CONV2 + 20
    assert len(stand_in.passes) == EXECUTIONS - 2
    assert Profiler.alive == 0


@pytest.mark.parametrize("place", ["start", "stop"])
def test_ctrl_c_while_a_pass_is_prepared_or_read_out_costs_its_group(stand_in, monkeypatch, place):
    execute(stand_in, times=4)

    def interrupted(profiler):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Profiler, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(stand_in)
    assert stand_in.open is None and Profiler.alive == 0
    r = execute(stand_in, times=6)
    assert r.complete and r.flops == FLOPS_CONV2 + 20


def test_ctrl_c_while_the_next_counters_are_chosen_costs_only_the_scout(stand_in, monkeypatch):
    execute(stand_in, times=2)
    plan = CounterPlan(0, levels=["dram"])

    def interrupted(names):
        raise KeyboardInterrupt

    plan.begin()
    with monkeypatch.context() as broken:
        broken.setattr(plan, "_grouped", interrupted)
        with pytest.raises(KeyboardInterrupt):
            plan.end()
    plan.abort()
    assert plan.missing == "FLOPs and DRAM bytes: at least 2 more executions"
    for _ in range(6):
        plan.begin()
        plan.end()
    assert plan.complete and plan.quantities()["executed_flops"].value == FLOPS_CONV2 + 20


# --- half precision ---


def test_constants_loaded_by_hfma2_are_no_flops(stand_in):
    stand_in.values[HFMA] = 1000.0
    r = execute(stand_in, times=EXECUTIONS)
    assert r.flops == FLOPS_CONV2 + 20
    half = r.quantities["cuda_flops_fp16"]
    assert half.value == 4000
    assert half.origin.endswith("upper bound: compilers also load constants by HFMA2")
    assert "all units but fp16 of the CUDA cores" in r.quantities["executed_flops"].origin
    assert r.missing == ()
    # The columns of units add up to the total.
    names = [column.name for column in region_table(regions_ledger()).columns]
    assert names[5:8] == ["tf32 tensor", "fp32 CUDA", "FLOPs"]


@pytest.mark.parametrize("sign", ["fp16 tensor work", "autocast"])
def test_where_16_bit_work_is_sure_its_cuda_cores_count(stand_in, sign):
    stand_in.values[HFMA] = 1000.0
    if sign == "autocast":
        stand_in.autocast = True
    else:
        stand_in.values[FP16] = 64.0
    r = execute(stand_in, times=EXECUTIONS)
    assert r.flops == FLOPS_CONV2 + 20 + 4000 + stand_in.values.get(FP16, 0)
    assert r.quantities["executed_flops"].origin == "cupti: all units together"
    assert "upper bound" in r.quantities["cuda_flops_fp16"].origin
    execute(stand_in, "other", times=2)
    table = region_table(regions_ledger())
    at = [column.name for column in table.columns].index("fp16 CUDA")
    assert [row[at] for row in table.rows] == [4000, None]


def test_a_table_shows_fp16_only_of_the_regions_that_count_it(stand_in):
    stand_in.values[HFMA] = 1000.0
    execute(stand_in, "fp32", times=EXECUTIONS)
    stand_in.autocast = True
    execute(stand_in, "mixed", times=EXECUTIONS)
    table = region_table(regions_ledger())
    at = [column.name for column in table.columns].index("fp16 CUDA")
    assert [row[at] for row in table.rows] == [None, 4000]
    assert [row[at + 1] for row in table.rows] == [FLOPS_CONV2 + 20, FLOPS_CONV2 + 4020]


# --- turns and errors ---


def test_inner_regions_wait_until_the_outer_one_has_its_counters(stand_in):
    for _ in range(EXECUTIONS):
        with region("step") as step:
            r = execute(stand_in)
    assert step.complete and not r.complete
    assert r.pieces.plain == [] and r.executions == EXECUTIONS
    for _ in range(EXECUTIONS - 1):  # its first execution was one of those
        with region("step"):
            execute(stand_in)
    assert r.complete
    assert len(step.pieces.plain) == 1  # it gave way


def _nested_step(stand_in):
    with region("step") as step:
        stand_in.work(time_s=1)
        with region("forward") as forward:
            stand_in.work(time_s=2)
            with region("conv2"):
                stand_in.work(time_s=2)
        with region("backward"):
            stand_in.work(time_s=5)
    return step, forward


@needs_tables
def test_a_timed_execution_also_tells_its_parts_and_waits_no_more_for_it(stand_in):
    _nested_step(stand_in)
    waits = stand_in.waits
    step, forward = _nested_step(stand_in)
    assert stand_in.waits == waits + 2  # before and after the step alone
    assert step.shares == {"forward": 0.4, "backward": 0.5}
    assert forward.shares == {"conv2": 0.5}
    # Their own times and counters still take turns; no execution under counters has a part in the shares.
    for _ in range(60):
        _nested_step(stand_in)
    assert step.shares == pytest.approx({"forward": 0.4, "backward": 0.5})
    assert step.complete and forward.complete
    assert not any(row.scope == "program" for row in regions_ledger().measurements)


@needs_tables
def test_a_part_that_fails_leaves_no_shares(stand_in):
    _nested_step(stand_in)
    with region("step") as step:
        with suppress(OSError), region("forward"):
            raise OSError
        with region("backward"):
            stand_in.work()
    assert (step.time_s, step.shares) == (1, {})


def test_counters_that_cannot_be_read_leave_time_and_memory(stand_in, monkeypatch):
    def denied(index):
        raise CannotMeasure("cupti-failed", "the driver keeps the counters for administrators: run as root")

    monkeypatch.setattr(gpu, "device", denied)
    r = execute(stand_in, times=4)
    assert r.complete
    assert (r.executions, r.time_s, r.flops) == (4, 1.0, None)
    assert r.missing == ("FLOPs and DRAM bytes: the driver keeps the counters for administrators: run as root",)
    # Others do not try again.
    monkeypatch.setattr(gpu, "device", lambda index: pytest.fail("asked again"))
    assert execute(stand_in, "other", times=3).missing == r.missing
    assert note_texts(regions_ledger().header.notes) == (f"all regions: {r.missing[0]}",)


def test_an_error_of_the_gpu_is_left_for_the_program_to_meet(stand_in):
    execute(stand_in, times=3)
    with region("conv2") as r:
        stand_in.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert stand_in.open is None
    stand_in.error = None
    assert "illegal memory access" in r.missing[0]
    assert (r.executions, r.bytes_read, r.flops) == (4, 3_000_000, None)


def test_nothing_waits_while_a_graph_is_captured(stand_in):
    stand_in.capturing = True
    r = execute(stand_in, times=3)
    assert (r.executions, stand_in.waits) == (3, 0)
    assert any("put the region around the replay" in line for line in r.missing)
    stand_in.capturing = False
    assert execute(stand_in, times=EXECUTIONS - 1).flops == FLOPS_CONV2 + 20


def test_on_another_gpu_it_only_counts_its_executions(stand_in):
    execute(stand_in, times=3)
    stand_in.cuda.current_device = lambda: 1
    r = execute(stand_in, times=2)
    assert len(stand_in.passes) == 1
    assert any("cuda:0 alone" in line for line in r.missing)
    stand_in.cuda.current_device = lambda: 0
    assert execute(stand_in, times=5).flops == FLOPS_CONV2 + 20


def test_a_rank_that_does_not_count_still_measures_time(stand_in, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    r = execute(stand_in, times=3)
    assert stand_in.passes == []
    assert r.complete and r.time_s == 1.0
    assert "only rank 0 counts" in r.missing[0]


def test_bytes_that_an_empty_range_has_too_are_unknown(stand_in):
    stand_in.values[READ] = 512.0
    r = execute(stand_in, times=EXECUTIONS)
    assert (r.bytes_read, r.bytes_written, r.intensity) == (None, 1_000_000, None)
    assert r.missing == ("dram_bytes_read: no more than a range with nothing in it shows",)


def test_a_plan_without_tensor_cores_in_use_asks_for_none(stand_in):
    stand_in.values[HMMA] = 0.0
    plan = CounterPlan(0, levels=("dram", "l2"))
    for _ in range(2):
        plan.begin()
        plan.end()
    assert plan.complete
    assert len(stand_in.passes) == 2
    assert plan.quantities()["executed_flops"].value == 20
    assert plan.quantities()["tensor_flops_tf32"].value == 0
    assert "l2_bytes" in plan.quantities()
    assert group_by_pass([], by_letter) == []
