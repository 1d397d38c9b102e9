"""One cell of a prediction: a step on a device. Times of ops, the two clocks, the bound, the costliest ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rooflight import units
from rooflight.hardware.device import Device
from rooflight.prediction.cache import Array
from rooflight.prediction.clocks import simulate
from rooflight.prediction.host import host_seconds
from rooflight.prediction.limits import Limits, limits_of
from rooflight.prediction.paleo import Ppp, SpecTime, spec_time
from rooflight.prediction.prepared import PHASES, Step
from rooflight.prediction.result import Bound, CostlyOp, Interval, Prediction
from rooflight.prediction.tiers import OpTimes, Predictor

HOST_BOUND = 0.8
"""A device that works less than this part of the time waits for the host."""
_HOST_DEVIATION = 0.25
"""One standard deviation of the host's time: two runs of one script on two machines of the same kind differed by 21% in
the mean."""
_COSTLIEST = 10


@dataclass(frozen=True)
class Cell:
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
        limits, seconds, kinds = self.limits, self.times.seconds, self.step.kind_of
        gpu_s, wall_s = self.gpu_s, self.wall_s
        host_deviation = _HOST_DEVIATION * self.host_s if self.host_s >= gpu_s else 0.0
        deviation = max(host_deviation, self.times.deviation_s * min(1.0, gpu_s / wall_s if wall_s else 1.0))
        memory = float(seconds[(limits.memory_s > limits.compute_s)[kinds]].sum())
        bound: Bound = "host" if gpu_s < HOST_BOUND * wall_s else "memory" if memory > gpu_s / 2 else "compute"
        throughput, tokens = rates(self.step, wall_s)
        floor_s = float(self.times.floor_s.sum())
        return Prediction(
            device=self.predictor.device.name, tier=self.predictor.tier, source=self.predictor.source,
            batch=self.step.batch, time_s=wall_s, time_interval_s=Interval.around(wall_s, deviation, least=floor_s),
            gpu_time_s=gpu_s,
            gpu_time_interval_s=Interval.around(gpu_s, self.times.deviation_s, least=floor_s),
            host_time_s=self.host_s, throughput=throughput, tokens_per_s=tokens,
            flops=flops_of(self.step), mfu=float(limits.matrix_s[kinds].sum() / wall_s) if wall_s else None,
            bound=bound, percent_of_roof=_percent(limits, kinds, seconds), inside=self.times.inside,
            kernels=round(float(self.times.kernels.sum())), phases=phases_of(self.step, seconds),
            ops=costliest(self.step, seconds, limits, self.predictor.device), op_times_s=tuple(seconds.tolist()),
        )  # fmt: skip


def _percent(limits: Limits, kinds: npt.NDArray[np.intp], seconds: Array) -> float:
    """Above 100 where bytes come from a cache: the roof is that of the memory."""
    whole = float(seconds.sum())
    return 100 * float(limits.roof_s[kinds].sum()) / whole if whole else 0.0


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
    return samples / wall_s, None if length is None else samples * length / wall_s


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
                name=op.name, calls=int(calls[kind]), time_s=float(totals[kind]), share=float(totals[kind]) / whole,
                module=traced.module or traced.phase,
                precision="fp32" if op.precision == "tf32" and not has_tf32 else op.precision,
                shapes=", ".join(units.shape(tensor.shape) for tensor in list(op.inputs)[:2]),
                bound="memory" if limits.memory_s[kind] > limits.compute_s[kind] else "compute",
                percent_of_roof=100 * roof_s / float(totals[kind]),
            )
        )  # fmt: skip
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
    key = "host", id(predictor.calibration)
    found: Array | None = step.shared.get(key)
    if found is None:
        found = step.shared[key] = host_seconds(step.ledger, predictor.host)
    return found


def cells_of(step: Step, predictors: Sequence[Predictor], *, graphs: bool) -> list[Cell]:
    """The step on every device."""
    times = [one.op_times(step) for one in predictors]
    waits = step.waits
    cells = []
    for one, found in zip(predictors, times, strict=True):
        host = host_of(step, one)
        if one.device.kind == "cpu":
            # A CPU is its own host: what it spends on an op is in the op's time already.
            host = np.zeros(len(host))
        if graphs:
            host = np.zeros(len(host))
            waits = np.zeros(len(host), dtype=bool)
        gaps = found.kernels * gap_of(one, graphs=graphs)
        clocks = simulate(host, found.seconds[None, :], gap_s=gaps[None, :], waits=waits)
        cells.append(Cell(step, one, found, float(clocks.wall_s[0]), float(host.sum())))
    return cells


def spec_seconds(step: Step, device: Device, ppp: Ppp | None) -> tuple[SpecTime, Array]:
    """PALEO's answer, and its seconds for every op."""
    ledger = replace(step.ledger, header=replace(step.ledger.header, batch=step.batch), ops=step.ops_with_cost)
    found = spec_time(ledger, device, ppp=ppp)
    by_op = found.op_times_s
    return found, np.array([by_op.get(op.index, 0.0) for op in ledger.ops])


def spec_cell(step: Step, device: Device, ppp: Ppp | None) -> Prediction:
    """PALEO's answer: it knows FLOPs, bytes and peaks, no kernels and no host."""
    found, seconds = spec_seconds(step, device, ppp)
    limits = limits_of(step, device)
    low, high = found.interval_s
    kinds = step.kind_of
    memory = float(seconds[(limits.memory_s > limits.compute_s)[kinds]].sum())
    throughput, tokens = rates(step, found.time_s)
    return Prediction(
        device=device.name, tier="spec", source=found.text, batch=step.batch, time_s=found.time_s,
        time_interval_s=Interval(low, high), gpu_time_s=found.time_s, gpu_time_interval_s=Interval(low, high),
        throughput=throughput, tokens_per_s=tokens, flops=flops_of(step),
        mfu=float(limits.matrix_s[kinds].sum() / found.time_s) if found.time_s else None,
        bound="memory" if memory > found.time_s / 2 else "compute",
        percent_of_roof=_percent(limits, kinds, seconds), phases=phases_of(step, seconds),
        ops=costliest(step, seconds, limits, device), op_times_s=tuple(seconds.tolist()),
    )  # fmt: skip
