"""The plainest of all predictions: a step's FLOPs over a peak, in its own precision and in double precision.

Nothing runs so fast: it is what tables of FLOPs and data sheets give, to be set beside what is predicted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import roofs_of
from rooflight.prediction.paleo import flops_time_s, throughput
from rooflight.prediction.result import PeakTime
from rooflight.step.costed_step import Step


def flops_over_peak(step: Step, device: Device) -> tuple[PeakTime, ...]:
    """In the precisions that the step runs in; behind it, of fp32 work, the same FLOPs in double precision. Empty:
    there is no matrix work, or no peak for it."""
    flops: Counter[str] = Counter()
    counts = np.bincount(step.kind_of, minlength=len(step.kinds)).tolist()
    for op, count in zip(step.kinds, counts, strict=True):
        if op.cost is not None and op.cost.flops:
            flops[op.precision] += count * op.cost.flops
    times = [_time(step, device, flops)]
    if set(flops) <= {"fp32", "tf32"}:
        times.append(_time(step, device, Counter({"fp64": flops.total()})))
    return tuple(time for time in times if time is not None)


def _time(step: Step, device: Device, flops: Counter[str]) -> PeakTime | None:
    roofs = roofs_of(device)
    try:
        peaks = {precision: roofs.matrix(precision) for precision in flops}
    except BadInput:
        return None
    time_s = sum(flops_time_s(count, peaks[precision].flops_per_s) for precision, count in flops.items())
    if not time_s:
        return None
    distinct = {(peak.precision, peak.flops_per_s) for peak in peaks.values()}
    samples = None if step.batch is None else step.batch * step.ledger.header.accumulate
    return PeakTime(
        precision=" + ".join(sorted(precision for precision, _ in distinct)),
        peak_flops_per_s=next(iter(distinct))[1] if len(distinct) == 1 else None,
        time_s=time_s,
        throughput=None if samples is None else throughput(samples, time_s),
    )
