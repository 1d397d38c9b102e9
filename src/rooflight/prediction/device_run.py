"""A step on a device, predicted: times of ops, the two clocks, the bound, the costliest ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from rooflight import formatting, metrics
from rooflight.hardware.calibration import COMES_ALONG
from rooflight.hardware.device import Device
from rooflight.ledger import PHASES
from rooflight.prediction.checked_steps import checked_on
from rooflight.prediction.clocks import step_seconds
from rooflight.prediction.cluster.step import TimedStep
from rooflight.prediction.flops_over_peak import flops_over_peak
from rooflight.prediction.least_times import Limits
from rooflight.prediction.own_ops import carried_times, least_of_ops
from rooflight.prediction.paleo import Ppp, SpecTime, spec_time
from rooflight.prediction.result import CostlyOp, Interval, Prediction
from rooflight.prediction.tiers import OpTimes, Predictor
from rooflight.step.cache_reuse import Array
from rooflight.step.costed_step import Step, ledger_of
from rooflight.step.host_calls import host_seconds, module_entries
from rooflight.step.model_kind import kind_of

_BETWEEN_DEVIATION = 0.4
"""The same of what a CUDA graph takes between its kernels and to begin."""
_COSTLIEST = 10


@dataclass(frozen=True)
class SpecTier:
    """PALEO on a device: it knows FLOPs, bytes and peaks, no kernels and no host."""

    device: Device
    ppp: Ppp | None = None


TimeSource = Predictor | SpecTier
"""What tells how long steps take on its device."""


@dataclass(frozen=True)
class DeviceRun:
    step: Step
    predictor: Predictor
    times: OpTimes
    wall_s: float
    host_s: float

    @property
    def gpu_s(self) -> float:
        return float(self.times.seconds.sum())

    def _host_interval(self) -> Interval:
        return Interval.around(self.host_s, self.predictor.host_speed.deviation * self.host_s)

    def _wall_interval(self, of_gpu: Interval, floor_s: float) -> Interval:
        """Of the later of the two clocks; of a graph, which has no host, of its kernels and what is between them."""
        if self.step.is_graph:
            between = _BETWEEN_DEVIATION * max(0.0, self.wall_s - self.gpu_s)
            return Interval.around(self.wall_s, math.hypot(self.times.deviation_s, between), least=floor_s)
        return of_gpu.or_later(self._host_interval(), self.wall_s / max(self.gpu_s, self.host_s, 1e-12))

    def prediction(self) -> Prediction:
        gpu_s, wall_s = self.gpu_s, self.wall_s
        floor_s = float(self.times.floor_s.sum())
        gpu_interval = Interval.around(gpu_s, self.times.deviation_s, least=floor_s)
        return _prediction(
            self.step,
            self.predictor.device,
            self.times.seconds,
            wall_s,
            tier=self.predictor.tier_of(self.step),
            source=self.predictor.source,
            time_interval_s=self._wall_interval(gpu_interval, floor_s),
            gpu_time_s=gpu_s,
            gpu_time_interval_s=gpu_interval,
            host_time_s=self.host_s,
            host_time_interval_s=None if self.step.is_graph else self._host_interval(),
            inside=self.times.inside,
            kernels=round(float(self.times.kernels.sum())),
        )


def _prediction(
    step: Step, device: Device, seconds: Array, time_s: float, *, tier: str, source: str, **of_tier: Any
) -> Prediction:
    """What the seconds of its ops tell of a step, whoever found them. `of_tier`: what only the tier knows."""
    own = tier in ("calibrated", "partial", "transferred") and COMES_ALONG not in source
    limits, demands, kinds = least_of_ops(step, device), step.demands, step.kind_of
    gpu_s = float(seconds.sum())
    # An op of which nothing is known lies under neither roof.
    on_memory, has_roof = limits.memory_s > limits.compute_s, limits.roof_s > 0
    memory_s, roofed_s = (float(seconds[some].sum()) for some in (on_memory, has_roof))
    flops = float((demands.matrix + demands.other)[kinds].sum())
    moved = float(((demands.read + demands.written)[kinds] * (step.moves if step.is_compiled else 1.0)).sum())
    throughput, tokens = rates(step, time_s)
    by_phase = np.bincount(step.phase_of, seconds, len(PHASES)).tolist()
    found = Prediction(
        device=device.name,
        tier=tier,
        source=source,
        checked=checked_on(
            device.name,
            tier,
            step.ledger.header.step,
            model_kind=kind_of(step),
            device_kind=device.kind,
            own_calibration=own,
        ),
        batch=step.batch,
        time_s=time_s,
        throughput=throughput,
        tokens_per_s=tokens,
        flops=flops_of(step),
        flops_over_peak=flops_over_peak(step, device),
        mfu=metrics.utilisation(float(limits.matrix_s.sum()), time_s),
        bound=metrics.bound(roofed_s - memory_s, memory_s, host_bound=metrics.is_host_bound(gpu_s, time_s)),
        percent_of_roof=metrics.percent_of_roof(float(limits.roof_s.sum()), gpu_s) or 0.0,
        intensity=metrics.intensity(flops, moved),
        phases={phase: time_s for phase, time_s in zip(PHASES, by_phase, strict=True) if time_s},
        ops=costliest(step, seconds, limits, device),
        op_times_s=tuple(seconds.tolist()),
        op_least_s=tuple(zip(limits.compute_s.tolist(), limits.memory_s.tolist(), strict=True)),
        **of_tier,
    )
    assert found.time_interval_s.holds(found.time_s) and found.gpu_time_interval_s.holds(found.gpu_time_s), found.source
    return found


def flops_of(step: Step) -> int:
    counts = np.bincount(step.kind_of, minlength=len(step.kinds)).tolist()
    return sum(count * (op.cost.flops or 0) for op, count in zip(step.kinds, counts, strict=True) if op.cost)


def rates(step: Step, wall_s: float) -> tuple[float | None, float | None]:
    """Samples and tokens a second. Micro-batches that are accumulated are all samples of the step."""
    header = step.ledger.header
    if step.batch is None or not wall_s:
        return None, None
    samples = step.batch * header.accumulate
    length = 1 if header.step == "decode" else header.sequence
    return metrics.throughput(samples, wall_s), None if length is None else metrics.throughput(samples * length, wall_s)


def costliest(step: Step, seconds: Array, limits: Limits, device: Device) -> tuple[CostlyOp, ...]:
    """`seconds` and `limits` of every op."""
    has_tf32 = "tf32" in device.tensor_flops_per_s
    count = len(step.kinds)
    totals, roofs = (np.bincount(step.kind_of, values, count) for values in (seconds, limits.roof_s))
    calls = np.bincount(step.kind_of, minlength=count)
    first = np.unique(step.kind_of, return_index=True)[1]
    total_s = float(totals.sum())
    rows = []
    for kind in np.argsort(-totals)[:_COSTLIEST].tolist():
        if totals[kind] <= 0:
            break
        place = int(first[kind])
        op, traced = step.kinds[kind], step.ledger.ops[place]
        rows.append(
            CostlyOp(
                name=op.name,
                calls=int(calls[kind]),
                time_s=float(totals[kind]),
                share=float(totals[kind]) / total_s,
                module=traced.module or traced.phase,
                precision="fp32" if op.precision == "tf32" and not has_tf32 else op.precision,
                shapes=", ".join(formatting.shape(tensor.shape) for tensor in list(op.inputs)[:2]),
                bound=metrics.side(limits.compute_s[place], limits.memory_s[place]),
                percent_of_roof=metrics.percent_of_roof(float(roofs[kind]), float(totals[kind])),
            )
        )
    return tuple(rows)


def gap_of(predictor: Predictor, *, graphs: bool) -> float:
    """Seconds between two kernels: from one start to the next, less the shortest kernel there is."""
    host = predictor.host
    if graphs and "graph.kernel" in host:
        return float(host["graph.kernel"].value)
    gap = host.get("gap.graph" if graphs else "gap") or host.get("gap")
    return 0.0 if gap is None else max(0.2e-6, float(gap.value) - predictor.model.shortest_s)


def replay_of(predictor: Predictor) -> float:
    """Seconds that a CUDA graph takes beside its kernels and what is between them, where that was measured."""
    replay = predictor.host.get("graph.replay")
    return 0.0 if replay is None else float(replay.value)


def host_of(step: Step, predictor: Predictor, kernels: Array) -> Array:
    """Seconds of the host for every op, which launches so many kernels."""
    alike = step.trace.host_parts, step.kind_of
    called = step.once(module_entries)
    seconds = host_seconds(step.ledger, predictor.host, step.runs_in, alike, kernels=kernels, called=called)
    seconds[list(step.spared)] = 0.0
    return seconds


def device_runs(step: Step, predictors: Sequence[Predictor]) -> list[DeviceRun]:
    """The step on every device."""
    graphs = step.is_graph
    runs = []
    for predictor in predictors:
        times = predictor.op_times(step)
        # A CPU is its own host: what it spends on an op is in the op's time already.
        no_host = graphs or predictor.device.kind == "cpu"
        host = np.zeros(len(step.kind_of)) if no_host else host_of(step, predictor, times.kernels)
        gaps = times.kernels * gap_of(predictor, graphs=graphs)
        waits = () if graphs else step.waits
        wall_s = step_seconds(host, times.seconds[None, :], gap_s=gaps[None, :], meets=waits)
        replay_s = replay_of(predictor) if graphs else 0.0
        runs.append(DeviceRun(step, predictor, times, float(wall_s[0]) + replay_s, float(host.sum())))
    return runs


def spec_seconds(step: Step, device: Device, ppp: Ppp | None) -> tuple[SpecTime, Array, float]:
    """PALEO's answer, the seconds of every op, and what those add to it that were timed elsewhere: it has no time for
    an op without a formula."""
    ledger = replace(step.ledger, header=replace(step.ledger.header, batch=step.batch), ops=step.ops_with_cost)
    answer = spec_time(ledger, device, ppp=ppp)
    by_op = answer.op_times_s
    seconds = np.array([by_op.get(op.index, 0.0) for op in ledger.ops])
    if (own := carried_times(step, device)) is None:
        return answer, seconds, 0.0
    more_s = float((own.seconds - seconds[own.places]).sum())
    seconds[own.places] = own.seconds
    return answer, seconds, more_s


def predicted(step: Step, source: TimeSource) -> Prediction:
    if isinstance(source, Predictor):
        return device_runs(step, [source])[0].prediction()
    answer, seconds, more_s = spec_seconds(step, source.device, source.ppp)
    interval, time_s = Interval(*(end + more_s for end in answer.interval_s)), answer.time_s + more_s
    return _prediction(
        step,
        source.device,
        seconds,
        time_s,
        tier="spec",
        source=answer.text,
        time_interval_s=interval,
        gpu_time_s=time_s,
        gpu_time_interval_s=interval,
    )


def timed(step: Step, source: TimeSource) -> TimedStep:
    """The step with the seconds of its ops; the gaps between kernels are in them."""
    if isinstance(source, SpecTier):
        _, seconds, _ = spec_seconds(step, source.device, source.ppp)
        return TimedStep(ledger_of(step), seconds.tolist(), [0.0] * len(seconds))
    times = source.op_times(step)
    busy = times.seconds + times.kernels * gap_of(source, graphs=step.is_graph) * (times.seconds > 0)
    host = [0.0] * len(busy) if step.is_graph else host_of(step, source, times.kernels).tolist()
    share = np.divide(times.seconds, busy, out=np.ones(len(busy)), where=busy > 0)
    return TimedStep(ledger_of(step), busy.tolist(), host, kernel_share=share.tolist(), floor_s=times.floor_s.tolist())
