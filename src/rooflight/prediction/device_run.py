"""A step on a device, predicted: times of ops, the two clocks, the bound, the costliest ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np
from msgspec.structs import replace

from rooflight import formatting, metrics
from rooflight.hardware.device import Device
from rooflight.metrics import Bound
from rooflight.prediction.clocks import step_seconds
from rooflight.prediction.least_times import Limits, limits_of
from rooflight.prediction.paleo import Ppp, SpecTime, spec_time
from rooflight.prediction.result import CostlyOp, Interval, Prediction
from rooflight.prediction.tiers import OpTimes, Predictor
from rooflight.step.cache_reuse import Array
from rooflight.step.costed_step import PHASES, Step
from rooflight.step.host_calls import host_seconds

_HOST_DEVIATION = 0.25
"""One standard deviation of the host's time: two runs of one script on two machines of the same kind differed by 21% in
the mean."""
_COSTLIEST = 10


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

    @cached_property
    def limits(self) -> Limits:
        return limits_of(self.step, self.predictor.device)

    def prediction(self) -> Prediction:
        limits, seconds = self.limits, self.times.seconds
        gpu_s, wall_s = self.gpu_s, self.wall_s
        host_deviation = _HOST_DEVIATION * self.host_s if self.host_s >= gpu_s else 0.0
        deviation = max(host_deviation, self.times.deviation_s * min(1.0, gpu_s / wall_s if wall_s else 1.0))
        throughput, tokens = rates(self.step, wall_s)
        floor_s = float(self.times.floor_s.sum())
        return Prediction(
            device=self.predictor.device.name,
            tier=self.predictor.tier,
            source=self.predictor.source,
            batch=self.step.batch,
            time_s=wall_s,
            time_interval_s=Interval.around(wall_s, deviation, least=floor_s),
            gpu_time_s=gpu_s,
            gpu_time_interval_s=Interval.around(gpu_s, self.times.deviation_s, least=floor_s),
            host_time_s=self.host_s,
            throughput=throughput,
            tokens_per_s=tokens,
            flops=flops_of(self.step),
            **_under_roofs(self.step, limits, seconds, wall_s),
            inside=self.times.inside,
            kernels=round(float(self.times.kernels.sum())),
            phases=phases_of(self.step, seconds),
            ops=costliest(self.step, seconds, limits, self.predictor.device),
            op_times_s=tuple(seconds.tolist()),
        )


class _UnderRoofs(TypedDict):
    mfu: float | None
    bound: Bound
    percent_of_roof: float
    intensity: float | None


def _under_roofs(step: Step, limits: Limits, seconds: Array, wall_s: float) -> _UnderRoofs:
    """What the roofs say of a step whose ops take so long."""
    kinds, gpu_s = step.kind_of, float(seconds.sum())
    # An op of which nothing is known lies under neither roof.
    on_memory, known = limits.memory_s > limits.compute_s, limits.roof_s > 0
    memory_s, known_s = (float(seconds[some[kinds]].sum()) for some in (on_memory, known))
    host_bound = metrics.is_host_bound(gpu_s, wall_s)
    demands = step.demands
    flops, moved = (
        float(values[kinds].sum()) for values in (demands.matrix + demands.other, demands.read + demands.written)
    )
    return _UnderRoofs(
        mfu=metrics.utilisation(float(limits.matrix_s[kinds].sum()), wall_s),
        bound=metrics.bound(known_s - memory_s, memory_s, host_bound=host_bound),
        percent_of_roof=metrics.percent_of_roof(float(limits.roof_s[kinds].sum()), gpu_s) or 0.0,
        intensity=metrics.intensity(flops, moved),
    )


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


def phases_of(step: Step, seconds: Array) -> dict[str, float]:
    sums = np.bincount(step.phase_of, seconds, len(PHASES)).tolist()
    return {phase: time_s for phase, time_s in zip(PHASES, sums, strict=True) if time_s}


def costliest(step: Step, seconds: Array, limits: Limits, device: Device) -> tuple[CostlyOp, ...]:
    has_tf32 = "tf32" in device.tensor_flops_per_s
    count = len(step.kinds)
    totals, calls = np.bincount(step.kind_of, seconds, count), np.bincount(step.kind_of, minlength=count)
    first = step.first_of
    whole = float(totals.sum())
    found = []
    for kind in np.argsort(-totals)[:_COSTLIEST].tolist():
        if totals[kind] <= 0:
            break
        op, traced = step.kinds[kind], step.ledger.ops[int(first[kind])]
        roof_s = float(limits.roof_s[kind]) * int(calls[kind])
        found.append(
            CostlyOp(
                name=op.name,
                calls=int(calls[kind]),
                time_s=float(totals[kind]),
                share=float(totals[kind]) / whole,
                module=traced.module or traced.phase,
                precision="fp32" if op.precision == "tf32" and not has_tf32 else op.precision,
                shapes=", ".join(formatting.shape(tensor.shape) for tensor in list(op.inputs)[:2]),
                bound=metrics.side(limits.compute_s[kind], limits.memory_s[kind]),
                percent_of_roof=metrics.percent_of_roof(roof_s, float(totals[kind])),
            )
        )
    return tuple(found)


def gap_of(predictor: Predictor, *, graphs: bool) -> float:
    """Seconds between two kernels: from one start to the next, less the shortest kernel there is."""
    host = predictor.host
    whole = host.get("gap.graph" if graphs else "gap") or host.get("gap")
    if whole is None:
        return 0.0
    return max(0.2e-6, float(whole.value) - predictor.model.shortest_s)


def host_of(step: Step, predictor: Predictor) -> Array:
    """Seconds of the host for every op, whatever the batch."""
    alike = step.trace.host_parts, step.kind_of
    seconds = host_seconds(step.ledger, predictor.host, step.runs_in, alike)
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
        host = np.zeros(len(step.kind_of)) if no_host else host_of(step, predictor)
        gaps = times.kernels * gap_of(predictor, graphs=graphs)
        waits = () if graphs else step.waits
        wall_s = step_seconds(host, times.seconds[None, :], gap_s=gaps[None, :], meets=waits)
        runs.append(DeviceRun(step, predictor, times, float(wall_s[0]), float(host.sum())))
    return runs


def spec_seconds(step: Step, device: Device, ppp: Ppp | None) -> tuple[SpecTime, Array]:
    """PALEO's answer, and its seconds for every op."""
    ledger = replace(step.ledger, header=replace(step.ledger.header, batch=step.batch), ops=step.ops_with_cost)
    found = spec_time(ledger, device, ppp=ppp)
    by_op = found.op_times_s
    return found, np.array([by_op.get(op.index, 0.0) for op in ledger.ops])


def spec_prediction(step: Step, device: Device, ppp: Ppp | None) -> Prediction:
    """PALEO's answer: it knows FLOPs, bytes and peaks, no kernels and no host."""
    found, seconds = spec_seconds(step, device, ppp)
    limits = limits_of(step, device)
    low, high = found.interval_s
    throughput, tokens = rates(step, found.time_s)
    return Prediction(
        device=device.name,
        tier="spec",
        source=found.text,
        batch=step.batch,
        time_s=found.time_s,
        time_interval_s=Interval(low, high),
        gpu_time_s=found.time_s,
        gpu_time_interval_s=Interval(low, high),
        throughput=throughput,
        tokens_per_s=tokens,
        flops=flops_of(step),
        **_under_roofs(step, limits, seconds, found.time_s),
        phases=phases_of(step, seconds),
        ops=costliest(step, seconds, limits, device),
        op_times_s=tuple(seconds.tolist()),
    )
