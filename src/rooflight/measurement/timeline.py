"""The timeline of a step: which kernels each op launched, how long they ran, when the device was busy.

Two kinds of runs are put together. A *marked* run, in which the ops are recorded, opens a profiler range around each
op, so that every launch inside it is known to be the op's; recording slows the host, so its times are not used.
*Plain* runs, with nobody watching, give the durations. Both launch the same kernels in the same order, stream by
stream: that is checked, and a step that does not repeat itself is told apart by the first launch that differs.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rooflight.errors import CannotMeasure
from rooflight.ledger import Kernel, KernelKind, Value
from rooflight.measurement.findings import median
from rooflight.measurement.profiler_trace import StepTrace, marked_op
from rooflight.ops.kernel_names import tile
from rooflight.profiles.kineto import DeviceWork, Id, Sizes, Thread, open_ranges
from rooflight.profiles.log_ledger import covered_s

_DURATIONS = "kineto: kernel duration"


class SequenceDiffers(CannotMeasure):
    """Two runs of the step did not launch the same kernels in the same order.

    `position` of the first that differs counts from 0 within the stream; `expected` or `found` is `None` where that
    run was over.
    """

    def __init__(self, expected: Sequence[str], launched: Sequence[str], *, run: str, stream: int) -> None:
        self.stream = stream
        self.position, (self.expected, self.found) = next(
            (n, pair) for n, pair in enumerate(zip_longest(expected, launched)) if pair[0] != pair[1]
        )
        here = "ends" if self.found is None else f"launches {_short(self.found)}"
        there = "had ended" if self.expected is None else f"launched {_short(self.expected)}"
        super().__init__(
            "step-not-repeatable",
            f"the step does not repeat its kernels: launch {self.position} of stream {stream}: {run} {here} where the "
            f"marked run {there}; make the step deterministic (fixed inputs, no cudnn.benchmark, no random branches)",
        )


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel, copy or set. `start_s` counts from the first launch of its trace."""

    name: str
    kind: KernelKind
    stream: int
    start_s: float
    time_s: float
    device: int = 0
    grid: Sizes | None = None
    block: Sizes | None = None
    ops: tuple[int, ...] = ()
    """The one that launched it, or all that it works for at once; none: it was launched outside any op."""
    correlation: int = 0
    graph_node: int | None = None
    """Which node of a CUDA graph; all of a graph's launches share one correlation."""
    launch_s: float | None = None
    """When the host began the call that launched it, on the clock of `start_s`, and how long that took it."""
    launch_time_s: float | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.time_s


def launches(trace: StepTrace) -> list[KernelLaunch]:
    """All device work in order of start, each with the op that launched it."""
    if not trace.work:
        return []
    ops = _launching_ops(trace)
    order = sorted(trace.work, key=lambda work: (work.start_ns, _correlation(work), work.args.graph_node or 0))
    first_ns = order[0].start_ns
    result = []
    for work in order:
        correlation = _correlation(work)
        call = trace.calls.get(correlation)
        result.append(
            KernelLaunch(
                name=work.name,
                kind=work.kind,
                stream=work.args.stream if isinstance(work.args.stream, int) else 0,
                start_s=(work.start_ns - first_ns) / 1e9,
                time_s=work.time_ns / 1e9,
                device=work.device or 0,
                grid=work.args.grid,
                block=work.args.block,
                # The host range that was open when it was launched is exact; the time of the launching call comes
                # from another clock, and serves where the profiler kept no range.
                ops=ops.get(("range", work.args.external), ops.get(("call", correlation), ())),
                correlation=correlation,
                graph_node=work.args.graph_node or None,
                launch_s=None if call is None else (call.start_ns - first_ns) / 1e9,
                launch_time_s=None if call is None else call.time_ns / 1e9,
            )
        )
    return result


def _correlation(work: DeviceWork) -> int:
    return work.args.correlation if isinstance(work.args.correlation, int) else 0


def _launching_ops(trace: StepTrace) -> dict[tuple[str, Id | None], tuple[int, ...]]:
    """The op whose mark is the innermost around a host range, by its external id, or a call, by its correlation."""
    moments: list[tuple[Thread, int, tuple[str, Id | None]]] = []
    for external in {work.args.external for work in trace.work}:
        host_range = trace.ranges.get(external) if external is not None else None
        if host_range is not None:
            moments.append((host_range.thread, host_range.start_ns, ("range", external)))
    for correlation in {_correlation(work) for work in trace.work}:
        call = trace.calls.get(correlation)
        if call is not None:
            moments.append((call.thread, call.start_ns, ("call", correlation)))
    ops = [(marked_op(mark),) for mark in trace.marks]
    return {key: ops[stack[-1]] for key, stack in open_ranges(trace.marks, moments) if stack}


def gpu_busy_s(launches: Iterable[KernelLaunch]) -> float:
    """Seconds in which at least one launch ran, on any stream."""
    return covered_s((launch.start_s, launch.end_s) for launch in launches)


@dataclass(frozen=True)
class DeviceTimes:
    """The device's side of a whole step."""

    gpu_busy_s: Value
    """Union of all launches."""
    kernel_time_s: Value
    """Sum of all launches: more than busy where streams overlap."""
    kernels: Value
    outside_ops_s: Value
    """The part of `kernel_time_s` that belongs to no op."""

    def quantities(self) -> dict[str, Value]:
        """By the names that a measurement of the step has."""
        return {"gpu_busy_s": self.gpu_busy_s, "kernel_time_s": self.kernel_time_s, "kernels": self.kernels}


def merge(marked: list[KernelLaunch], plain: Sequence[list[KernelLaunch]]) -> tuple[tuple[Kernel, ...], DeviceTimes]:
    """Ops from the marked run, durations from the plain ones (median, least, greatest), start from the plain run of
    median length. Without plain runs the marked one gives the times too, and the origin says so.

    Raises `SequenceDiffers` when a plain run did not launch what the marked one did.
    """
    runs = f"median of {len(plain)} steps" if len(plain) > 1 else "1 step" if plain else "1 marked step"
    origin = f"{_DURATIONS}, {runs}"
    matched = [_matched(marked, run, name=f"plain run {n}") for n, run in enumerate(plain, 1)] or [list(marked)]
    shown = matched[shown_run(matched)]
    kernels = []
    for position, launch in enumerate(shown):
        times = [run[position].time_s for run in matched]
        kernels.append(
            Kernel(
                name=launch.name,
                ops=marked[position].ops,
                kind=launch.kind,
                grid=launch.grid,
                block=launch.block,
                tile=tile(launch.name) if launch.kind == "kernel" else None,
                stream=launch.stream,
                start_s=launch.start_s,
                time_s=statistics.median(times),
                launch_s=launch.launch_s,
                launch_time_s=launch.launch_time_s,
                quantities={"kernel_time_s": median(times, origin)},
            )
        )
    return tuple(sorted(kernels, key=lambda kernel: kernel.start_s or 0.0)), _step_times(marked, matched, runs)


def shown_run(runs: Sequence[Sequence[KernelLaunch]]) -> int:
    """Which of them kernels' starts are of: the one of median length."""
    return sorted(range(len(runs)), key=lambda place: _span_s(runs[place]))[(len(runs) - 1) // 2]


def _step_times(marked: list[KernelLaunch], matched: Sequence[list[KernelLaunch]], runs: str) -> DeviceTimes:
    outside = [position for position, launch in enumerate(marked) if not launch.ops]
    return DeviceTimes(
        gpu_busy_s=median([gpu_busy_s(run) for run in matched], f"kineto: union of kernel intervals, {runs}"),
        kernel_time_s=median([_sum_s(run) for run in matched], f"kineto: sum of kernel durations, {runs}"),
        kernels=Value(len(marked), "kineto: launches"),
        outside_ops_s=median(
            [_sum_s(run[position] for position in outside) for run in matched],
            f"kineto: sum of kernel durations outside ops, {runs}",
        ),
    )


def per_op_time(kernels: Iterable[Kernel]) -> dict[int, Value]:
    """`kernel_time_s` of each op: the sum of its kernels' (their medians, so that rows add up; least and greatest too).

    Kernels of several ops, or of none, are nobody's.
    """
    parts: dict[int, list[Value]] = defaultdict(list)
    for kernel in kernels:
        time = kernel.quantities.get("kernel_time_s")
        if len(kernel.ops) == 1 and time is not None:
            parts[kernel.ops[0]].append(time)
    return {op: _sum_of_values(times) for op, times in sorted(parts.items())}


def _sum_of_values(values: Sequence[Value]) -> Value:
    lows = [value.low for value in values if value.low is not None]
    highs = [value.high for value in values if value.high is not None]
    spread = len(lows) == len(highs) == len(values)
    runs = values[0].origin.removeprefix(f"{_DURATIONS}, ")
    return Value(
        sum(value.value for value in values),
        f"kineto: sum of kernel durations, {runs}",
        sum(lows) if spread else None,
        sum(highs) if spread else None,
    )


_Stream = tuple[int, int]


def _streams(run: Sequence[KernelLaunch]) -> dict[_Stream, list[int]]:
    """Positions of each stream's launches, streams in order of their first."""
    positions: dict[_Stream, list[int]] = defaultdict(list)
    for position, launch in enumerate(run):
        positions[launch.device, launch.stream].append(position)
    return positions


def _matched(marked: Sequence[KernelLaunch], run: Sequence[KernelLaunch], *, name: str) -> list[KernelLaunch]:
    """The launches of `run` in the order of `marked`.

    Streams are matched by number; one taken from torch's pool has another number in every run, so what is left is
    matched by the kernels that run on it, in order of appearance.
    """
    ours, theirs = _streams(marked), _streams(run)
    twins: dict[_Stream, list[int]] = {}
    for stream, positions in ours.items():
        if _names(run, theirs.get(stream, ())) == _names(marked, positions):
            twins[stream] = theirs.pop(stream)
    for stream in [stream for stream in ours if stream not in twins]:
        names = _names(marked, ours[stream])
        twin = next((other for other, positions in theirs.items() if _names(run, positions) == names), None)
        if twin is None:
            nearest = theirs.get(stream) or next(iter(theirs.values()), [])
            raise SequenceDiffers(names, _names(run, nearest), run=name, stream=stream[1])
        twins[stream] = theirs.pop(twin)
    for stream, positions in theirs.items():
        raise SequenceDiffers([], _names(run, positions), run=name, stream=stream[1])
    order = {position: twin for stream in ours for position, twin in zip(ours[stream], twins[stream], strict=True)}
    return [run[order[position]] for position in range(len(marked))]


def _names(run: Sequence[KernelLaunch], positions: Sequence[int]) -> list[str]:
    return [run[position].name for position in positions]


def _sum_s(run: Iterable[KernelLaunch]) -> float:
    return sum(launch.time_s for launch in run)


def _span_s(run: Sequence[KernelLaunch]) -> float:
    return max((launch.end_s for launch in run), default=0.0) - min((launch.start_s for launch in run), default=0.0)


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."
