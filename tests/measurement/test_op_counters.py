"""Counters for every op: which values are known, windows over long steps, and steps that do not repeat themselves.

The hardware is pretended here by a profiler that counts calls; what it counts on a real GPU is in tests/gpu.
"""

from __future__ import annotations

import re

import msgspec
import pytest
import torch
from torch import nn

from rooflight.errors import CannotMeasure, TraceFailed
from rooflight.hardware import counter_tables
from rooflight.hardware.counter_tables import Counter
from rooflight.ledger import Tensor, Value
from rooflight.measurement.cupti import cupti, library, op_counters
from rooflight.measurement.cupti.op_counters import OpCounters, StepCounterPlan, check_repeated
from rooflight.measurement.cupti.ranges import CountedRange
from rooflight.measurement.options import MeasureOptions
from rooflight.metrics import executed_is_known
from rooflight.models.resolve import live_workload
from rooflight.trace import TraceOptions
from rooflight.trace.stage import staged
from tests.fixtures.measured_ledgers import toy

needs_tables = pytest.mark.skipif(library.find_library() is None, reason="no CUPTI to ask for its tables")
READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
PLAN = StepCounterPlan(
    (
        *counter_tables.byte_counters(("dram", "l2")),
        Counter(TF32, "tensor_flops_tf32"),
        *counter_tables.cuda_core_counters("GH100"),
    ),
    ("sm__cycles_active.max",),
    {"tensor_flops_bf16": Value(0, "cupti: not in use in the whole step")},
    frozenset({"fp32", "fp16"}),
)
SASS = {counter.metric: 1.0 for counter in counter_tables.cuda_core_counters("GH100")}


def numbers(**counts):
    return {name: value.value for name, value in PLAN.quantities(**counts).items()}


# --- which values are known ---


def test_counts_become_quantities():
    found = numbers(counts={READ: 4096.0, WRITE: 8192.0, "lts__t_bytes.sum": 20.0, TF32: 1_358_954_496.0, **SASS})
    assert (found["dram_bytes_read"], found["dram_bytes_written"], found["l2_bytes"]) == (4096, 8192, 20)
    assert found["tensor_flops_tf32"] == 1_358_954_496 and found["tensor_flops_bf16"] == 0
    # One of each instruction: add + mul + 2 fma, and packed halves twice that.
    assert (found["cuda_flops_fp32"], found["cuda_flops_fp16"], found["cuda_flops_fp64"]) == (4, 8, 4)
    assert found[TF32] == 1_358_954_496  # every counter also stays under its own name


@pytest.mark.parametrize(("read", "floor", "known"), [
    (4096.0, 2048.0, True), (4096.0, 4096.0, False), (4096.0, 4097.0, False), (513.0, 0.0, True), (512.0, 0.0, False),
])  # fmt: skip
def test_bytes_that_an_empty_range_has_too_are_unknown(read, floor, known):
    found = numbers(counts={READ: read, WRITE: 9000.0}, floor={READ: floor, WRITE: 0.0})
    assert ("dram_bytes_read" in found) == known
    assert found["dram_bytes_written"] == 9000


def test_flops_have_no_floor():
    """An empty range executes nothing: zero there is a count, not doubt."""
    found = numbers(counts={TF32: 0.0, **dict.fromkeys(SASS, 0.0)}, floor=dict.fromkeys(PLAN.metrics, 0.0))
    assert found["tensor_flops_tf32"] == 0 and found["cuda_flops_fp32"] == 0


def test_a_step_without_halves_executes_no_half_arithmetic():
    """Compilers load constants by HFMA2: the counter moves, and nothing was computed."""
    plan = StepCounterPlan(PLAN.counters, (), {}, frozenset({"fp32"}))
    found = plan.quantities(SASS)
    assert found["cuda_flops_fp32"].value == 4
    assert "cuda_flops_fp16" not in found
    assert found["smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"].value == 1


def test_the_whole_step_has_no_floor():
    assert numbers(counts={READ: 600.0})["dram_bytes_read"] == 600


def test_a_counter_that_could_not_be_read_is_unknown():
    found = numbers(counts={READ: 4096.0, **dict.fromkeys(list(SASS)[1:], 1.0)})
    assert "dram_bytes_written" not in found and "cuda_flops_fp32" not in found and "cuda_flops_fp64" in found


def test_what_is_asked_for_holds_the_users_own_counters():
    assert PLAN.metrics[-1] == "sm__cycles_active.max" and READ in PLAN.metrics
    assert numbers(counts={"sm__cycles_active.max": 12.5})["sm__cycles_active.max"] == 12.5


# --- repeats, passes, windows ---


class Pretended:
    """Two passes. In every range it "counts" 1,000 + the number of the op; empty ranges read 100 bytes."""

    made: list[Pretended] = []  # noqa: RUF012
    passes = 2

    def __init__(self, names, *, max_ranges, device, per_kernel=False):
        self.names, self.room, self.per_kernel = tuple(names), max_ranges, per_kernel
        self.runs: list[list[str]] = []
        self.open: list[str] = []
        self.aborted = self.closed = False
        self.emptied = 0
        Pretended.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.closed = True

    def start(self):
        self.runs.append([])

    def push(self, name):
        assert not self.open, "ranges do not nest"
        self.open.append(name)
        self.runs[-1].append(name)

    def pop(self):
        self.open.pop()

    def stop(self):
        assert not self.open and len(self.runs[-1]) <= self.room
        return len(self.runs) == self.passes

    def abort(self):
        self.aborted = True

    def results(self):
        assert self.runs[0] == self.runs[1]
        return [CountedRange(name, dict.fromkeys(self.names, self._value(name))) for name in self.runs[0]]

    def _value(self, name):
        return 1000.0 + int(name) if name.isdigit() else 100.0


class PretendedCache:
    """Notes in which runs it was emptied, and what had been counted there by then."""

    filler = None

    def __init__(self, device):
        assert device == 0

    def __call__(self):
        assert not Pretended.made[-1].open, "the cache is emptied where nothing is counted"
        Pretended.made[-1].emptied += 1


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
    Pretended.made = []
    monkeypatch.setattr(op_counters, "RangeProfiler", Pretended)
    monkeypatch.setattr(op_counters, "probe", lambda index: "GH100")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(op_counters, "ColdCache", PretendedCache)
    return Pretended


class Chain(nn.Module):
    """Ten additions and a number that every run moves."""

    number: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.zeros(1))

    def forward(self, x):
        began.append(self.number.item())
        self.number += 1
        for _ in range(10):
            x = x + x
        return x


began: list[float] = []


def count(model, wanted=None, progress=lambda *_: None):
    """Counters of a staged step on the CPU."""
    began.clear()
    workload = live_workload(model, (torch.ones(3),), {}, step="infer")
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        ops = stage.record().ops
        counting = OpCounters(stage, ops, MeasureOptions(), progress)
        wanted = [op.index for op in ops] if wanted is None else wanted
        return counting, ops, dict(counting.per_op(PLAN, ops, wanted))


def test_every_op_has_its_own_counts(pretended):
    counting, ops, found = count(Chain())
    assert sorted(found) == [op.index for op in ops]
    assert all(found[index]["dram_bytes_read"].value == 1000 + index for index in found)
    (profiler,) = pretended.made
    assert profiler.closed and not profiler.aborted
    assert profiler.room == len(ops) + 8
    assert profiler.runs[0] == [*(f"empty {n}" for n in range(8)), *(str(op.index) for op in ops)]
    assert counting.passes == 2


@pytest.mark.parametrize("window", [1, 3, 4, 100])
def test_long_steps_are_counted_in_windows(window, pretended, monkeypatch):
    monkeypatch.setattr(op_counters, "WINDOW", window)
    seen = []
    counting, ops, found = count(Chain(), progress=lambda doing, done, total: seen.append((doing, done, total)))
    windows = -(-len(ops) // window)
    assert len(pretended.made) == windows and counting.passes == 2 * windows
    assert [found[op.index][READ].value for op in ops] == [1000 + op.index for op in ops]
    ranges = [name for profiler in pretended.made for name in profiler.runs[0] if name.isdigit()]
    assert ranges == [str(op.index) for op in ops]
    assert all(profiler.room <= window + 8 for profiler in pretended.made)
    assert len(seen) == 2 * windows and {total for _, _, total in seen} == {2}
    assert ("1 of" in seen[0][0]) == (windows > 1)


def test_only_ops_that_are_wanted_get_a_range(pretended):
    _, _, found = count(Chain(), wanted={2, 7})
    assert sorted(found) == [2, 7]
    assert pretended.made[0].runs[0][8:] == ["2", "7"]
    assert count(Chain(), wanted=())[2] == {}


def test_every_pass_begins_with_the_same_values():
    count(Chain())
    assert began == [0.0, 0.0, 0.0]  # recorded once, and two passes


def test_every_pass_begins_with_an_empty_cache(pretended):
    count(Chain())
    assert [profiler.emptied for profiler in pretended.made] == [2]


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_a_pass_in_which_the_step_fails_is_left(error, pretended):
    class Fails(nn.Module):
        calls = 0

        def forward(self, x):
            Fails.calls += 1
            x = x + x
            if Fails.calls == 3:  # in the second pass
                raise error
            return x

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else TraceFailed):
        count(Fails())
    (profiler,) = pretended.made
    assert profiler.aborted and profiler.closed and not profiler.open


def test_a_step_that_changes_between_passes_is_refused(pretended):
    class Changes(nn.Module):
        calls = 0

        def forward(self, x):
            Changes.calls += 1
            return x.sin() if Changes.calls < 3 else x.cos()

    with pytest.raises(CannotMeasure, match=r"aten::sin.*aten::cos"):
        count(Changes())
    assert pretended.made[0].aborted


def test_a_profiler_that_never_ends_is_left(monkeypatch):
    monkeypatch.setattr(Pretended, "stop", lambda self: False)
    with pytest.raises(CannotMeasure, match="more than 9 passes where it planned 2"):
        count(Chain())


def test_a_whole_step_is_one_range(pretended):
    workload = live_workload(Chain(), (torch.ones(3),), {}, step="infer")
    options = MeasureOptions(levels=("l2",), metrics=("x.sum",), spread=True)
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        counting = OpCounters(stage, stage.record().ops, options, lambda *_: None)
        plan, whole = counting.whole_step()
    scout, everything, again = pretended.made
    assert scout.names == counter_tables.scout_metrics("GH100")
    assert scout.runs == everything.runs == [["step"], ["step"]]
    # Once with all that may be at work, then with what was, twice in each pass.
    assert again.runs == 2 * [["step 1", "step 2"]] and counting.passes == 6
    assert set(everything.names) >= set(again.names) == set(plan.metrics)
    # Every pipe "counted" 100, but 100 of the first one's were HFMA2, so what runs through it was idle.
    assert {name for name, value in whole.items() if value.value == 0 and name.startswith("tensor_flops")} >= {
        "tensor_flops_tf32", "tensor_flops_bf16", "tensor_flops_fp16", "tensor_flops_fp8",
    }  # fmt: skip
    assert whole["tensor_flops_int8"].value == whole["tensor_flops_fp64"].value == 100
    assert whole["l2_bytes"].value == 100 and whole["x.sum"].value == 100
    assert TF32 not in plan.metrics and plan.metrics[-1] == "x.sum" and READ not in plan.metrics


@needs_tables
@pytest.mark.parametrize("matrix_instructions", [0.0, 7.0])
def test_a_step_on_a_chip_without_tensor_counters(matrix_instructions, monkeypatch, pretended):
    """TU116 counts its matrix instructions, but not what they do: with none of them all that was executed is known."""

    class OnTuring(Pretended):
        def __enter__(self):
            with cupti.Host("TU116") as host:  # its own tables say whether this can be asked
                self.planned = host.passes(self.names)
            return self

        def results(self):
            values = {name: matrix_instructions if "pipe_tensor" in name else 1000.0 for name in self.names}
            return [CountedRange(name, values) for name in self.runs[0]]

    monkeypatch.setattr(op_counters, "RangeProfiler", OnTuring)
    monkeypatch.setattr(op_counters, "probe", lambda index: "TU116")
    workload = live_workload(Chain(), (torch.ones(3),), {}, step="infer")
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        counting = OpCounters(stage, stage.record().ops, MeasureOptions(), lambda *_: None)
        plan, whole = counting.whole_step()
    assert [profiler.planned for profiler in pretended.made] == [1, 2]
    assert whole["cuda_flops_fp32"].value == 4000 and whole["dram_bytes_read"].value == 1000
    assert not any("tensor" in name for name in plan.metrics)
    for found in (whole, plan.quantities(dict.fromkeys(plan.metrics, 10.0))):  # of the step, and of one of its ops
        assert executed_is_known(found, half=False) == (matrix_instructions == 0)


def test_the_spread_of_the_whole_step_is_kept(monkeypatch, pretended):
    counts = iter([1000.0, 1030.0, 1010.0, 1020.0])  # of the scout, and of three repeats
    monkeypatch.setattr(
        Pretended,
        "results",
        lambda self: [CountedRange(name, dict.fromkeys(self.names, next(counts))) for name in self.runs[0]],
    )
    workload = live_workload(Chain(), (torch.ones(3),), {}, step="infer")
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        _, whole = OpCounters(stage, stage.record().ops, MeasureOptions(spread=True), lambda *_: None).whole_step()
    read = whole["dram_bytes_read"]
    assert (read.value, read.low, read.high) == (1020, 1010, 1030)


def test_without_a_spread_the_whole_step_is_counted_once(pretended):
    workload = live_workload(Chain(), (torch.ones(3),), {}, step="infer")
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        counting = OpCounters(stage, stage.record().ops, MeasureOptions(), lambda *_: None)
        _, whole = counting.whole_step()
    assert [profiler.runs for profiler in pretended.made] == 2 * [[["step"], ["step"]]] and counting.passes == 4
    assert whole["cuda_flops_fp32"].value and whole["cuda_flops_fp32"].low is whole["cuda_flops_fp32"].high is None


# --- a step that does not repeat itself ---


OPS = toy().ops


def changed(index, **changes):
    ops = list(OPS)
    ops[index] = msgspec.structs.replace(ops[index], **changes)
    return ops


def test_the_same_ops_repeat():
    check_repeated(OPS, OPS)
    check_repeated([], [])


@pytest.mark.parametrize(("again", "message"), [
    (changed(2, name="aten::gelu"), "op 2 was aten::relu in b.d giving nothing and is aten::gelu in b.d giving nothing in another run"),
    (changed(3, module="b.c"), "op 3 was aten::add.Tensor in b giving nothing and is aten::add.Tensor in b.c"),
    (changed(0, outputs=(Tensor(storage=0, shape=(2, 3), dtype="fp32"),)), "and is aten::mm in a giving 2x3 in another run"),
    (changed(0, phase="backward"), "op 0 was"), (changed(0, ordinal=1), "op 0 was"),
    (OPS[:-1], "it had 8 ops and then 7"), ([*OPS, OPS[0]], "it had 8 ops and then 9"), ([], "it had 8 ops and then 0"),
])  # fmt: skip
def test_what_differs_is_named_in_one_line(again, message):
    with pytest.raises(CannotMeasure, match=re.escape(message)) as caught:
        check_repeated(OPS, again)
    assert str(caught.value).startswith("the step does not repeat itself") and "\n" not in str(caught.value)


def test_the_first_difference_is_the_one_to_name():
    again = changed(2, name="aten::gelu")
    again[5] = msgspec.structs.replace(again[5], name="aten::l1_loss")
    with pytest.raises(CannotMeasure, match="op 2 was"):
        check_repeated(OPS, again[:-1])
