"""A measured ledger as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

Lanes: phases, modules (nested), ops, and the kernels of each stream; beside them the memory in use, DRAM traffic and
FLOP rate of every op. Kernels lie where they ran; an op is drawn from the start of its first kernel to the end of its
last, for when the host called it is not recorded. A step on the CPU has no kernels: its ops are laid end to end.

Whole nanoseconds are used inside. A viewer wants the slices of a lane apart or nested, while kernels of one stream may
overlap by a microsecond (one starts while another ends): the later one is then drawn when the earlier is over, its
measured start stands in its arguments. Durations are never changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rooflight.errors import BadInput
from rooflight.ledger import OUTSIDE, Kernel, Ledger, Op, Value
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS
from rooflight.reporting.charts.step_lanes import (
    Level,
    OpQuantities,
    StepTimeline,
    TimelineSlice,
    nanoseconds,
    stacks,
    timeline_of,
)

_HOST, _DEVICE = 1, 2  # processes of the trace
_PHASES, _MODULES, _OPS = 1, 2, 3  # threads of the first; further lanes of ops follow

Event = dict[str, Any]


def to_perfetto(ledger: Ledger) -> bytes:
    """The trace as JSON. A ledger in which nothing has a time is refused."""
    timeline = timeline_of(ledger)
    if timeline is None:
        raise BadInput(
            "nothing-to-draw",
            f"nothing in this ledger of {ledger.header.model} has a time to draw: measure it with "
            "`rooflight measure MODEL --trace FILE`",
        )
    events = [
        *_lane(_HOST, _PHASES, "phases", timeline.phases()),
        *_lane(_HOST, _MODULES, "modules", _modules(timeline)),
        *_op_lanes(timeline),
        *_kernel_lanes(timeline),
        *_counters(timeline),
    ]
    header = ledger.header
    device = header.device or header.target
    names = [_named("process_name", _HOST, 0, f"{header.model}: step")]
    if timeline.streams:
        names.append(_named("process_name", _DEVICE, 0, f"{device}: streams"))
    return msgspec.json.encode(
        {
            "traceEvents": names + sorted(events, key=lambda event: (event.get("ts", -1), -event.get("dur", 0))),
            "displayTimeUnit": "ns",
            "otherData": {
                "rooflight": header.rooflight,
                "model": header.model,
                "device": device,
                "command": header.command,
            },
        }
    )


# Lanes


def _modules(timeline: StepTimeline) -> list[TimelineSlice]:
    ledger = timeline.ledger
    types = {module.path: module.type for module in ledger.modules}

    def stack(op: Op) -> tuple[Level, ...]:
        rows: list[Level] = []
        if op.module not in OUTSIDE:
            rows.append((ledger.header.model, {"type": types.get("", ""), "phase": op.phase}))
        parts = op.module.split(".") if op.module else []
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            args: dict[str, Any] = {"type": types.get(path, ""), "phase": op.phase}
            if path == op.module:
                args["call"] = op.call
            rows.append((path, args))
        return tuple(rows)

    return stacks((stack(op), place) for op, place in timeline.in_turn())


def _op_lanes(timeline: StepTimeline) -> Iterator[Event]:
    """Ops that run at once, on several streams, get a lane more."""
    ledger, places = timeline.ledger, timeline.places
    lanes: list[list[TimelineSlice]] = []
    fused: dict[int, set[int]] = defaultdict(set)
    for kernel in ledger.kernels:
        if len(kernel.ops) > 1:
            fused[kernel.ops[0]].update(kernel.ops[1:])
    for op in sorted(ledger.ops, key=lambda op: (places[op.index].start_ns, op.index)):
        place = places[op.index]
        if not place.duration_ns:
            continue
        name = f"{op.name} + {len(fused[op.index])} more" if op.index in fused else op.name
        row = TimelineSlice(name, place.start_ns, place.end_ns, {**_op_args(op), **_counted(op, timeline.measured)})
        lane = next((lane for lane in lanes if lane[-1].end_ns <= row.start_ns), None)
        if lane is None:
            lanes.append([row])
        else:
            lane.append(row)
    for number, rows in enumerate(lanes):
        yield from _lane(_HOST, _OPS + number, "ops" if not number else f"ops at the same time, {number}", rows)


def _kernel_lanes(timeline: StepTimeline) -> Iterator[Event]:
    for number, (stream, kernels) in enumerate(timeline.streams.items(), 1):
        rows = [
            TimelineSlice(kernel.name, place.start_ns, place.end_ns, _kernel_args(kernel, place.start_ns, timeline))
            for kernel, place in kernels
        ]
        yield from _lane(_DEVICE, number, "stream unknown" if stream is None else f"stream {stream}", rows)


def _kernel_args(kernel: Kernel, start_ns: int, timeline: StepTimeline) -> dict[str, Any]:
    ops = timeline.ledger.ops
    args: dict[str, Any] = {"kind": kernel.kind}
    if kernel.start_s is not None and nanoseconds(kernel.start_s) != start_ns:
        args["measured_start_us"] = nanoseconds(kernel.start_s) / 1000
    for name, sizes in (("grid", kernel.grid), ("block", kernel.block), ("tile", kernel.tile)):
        if sizes is not None:
            args[name] = "x".join(map(str, sizes))
    args.update({name: value.value for name, value in kernel.quantities.items()})
    if kernel.label:
        args["label"] = kernel.label
    if len(kernel.ops) == 1:
        op = ops[kernel.ops[0]]
        args |= {**_op_args(op), "counters of the op": _counted(op, timeline.measured)}
    elif kernel.ops:
        args["ops"] = [f"{index} {ops[index].name}" for index in kernel.ops]
    return args


def _op_args(op: Op) -> dict[str, Any]:
    return {"op": f"{op.index} {op.name}", "module": op.module, "call": op.call, "phase": op.phase}


def _counted(op: Op, measured: OpQuantities) -> dict[str, Any]:
    """All that was measured of an op, its rate, and its useful FLOPs; what is unknown is absent."""
    quantities = measured.get(op.index, {})
    args: dict[str, Any] = {name: value.value for name, value in quantities.items()}
    if op.cost is not None and op.cost.flops is not None:
        args["useful_flops"] = op.cost.flops
    rate = _rate(quantities, EXECUTED_FLOPS)
    if rate is not None:
        args["flop_per_s"] = rate
    return args


def _rate(quantities: dict[str, Value], names: Iterable[str]) -> float | None:
    """Their sum per second of the op's kernels (of its call, on a CPU)."""
    time = quantities.get("kernel_time_s") or quantities.get("host_time_s")
    amounts = [quantities[name].value for name in names if name in quantities]
    return sum(amounts) / time.value if amounts and time is not None and time.value else None


# Counters


def _counters(timeline: StepTimeline) -> Iterator[Event]:
    measured = timeline.measured
    # Two ops may end together: the later one says what was allocated then.
    allocated = {
        timeline.places[op.index].end_ns: measured[op.index]["allocated_bytes"].value
        for op in timeline.ledger.ops
        if "allocated_bytes" in measured.get(op.index, {})
    }
    for time_ns, value in sorted(allocated.items()):
        yield _counter("allocated memory", time_ns, "bytes", value)
    for name, unit, quantities, scale in (
        ("DRAM", "GB/s", DRAM_BYTES, 1e-9),
        ("executed", "TFLOP/s", EXECUTED_FLOPS, 1e-12),
    ):
        until = None
        for op, place in timeline.in_turn():
            rate = _rate(measured.get(op.index, {}), quantities)
            if until is not None and (until < place.start_ns or rate is None):
                yield _counter(name, min(until, place.start_ns), unit, 0)
                until = None
            if rate is not None:
                yield _counter(name, place.start_ns, unit, rate * scale)
                until = place.end_ns
        if until is not None:
            yield _counter(name, until, unit, 0)


# Events of the format


def _lane(process: int, thread: int, name: str, slices: Iterable[TimelineSlice]) -> Iterator[Event]:
    yield _named("thread_name", process, thread, name)
    yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}
    for row in slices:
        yield {
            "ph": "X",
            "name": row.name,
            "cat": name,
            "pid": process,
            "tid": thread,
            "ts": row.start_ns / 1000,
            "dur": row.duration_ns / 1000,
            "args": row.args,
        }


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(name: str, time_ns: int, unit: str, value: float) -> Event:
    return {"ph": "C", "name": f"{name} {unit}", "pid": _HOST, "tid": 0, "ts": time_ns / 1000, "args": {unit: value}}
