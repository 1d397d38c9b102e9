"""The timeline of a step, on traces of torch's profiler from an H200 (torch 2.11, CUDA 13) and on real CPU runs.

The recordings are one training step of resnet18, batch 16, mean square loss, momentum SGD: once with a mark around each
op of the ledger, twice without, by benchmarks/h200/test_data.py; and once as a CUDA graph, recorded before, without the
events that no reader looks at.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rooflight
from rooflight.errors import BadFile, CannotMeasure
from rooflight.ledger import Kernel, Value
from rooflight.measurement.profiler_trace import RangeMarker, StepTrace, decode, marked_op, profiled
from rooflight.measurement.timeline import KernelLaunch, SequenceDiffers, gpu_busy_s, launches, merge, per_op_time
from rooflight.profiles.kineto import DeviceWork, DeviceWorkArgs, HostRange, RuntimeCall
from tests.fixtures.paths import DATA

TIMELINE = DATA / "timeline"
HOST = (1, 1)


def content(run: str) -> bytes:
    return gzip.decompress((TIMELINE / f"resnet18_{run}.json.gz").read_bytes())


def recorded(run: str) -> StepTrace:
    return decode(content(run), source=run)


def events(run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(content(run))["traceEvents"]
    return found


MARKED = launches(recorded("marked"))
PLAIN = [launches(recorded("plain")), launches(recorded("plain2"))]
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def test_all_device_work_and_nothing_else_is_a_launch() -> None:
    assert any(event.get("cat") == "gpu_user_annotation" for event in events("plain"))
    for run, found in (("marked", MARKED), ("plain", PLAIN[0])):
        work = [event for event in events(run) if event.get("cat") in WORK]
        assert len(found) == len(work) == 380
        assert sorted(launch.name for launch in found) == sorted(event["name"] for event in work)
        assert sum(launch.time_s for launch in found) == pytest.approx(sum(event["dur"] for event in work) / 1e6)
    assert [sum(launch.kind == kind for launch in MARKED) for kind in ("kernel", "copy", "set")] == [372, 1, 7]


def test_a_launch_has_what_the_trace_says_of_it() -> None:
    first = min((event for event in events("plain") if event.get("cat") in WORK), key=lambda event: event["ts"])
    launch = PLAIN[0][0]
    assert launch.start_s == 0
    assert launch.time_s == pytest.approx(first["dur"] / 1e6, abs=1e-12)
    assert (launch.name, list(launch.grid or ()), list(launch.block or ())) == (
        first["name"],
        first["args"]["grid"],
        first["args"]["block"],
    )
    assert (launch.device, launch.stream, launch.correlation) == (0, 7, first["args"]["correlation"])
    starts = [launch.start_s for launch in PLAIN[0]]
    assert starts == sorted(starts)


def test_every_launch_is_the_op_whose_mark_holds_its_runtime_call() -> None:
    # Another way than the code's: it looks for the host range of `External id`, here only the clock is used.
    found = events("marked")
    marks = [event for event in found if event["name"].startswith("rooflight::")]
    calls = {
        event["args"]["correlation"]: event for event in found if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    assert len(marks) == 240
    assert len({event["tid"] for event in marks}) == 2  # backward has a thread of its own
    for launch in MARKED:
        call = calls[launch.correlation]
        around = [
            mark
            for mark in marks
            if mark["tid"] == call["tid"] and mark["ts"] <= call["ts"] <= mark["ts"] + mark["dur"]
        ]
        assert f"rooflight::{launch.ops[0]}" == min(around, key=lambda mark: mark["dur"])["name"]


def test_without_host_ranges_the_runtime_call_decides() -> None:
    trace = recorded("marked")
    alone = launches(replace(trace, ranges={}))
    assert [launch.ops for launch in alone] == [launch.ops for launch in MARKED]
    assert all(not launch.ops for launch in launches(replace(trace, ranges={}, calls={})))


@pytest.fixture(scope="module")
def ledger() -> rooflight.Ledger:
    """The same step, estimated: the number of a mark is that of an op here."""
    return rooflight.estimate("resnet18", batch=16, step="train", loss="mse", optimizer="momentum")


def test_every_mark_holds_the_op_of_its_number(ledger: rooflight.Ledger) -> None:
    found = events("marked")
    marks = {int(event["name"].removeprefix("rooflight::")): event for event in found if "rooflight::" in event["name"]}
    assert sorted(marks) == [op.index for op in ledger.ops] == list(range(240))
    calls = [event for event in found if event.get("cat") == "cpu_op" and event["name"].startswith("aten::")]
    for op in ledger.ops:
        mark = marks[op.index]
        end = mark["ts"] + mark["dur"]
        inside = [call for call in calls if call["tid"] == mark["tid"] and mark["ts"] <= call["ts"] <= end]
        assert min(inside, key=lambda call: call["ts"])["name"] == op.packet, op.index


def test_the_kernels_are_those_of_the_traced_ops(ledger: rooflight.Ledger) -> None:
    assert len(ledger.ops) == 240
    names: dict[str, list[str]] = {}
    for launch in MARKED:
        (index,) = launch.ops
        op = ledger.ops[index]
        assert op.kind == "compute"
        names.setdefault(op.packet, []).append(launch.name)
    assert {launch.ops[0] for launch in MARKED} == {op.index for op in ledger.ops if op.kind == "compute"}
    convolutions = sum(op.packet == "aten::convolution" for op in ledger.ops)
    assert convolutions == 20
    assert sum("_xmma_fprop_" in name for name in names["aten::convolution"]) == convolutions
    assert sum("_xmma_wgrad_" in name or "Conv2dWgrad" in name for name in names["aten::convolution_backward"]) >= 20
    assert all("bn_fw" in name for name in names["aten::cudnn_batch_norm"])
    assert all("multi_tensor_apply" in name for name in names["aten::_foreach_add_"])
    # 20 batch norms count their steps; 8 blocks add what went around them, and backward adds its two gradients there.
    adding = sorted(name.partition("<long>")[1] for name in names["aten::add_"])
    assert adding == [""] * (8 + 8) + ["<long>"] * 20


def test_merged_rows_have_ops_tiles_and_the_spread_of_the_plain_runs() -> None:
    kernels, step = merge(MARKED, PLAIN)
    assert [kernel.ops for kernel in kernels] == [launch.ops for launch in MARKED]
    for kernel, one, other in zip(kernels, PLAIN[0], PLAIN[1], strict=True):
        assert kernel.name == one.name == other.name
        assert kernel.time_s == pytest.approx((one.time_s + other.time_s) / 2)
        time = kernel.quantities["kernel_time_s"]
        assert (time.low, time.high) == (min(one.time_s, other.time_s), max(one.time_s, other.time_s))
        assert time.origin == "kineto: kernel duration, median of 2 steps"
    # Of two runs the shorter is the lower median.
    shorter = min(PLAIN, key=lambda run: max(launch.end_s for launch in run))
    assert [kernel.start_s for kernel in kernels] == [launch.start_s for launch in shorter]
    conv1 = [kernel for kernel in kernels if kernel.ops == (0,) and kernel.tile]
    assert [(kernel.tile, kernel.kind) for kernel in conv1] == [((128, 32, 16), "kernel")]
    assert step.kernels.value == 380
    assert step.outside_ops_s.value == 0


def test_the_step_s_times_are_those_of_its_launches() -> None:
    _, step = merge(MARKED, PLAIN)
    sums = [sum(launch.time_s for launch in run) for run in PLAIN]
    assert step.kernel_time_s.value == pytest.approx(sum(sums) / 2)
    assert (step.kernel_time_s.low, step.kernel_time_s.high) == (min(sums), max(sums))
    # Hopper lets a kernel start while the one before it ends: busy is a little less than the sum, on one stream too.
    # Nine launches of one run begin 6.401 µs early in all, fourteen of the other 6.722 µs.
    early = [[max(0, one.end_s - other.start_s) for one, other in itertools.pairwise(run)] for run in PLAIN]
    assert [sum(time > 0 for time in times) for times in early] == [9, 14]
    assert [sum(times) for times in early] == [pytest.approx(6.401e-6, abs=1e-9), pytest.approx(6.722e-6, abs=1e-9)]
    assert step.kernel_time_s.value - step.gpu_busy_s.value == pytest.approx((6.401e-6 + 6.722e-6) / 2, abs=1e-9)
    assert set(step.quantities()) == {"gpu_busy_s", "kernel_time_s", "kernels"}


def test_the_times_of_ops_add_up_to_the_kernels() -> None:
    kernels, _ = merge(MARKED, PLAIN)
    ops = per_op_time(kernels)
    assert set(ops) == {launch.ops[0] for launch in MARKED}
    assert sum(value.value for value in ops.values()) == pytest.approx(sum(kernel.time_s or 0 for kernel in kernels))
    own = [kernel.quantities["kernel_time_s"] for kernel in kernels if kernel.ops == (0,)]
    assert len(own) == 4
    assert ops[0].low == pytest.approx(sum(value.low or 0 for value in own))
    assert ops[0].high == pytest.approx(sum(value.high or 0 for value in own))
    assert ops[0].origin == "kineto: sum of kernel durations, median of 2 steps"


def test_a_kernel_of_several_ops_or_of_none_is_no_op_s_time() -> None:
    time = {"kernel_time_s": Value(1e-6, "kineto: kernel duration, 1 step")}
    kernels = [
        Kernel(name="a", ops=(0,), quantities=time),
        Kernel(name="b", ops=(0, 1), quantities=time),
        Kernel(name="c", quantities=time),
    ]
    assert per_op_time(kernels) == {0: Value(1e-6, "kineto: sum of kernel durations, 1 step")}


def test_without_plain_runs_the_marked_one_gives_the_times_and_says_so() -> None:
    kernels, step = merge(MARKED, [])
    assert [kernel.time_s for kernel in kernels] == [launch.time_s for launch in MARKED]
    assert kernels[0].quantities["kernel_time_s"] == Value(MARKED[0].time_s, "kineto: kernel duration, 1 marked step")
    assert step.gpu_busy_s.origin == "kineto: union of kernel intervals, 1 marked step"


def test_a_graph_s_launches_share_one_call_and_belong_to_no_op() -> None:
    graph = launches(recorded("graph"))
    assert len(graph) == 380
    assert len({launch.correlation for launch in graph}) == 1
    kernels, step = merge(graph, [graph, graph, graph])
    assert all(kernel.ops == () for kernel in kernels)
    assert step.outside_ops_s == replace_origin(step.kernel_time_s, step.outside_ops_s.origin)
    assert per_op_time(kernels) == {}


def replace_origin(value: Value, origin: str) -> Value:
    return Value(value.value, origin, value.low, value.high)


def test_a_step_that_does_not_repeat_itself_is_named() -> None:
    wrong = [*PLAIN[0]]
    wrong[100] = replace(wrong[100], name="another_kernel")
    with pytest.raises(
        SequenceDiffers, match=r"launch 100 of stream 7: plain run 2 launches another_kernel where"
    ) as caught:
        merge(MARKED, [PLAIN[0], wrong])
    error = caught.value
    assert (error.stream, error.position, error.expected, error.found) == (7, 100, MARKED[100].name, "another_kernel")
    assert "\n" not in str(error)
    with pytest.raises(
        SequenceDiffers, match=r"launch 379 of stream 7: plain run 1 ends where the marked run launched"
    ):
        merge(MARKED, [PLAIN[0][:-1]])
    with pytest.raises(SequenceDiffers, match=r"launch 380 of stream 7: .* where the marked run had ended"):
        merge(MARKED, [[*PLAIN[0], replace(PLAIN[0][-1], start_s=1.0)]])
    with pytest.raises(
        SequenceDiffers, match=r"launch 0 of stream 9: plain run 1 launches .* where the marked run had ended"
    ):
        merge(MARKED, [[*PLAIN[0], replace(PLAIN[0][-1], start_s=1.0, stream=9)]])
    with pytest.raises(SequenceDiffers, match=r"launch 0 of stream 7: plain run 1 ends where"):
        merge(MARKED, [[]])


def launch(name: str, *, stream: int = 7, start: float = 0.0, time: float = 1.0, op: int | None = None) -> KernelLaunch:
    return KernelLaunch(
        name=name, kind="kernel", stream=stream, start_s=start, time_s=time, ops=() if op is None else (op,)
    )


def test_streams_of_another_number_are_matched_by_what_runs_on_them() -> None:
    marked = [launch("a", op=0), launch("side", stream=20, start=1, op=1), launch("b", start=2, op=2)]
    # The side stream has another number, and its kernel now starts after b.
    plain = [launch("a", time=2), launch("b", start=2, time=3), launch("side", stream=24, start=2.5, time=4)]
    kernels, _ = merge(marked, [plain])
    assert [(kernel.name, kernel.ops, kernel.stream, kernel.time_s) for kernel in kernels] == [
        ("a", (0,), 7, 2),
        ("b", (2,), 7, 3),
        ("side", (1,), 24, 4),
    ]


def test_busy_is_the_union_over_streams() -> None:
    assert gpu_busy_s([]) == 0
    assert gpu_busy_s([launch("a", start=0, time=2), launch("b", start=5, time=1)]) == 3
    overlapping = [
        launch("a", start=0, time=4),
        launch("b", start=1, time=1, stream=8),
        launch("c", start=3, time=3, stream=8),
    ]
    assert gpu_busy_s(overlapping) == 6
    assert gpu_busy_s(reversed(overlapping)) == 6


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 2))))
def test_busy_counts_every_second_once(intervals: list[tuple[int, int, int]]) -> None:
    seconds = {second for start, time, _ in intervals for second in range(start, start + time)}
    assert gpu_busy_s([launch("k", start=start, time=time, stream=stream) for start, time, stream in intervals]) == len(
        seconds
    )


def mark(op: int, thread: tuple[int, int], start_ns: int, end_ns: int) -> HostRange:
    pid, tid = thread
    start_us, time_us = start_ns / 1000, (end_ns - start_ns) / 1000
    return HostRange(name=f"rooflight::{op}", cat="user_annotation", ts=start_us, dur=time_us, pid=pid, tid=tid)


def test_the_innermost_mark_wins_and_threads_are_apart() -> None:
    other = (1, 2)
    marks = (
        mark(0, HOST, 0, 100), mark(1, HOST, 10, 40), mark(2, HOST, 20, 30), mark(3, HOST, 50, 60),
        mark(4, other, 0, 35), mark(5, HOST, 200, 210),
    )  # fmt: skip
    for moment, thread, op in (
        (5, HOST, 0), (10, HOST, 1), (25, HOST, 2), (35, HOST, 1), (45, HOST, 0), (55, HOST, 3), (100, HOST, 0),
        (150, HOST, None), (25, other, 4), (45, other, None), (25, (1, 3), None),
    ):  # fmt: skip
        kernel = DeviceWork(name="k", cat="kernel", ts=1.0, dur=0.005, args=DeviceWorkArgs(correlation=9, stream=7))
        call = RuntimeCall(name="cudaLaunchKernel", ts=moment / 1000, pid=thread[0], tid=thread[1])
        trace = StepTrace(marks=marks, work=(kernel,), calls={9: call})
        assert launches(trace)[0].ops == (() if op is None else (op,)), (moment, thread)


class Marking(TorchDispatchMode):
    """Marks every dispatcher call that a mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.marker = RangeMarker()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        index = len(self.names)
        self.names.append(func._schema.name)
        self.marker.before(index)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.marker.after(index)


def test_a_step_on_the_cpu_has_a_mark_for_every_op_and_no_launches() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    inputs = torch.randn(32, 64)
    names: list[list[str]] = []

    def run() -> None:
        model.zero_grad()
        with Marking() as marking:
            model(inputs).sum().backward()
        names.append(marking.names)

    traces = [profiled(run, cuda=False) for _ in range(3)]
    assert names[0] == names[1] == names[2]
    assert "aten::addmm" in names[0] and "aten::threshold_backward" in names[0]
    for trace in traces:
        assert sorted(map(marked_op, trace.marks)) == list(range(len(names[0])))
        assert launches(trace) == []
    # An op lies inside its mark: marks do not overlap where ops do not nest.
    marks = sorted(traces[0].marks, key=lambda mark: mark.start_ns)
    assert all(one.start_ns + one.time_ns <= other.start_ns for one, other in itertools.pairwise(marks))


def test_a_marker_outside_the_profiler_does_nothing() -> None:
    marker = RangeMarker()
    marker.before(3)
    marker.after(3)
    marker.after(3)
    assert profiled(lambda: None, cuda=False).marks == ()


def test_a_step_that_raises_leaves_the_profiler_usable() -> None:
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        profiled(broken, cuda=False)
    assert profiled(lambda: None, cuda=False).marks == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_timeline_without_a_gpu_is_refused() -> None:
    with pytest.raises(CannotMeasure, match="no CUDA device"):
        profiled(lambda: None, cuda=True)


def document(*rows: dict[str, Any]) -> bytes:
    return json.dumps({"traceEvents": rows}).encode()


KERNEL: dict[str, Any] = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.25, "args": {"device": 0, "stream": 7, "correlation": 1, "grid": [1, 2, 3], "block": [4, 5, 6]}}  # fmt: skip


def test_only_the_fields_of_a_category_are_looked_at() -> None:
    # Triton's ranges have a grid of their own kind; a peer copy has no device, but one it ran in; no bandwidth for 0 ns.
    trace = decode(
        document(
            KERNEL,
            {"ph": "X", "cat": "cpu_op", "name": "triton_poi_0", "ts": 1, "args": {"External id": 4, "grid": "grid(64,)", "stream": "7"}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP", "ts": 5, "dur": 1, "args": {"fromDevice": 0, "inDevice": 1, "toDevice": 1, "stream": 3, "correlation": 2, "bytes": 8, "memory bandwidth (GB/s)": "N/A", "graph node id": 77}},
            {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "ts": 6, "args": {"stream": -1}},
            {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9},
        ),
        source="test",
    )  # fmt: skip
    assert [(work.name, work.kind, work.start_ns, work.time_ns, work.device) for work in trace.work] == [
        ("k", "kernel", 1500, 2250, 0),
        ("Memcpy PtoP", "copy", 5000, 1000, 1),
    ]
    assert [(launch.stream, launch.correlation, launch.grid, launch.block) for launch in launches(trace)] == [
        (7, 1, (1, 2, 3), (4, 5, 6)),
        (3, 2, None, None),
    ]
    assert [(launch.device, launch.graph_node) for launch in launches(trace)] == [(0, None), (1, 77)]
    assert {number: (found.name, found.start_ns) for number, found in trace.ranges.items()} == {
        4: ("triton_poi_0", 1000)
    }


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{}",
        b'{"traceEvents": 3}',
        document(KERNEL)[:-20],
        document({**KERNEL, "args": {"stream": 7}}),
        document({**KERNEL, "args": {"stream": 7, "correlation": "0x1"}}),
        document({**KERNEL, "args": {"correlation": 1}}),
        document({**KERNEL, "args": {**KERNEL["args"], "grid": [1, 2]}}),
        document({**KERNEL, "ts": "soon"}),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(broken: bytes) -> None:
    with pytest.raises(BadFile, match=r"^here\.json[:,]? [^\n]+$"):
        decode(broken, source="here.json")


@given(st.integers(0, 3000), st.binary(max_size=8))
def test_a_damaged_trace_is_read_or_refused(position: int, damage: bytes) -> None:
    whole = document(*(event for event in events("plain")[:12]))
    damaged = whole[:position] + damage + whole[position + len(damage) :]
    with contextlib.suppress(BadFile):
        assert isinstance(decode(damaged, source="test"), StepTrace)
