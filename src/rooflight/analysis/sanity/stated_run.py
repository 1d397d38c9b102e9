"""What somebody wrote down about a run, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rooflight.analysis.finding import Finding
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, Slope
from rooflight.metrics import Side
from rooflight.prediction.roofline import verdict

Counted = Literal["formula", "cuda-cores", "all-units"]
"""Where FLOPs are from: a formula, the counters of CUDA cores (FADD, FMUL, FFMA) alone, or those of every unit."""


@dataclass(frozen=True, kw_only=True)
class StatedRun:
    """What somebody wrote down. Only what is given is judged."""

    device: Device
    precision: str
    """That the work really ran in: `tf32` for an fp32 convolution where torch allows it."""
    flops: float | None = None
    counted: Counted = "formula"
    useful_flops: float | None = None
    """By formula, for the same work."""
    bytes: float | None = None
    time_s: float | None = None
    time_scope: Literal["gpu", "wall"] | None = None
    """Whose time it is, where that is known."""
    gpu_busy_s: float | None = None
    """Where `time_s` is by the wall."""
    batch: int | None = None
    ppp: float | None = None
    peak_flops_per_s: float | None = None
    """What was taken for the roof."""
    bandwidth_bytes_per_s: float | None = None
    processes: int = 1
    stated: Mapping[str, float] = field(default_factory=dict)
    """Results as they were stated, by the names of `Judgement`: `intensity`, `flops_per_s`, `ridge`, ..."""
    bound: Side | None = None
    """The verdict that was given."""
    near_roof: bool = False
    """Was it said to perform well, or to be close to the roof?"""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What follows from the numbers, under the right roof. Without a time, the plain PALEO form predicts one."""

    given: StatedRun
    roof: Roof
    slope: Slope
    ridge: float
    flops: float | None
    """The best known count of the work: by formula where the counters missed a unit."""
    intensity: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    attainable_flops_per_s: float | None
    percent_of_roof: float | None
    percent_of_bandwidth: float | None
    side: Side | None
    time_s: float | None
    throughput: float | None
    ppp: float | None
    """Measured FLOP/s over the peak, or the one that was given."""
    findings: tuple[Finding, ...] = ()

    @property
    def text(self) -> list[str]:
        """The verdict, then every finding."""
        lines = []
        if self.intensity is not None and self.attainable_flops_per_s is not None:
            lines.append(verdict(self.intensity, self.ridge, self.attainable_flops_per_s, self.percent_of_roof))
        return lines + [finding.text for finding in self.findings]

    def has(self, code: str) -> bool:
        return any(finding.code == code for finding in self.findings)
