"""The Chrome trace of a ledger: format, nesting, order, and sums that agree with the rows."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rooflight
from rooflight.errors import BadInput
from rooflight.ledger import Kernel, Ledger, Measurement, Value
from rooflight.measurement.profiler_trace import decode
from rooflight.measurement.timeline import launches, merge, per_op_time
from rooflight.reporting.writers.perfetto import to_perfetto
from tests.fixtures.paths import DATA

TIMELINE = DATA / "timeline"
HOST, DEVICE = 1, 2


def events_of(ledger: Ledger) -> list[dict[str, Any]]:
    """The events of a ledger's trace, after the checks that hold for every trace."""
    document = json.loads(to_perfetto(ledger))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] == "ns"
    found: list[dict[str, Any]] = document["traceEvents"]
    for event in found:
        assert event["ph"] in ("M", "X", "C")
        assert isinstance(event["name"], str) and isinstance(event["args"], dict)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    times = [event["ts"] for event in found if "ts" in event]
    assert times == sorted(times)
    named = {(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in found if event["ph"] == "X"} <= named
    check_nesting(found)
    return found


def check_nesting(events: Iterable[dict[str, Any]]) -> None:
    """Slices of a lane are apart or one inside the other, and the outer one comes first."""
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    for slices in lanes.values():
        around: list[tuple[int, int]] = []
        for start, end in slices:
            while around and around[-1][1] <= start:
                around.pop()
            assert not around or end <= around[-1][1], (start, end, around[-1])
            around.append((start, end))


def ns(time_us: float) -> int:
    return round(time_us * 1000)


def lane(events: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == name]


def counters(events: Iterable[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(event["ts"], *event["args"].values()) for event in events if event["ph"] == "C" and event["name"] == name]


def op(index: int, **quantities: float) -> Measurement:
    return Measurement(
        scope="op", ops=(index,), quantities={name: Value(value, "test") for name, value in quantities.items()}
    )


def measured(ledger: Ledger, *, kernels: Iterable[Kernel] = (), rows: Iterable[Measurement] = ()) -> Ledger:
    return msgspec.structs.replace(ledger, kernels=tuple(kernels), measurements=tuple(rows))


@pytest.fixture(scope="module")
def mnist() -> Ledger:
    """12 ops: convolution, relu, convolution, relu, pool, view, t, addmm, relu, t, addmm, log-softmax."""
    return rooflight.estimate("mnist-cnn", batch=4)


@pytest.fixture(scope="module")
def resnet18() -> Ledger:
    """A training step with the timeline that an H200 recorded, and made-up counters."""
    marked, *plain = (
        launches(decode(gzip.decompress((TIMELINE / f"resnet18_{run}.json.gz").read_bytes()), source=run))
        for run in ("marked", "plain", "plain2")
    )
    ledger = rooflight.estimate("resnet18", batch=16, step="train", loss="mse", optimizer="momentum")
    kernels, _ = merge(marked, plain)
    times = per_op_time(kernels)
    rows = [op(i, kernel_time_s=time.value, dram_bytes_read=1e6, dram_bytes_written=5e5) for i, time in times.items()]
    return measured(ledger, kernels=kernels, rows=rows)


def test_a_training_step_of_an_h200(resnet18: Ledger) -> None:
    events = events_of(resnet18)
    stream = lane(events, "stream 7")
    assert len(stream) == len(resnet18.kernels) == 380
    # Each duration is rounded to a nanosecond.
    assert sum(event["dur"] for event in stream) == pytest.approx(
        sum(k.time_s or 0 for k in resnet18.kernels) * 1e6, abs=0.38
    )
    assert [event["name"] for event in stream] == [kernel.name for kernel in resnet18.kernels]
    late = [event for event in stream if "measured_start_us" in event["args"]]
    assert late  # kernels of one stream overlap a little on this GPU
    for event in late:
        assert 0 < event["ts"] - event["args"]["measured_start_us"] < 3
    for event, kernel in zip(stream, resnet18.kernels, strict=True):
        if event not in late:
            assert ns(event["ts"]) == round((kernel.start_s or 0) * 1e9)
    ops = lane(events, "ops")
    assert len(ops) == len({kernel.ops for kernel in resnet18.kernels}) == 168
    computing = {f"{o.index} {o.name}" for o in resnet18.ops if o.kind == "compute"}
    assert {event["args"]["op"] for event in ops} == computing
    assert [event["args"]["phase"] for event in lane(events, "phases")] == ["forward", "backward", "optimizer"]


def test_a_kernel_says_all_that_is_known_of_it_and_of_its_op(resnet18: Ledger) -> None:
    event = next(event for event in lane(events_of(resnet18), "stream 7") if "tile" in event["args"])
    kernel = next(kernel for kernel in resnet18.kernels if kernel.tile)
    (index,) = kernel.ops
    args = event["args"]
    assert (args["op"], args["module"], args["phase"], args["call"]) == ("0 aten::convolution", "conv1", "forward", 0)
    assert args["tile"] == "128x32x16"
    assert args["grid"] == "x".join(map(str, kernel.grid or ()))
    assert args["block"] == "x".join(map(str, kernel.block or ()))
    counted = args["counters of the op"]
    # conv1: 3 x 7 x 7 multiply-adds for each of 16 x 64 x 112 x 112 results.
    assert counted["useful_flops"] == 2 * 147 * 16 * 64 * 112 * 112
    assert counted["dram_bytes_read"] == 1e6
    assert counted["kernel_time_s"] == pytest.approx(sum(k.time_s or 0 for k in resnet18.kernels if k.ops == (index,)))


def test_modules_hold_their_ops(resnet18: Ledger) -> None:
    events = events_of(resnet18)
    modules = lane(events, "modules")
    block = next(event for event in modules if event["name"] == "layer1.0")
    assert block["args"] == {"type": "BasicBlock", "phase": "forward", "call": 0}
    inside = [
        event["args"]["module"]
        for event in lane(events, "ops")
        if block["ts"] <= event["ts"] and event["ts"] + event["dur"] <= block["ts"] + block["dur"]
    ]
    assert set(inside) == {
        "layer1.0",
        "layer1.0.conv1",
        "layer1.0.bn1",
        "layer1.0.relu",
        "layer1.0.conv2",
        "layer1.0.bn2",
    }
    # Forward, and backward in the other direction.
    layers = [event["name"] for event in modules if event["name"] in ("layer1", "layer2", "layer3", "layer4")]
    assert layers == ["layer1", "layer2", "layer3", "layer4", "layer4", "layer3", "layer2", "layer1"]
    assert [event["name"] for event in modules if event["name"].startswith("<")][-1] == "<optimizer>"


def test_the_dram_track_is_bytes_over_the_op_s_kernel_time(resnet18: Ledger) -> None:
    events = events_of(resnet18)
    track = dict(counters(events, "DRAM GB/s"))
    first = next(event for event in lane(events, "ops"))
    assert track[first["ts"]] == pytest.approx(1.5e6 / first["args"]["kernel_time_s"] / 1e9)
    assert counters(events, "DRAM GB/s")[-1][1] == 0
    assert counters(events, "executed TFLOP/s") == []


def test_ops_of_a_cpu_step_lie_end_to_end(mnist: Ledger) -> None:
    rows = [op(o.index, host_time_s=(o.index + 1) * 1e-6, allocated_bytes=1000 * o.index) for o in mnist.ops]
    events = events_of(measured(mnist, rows=rows))
    ops = lane(events, "ops")
    assert [event["name"] for event in ops] == [o.name for o in mnist.ops]
    assert [event["dur"] for event in ops] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [event["ts"] for event in ops] == [0, 1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66]
    assert counters(events, "allocated memory bytes") == [
        (event["ts"] + event["dur"], 1000 * i) for i, event in enumerate(ops)
    ]
    assert {event["pid"] for event in events} == {HOST}
    (phase,) = lane(events, "phases")
    assert (phase["name"], phase["ts"], phase["dur"]) == ("forward", 0, 78)
    modules = [(event["name"], event["ts"], event["dur"]) for event in lane(events, "modules")]
    assert modules[:3] == [("mnist-cnn", 0, 78), ("conv1", 0, 1), ("conv2", 3, 3)]


def test_rates_of_ops_and_gaps_between_them(mnist: Ledger) -> None:
    kernels = [
        Kernel(name="a", ops=(0,), stream=7, start_s=0.0, time_s=2e-6),
        Kernel(name="b", ops=(0,), stream=7, start_s=3e-6, time_s=1e-6),
        Kernel(name="c", ops=(1,), stream=7, start_s=10e-6, time_s=1e-6),
        Kernel(name="d", ops=(2,), stream=7, start_s=11e-6, time_s=4e-6),
    ]
    rows = [
        op(
            0,
            kernel_time_s=3e-6,
            dram_bytes_read=6e3,
            dram_bytes_written=3e3,
            tensor_flops_tf32=4e6,
            cuda_flops_fp32=2e6,
        ),
        op(1, kernel_time_s=1e-6),
        op(2, kernel_time_s=4e-6, dram_bytes_read=8e3, cuda_flops_fp32=8e6, allocated_bytes=70),
        op(3, allocated_bytes=60),
    ]
    events = events_of(measured(mnist, kernels=kernels, rows=rows))
    assert [(event["ts"], event["dur"]) for event in lane(events, "ops")] == [(0, 4), (10, 1), (11, 4)]
    # 9 kB in 3 µs, 8 kB in 4 µs; 6 MFLOP in 3 µs, 8 MFLOP in 4 µs; nothing is known of the op between.
    assert counters(events, "DRAM GB/s") == [(0, pytest.approx(3.0)), (4, 0), (11, pytest.approx(2.0)), (15, 0)]
    assert counters(events, "executed TFLOP/s") == [(0, pytest.approx(2.0)), (4, 0), (11, pytest.approx(2.0)), (15, 0)]
    # Op 3 has no kernel: what it allocated is seen where the ops before it ended, and it is the later of the two.
    assert counters(events, "allocated memory bytes") == [(15, 60)]
    assert lane(events, "ops")[0]["args"]["flop_per_s"] == pytest.approx(2e12)


def test_ops_at_the_same_time_get_lanes_of_their_own(mnist: Ledger) -> None:
    kernels = [
        Kernel(name="a", ops=(0,), stream=7, start_s=0.0, time_s=10e-6),
        Kernel(name="b", ops=(1,), stream=20, start_s=5e-6, time_s=10e-6),
        Kernel(name="c", ops=(2,), stream=7, start_s=11e-6, time_s=1e-6),
    ]
    events = events_of(measured(mnist, kernels=kernels))
    assert [event["name"] for event in lane(events, "ops")] == [mnist.ops[0].name, mnist.ops[2].name]
    assert [event["name"] for event in lane(events, "ops at the same time, 1")] == [mnist.ops[1].name]
    assert [(event["name"], event["tid"]) for event in events if event["ph"] == "X" and event["pid"] == DEVICE] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
    ]


def test_fused_kernels_lie_with_the_first_of_their_ops(mnist: Ledger) -> None:
    kernels = [
        Kernel(name="fused", ops=(0, 1, 2), start_s=0.0, time_s=1e-6),
        Kernel(name="fused too", ops=(0, 3), start_s=1e-6, time_s=1e-6),
        Kernel(name="nobody's", start_s=2e-6, time_s=1e-6),
    ]
    events = events_of(measured(mnist, kernels=kernels))
    assert [(event["name"], event["dur"]) for event in lane(events, "ops")] == [(f"{mnist.ops[0].name} + 3 more", 2)]
    assert lane(events, "stream unknown")[0]["args"]["ops"] == [f"{i} {mnist.ops[i].name}" for i in (0, 1, 2)]


def test_a_log_without_starts_or_ops_is_laid_end_to_end(mnist: Ledger) -> None:
    kernels = [Kernel(name=name, time_s=time, label="range") for name, time in (("a", 1e-6), ("b", 2e-6), ("c", 3e-6))]
    events = events_of(msgspec.structs.replace(mnist, ops=(), kernels=tuple(kernels)))
    assert [(event["ts"], event["dur"]) for event in lane(events, "stream unknown")] == [(0, 1), (1, 2), (3, 3)]
    assert lane(events, "ops") == []


def test_names_are_only_escaped_as_json_asks(mnist: Ledger) -> None:
    name = 'void f<"a\\b">(\n</script>é)'
    events = events_of(measured(mnist, kernels=[Kernel(name=name, ops=(0,), start_s=0.0, time_s=1e-6)]))
    assert lane(events, "stream unknown")[0]["name"] == name


def test_a_ledger_without_times_is_refused(mnist: Ledger) -> None:
    with pytest.raises(BadInput, match="has a time to draw: measure it with `rooflight measure"):
        to_perfetto(mnist)


KERNELS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 11), max_size=3, unique=True),
        st.sampled_from([None, 7, 13]),
        st.integers(0, 40_000),
        st.integers(0, 9_000),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(KERNELS)
def test_any_timeline_nests_and_keeps_its_durations(
    mnist: Ledger, rows: list[tuple[list[int], int | None, int, int]]
) -> None:
    kernels = [
        Kernel(name=str(n), ops=tuple(ops), stream=stream, start_s=start / 1e9, time_s=time / 1e9)
        for n, (ops, stream, start, time) in enumerate(rows)
    ]
    events = events_of(measured(mnist, kernels=kernels, rows=[op(0, kernel_time_s=1e-6, dram_bytes_read=5.0)]))
    drawn = {event["name"]: ns(event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == DEVICE}
    assert drawn == {str(n): time for n, (_, _, _, time) in enumerate(rows)}


def test_two_calls_of_a_module_are_two_slices(mnist: Ledger) -> None:
    ops = tuple(msgspec.structs.replace(o, module="block.fc", call=o.index // 6) for o in mnist.ops)
    rows = [op(o.index, host_time_s=1e-6) for o in ops]
    events = events_of(measured(msgspec.structs.replace(mnist, ops=ops), rows=rows))
    assert [(event["name"], event["ts"], event["dur"]) for event in lane(events, "modules")] == [
        ("mnist-cnn", 0, 12),
        ("block", 0, 12),
        ("block.fc", 0, 6),
        ("block.fc", 6, 6),
    ]
