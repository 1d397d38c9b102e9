"""PALEO's model of time, the `spec` tier: nothing but FLOPs, bytes, the device's figures and one constant.

T(op) = read + compute + write: the bytes over the bandwidth, the FLOPs over the peak, both times the *platform percent
of peak* (PPP); the step is the sum of its ops, one after the other. (Qi, Sparks and Talwalkar, "Paleo: a performance
model for deep neural networks", ICLR 2017.) The simpler form in use leaves the bytes out: time = FLOPs / (peak x PPP).

What it cannot see: the host. A step whose GPU waits for the launches takes longer than any PPP says.

PPP is a property of a platform: device, libraries, network, batch. So it is best *computed* from a measurement on it
(`ppp_of_step`, `ppp_of_flops`). Where there is none, `default_ppp` says which figure is used, and between which bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rooflight.errors import BadInput, RooflightError
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import Demand, Roofs, demand_of, roofs_of
from rooflight.ledger import Ledger, Op
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, wall_s

Form = Literal["bytes-and-flops", "flops"]
"""PALEO's own sum of read, compute and write, or the FLOPs alone."""
Scope = Literal["gpu-busy", "wall"]


@dataclass(frozen=True)
class Ppp:
    """A platform percent of peak, as a fraction, between its bounds, and where it comes from."""

    value: float
    source: str
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            check_ppp(getattr(self, name), name)


def check_ppp(value: float, name: str = "PPP") -> float:
    """Above 1 nothing runs; a percent where a fraction is meant is the likely slip."""
    if value > 1:
        hint = f"as a fraction, {value / 100:g}?" if value <= 100 else "it is measured FLOP/s over the peak's"
        raise BadInput("bad-fraction", f"{name} {value:g} is above the peak: {hint}")
    if not value > 0:
        raise BadInput(
            "bad-fraction", f"{name} {value:g} would take for ever: give a fraction of the peak above 0, at most 1"
        )
    return value


PUBLISHED = {
    "cuDNN, layer by layer": 0.62,
    "MXNet on K80": 0.49,
    "AlexNet on K20": 0.46,
    "FireCaffe on K20X": 0.21,
}
"""With which PALEO's authors ran their own experiments (`scripts/exp_*.sh` of github.com/TalwalkarLab/paleo, read in
November 2026), in fp32 on CUDA cores: no tensor core had been built. 0.62 is of a TITAN X, and their default. Lu et al.
(2017), the other source of such models, take times from measured matrix products of each shape instead; their 15,503 M
for VGG-16 are multiply-adds, not FLOPs."""
CUDNN, LEAST = max(PUBLISHED.values()), min(PUBLISHED.values())


def default_ppp(device: Device) -> Ppp:
    """The PPP of a device that nobody measured: 0.62, from 0.21 to 1.

    Why 0.62: PALEO's authors found it for cuDNN itself, which today's frameworks run on, and made it their default. Why
    not an average of theirs: the others hold the overhead of frameworks of their day; the least of them is the lower
    bound. Why no figure from a large GEMM's share of the peak: a network is not one large GEMM, and that ratio is not a
    PPP. Why none from the H200 recordings that come with rooflight: predictions are judged against measurements of that
    device. It is high for tensor cores, which networks keep less busy than CUDA cores: the source says so.
    """
    source = f"default: PALEO's for cuDNN in fp32 (TITAN X, 2016), between its least, {LEAST} (K20X), and 1"
    if device.tensor_flops_per_s:
        source += "; it knew no tensor cores, which networks keep less busy: measure a step and give its PPP"
    return Ppp(CUDNN, source, low=LEAST, high=1.0)


def given_ppp(value: float) -> Ppp:
    """What the user said, taken at its word."""
    if not isinstance(value, (int, float)):
        raise BadInput("bad-fraction", f"--ppp is a fraction of the peak, such as 0.5, not {value!r}")
    check_ppp(value)
    return Ppp(value, "given", low=value, high=value)


@dataclass(frozen=True)
class OpTime:
    """One op at the full peak: what PPP divides."""

    op: Op
    read_s: float
    compute_s: float
    write_s: float

    @property
    def time_s(self) -> float:
        return self.read_s + self.compute_s + self.write_s


@dataclass(frozen=True)
class SpecTime:
    """A step by PALEO. Times are GPU-busy times: there is no host in this model."""

    device: Device
    ppp: Ppp
    form: Form
    ops: tuple[OpTime, ...]
    """An op without a formula is not among them: it takes no time here."""

    @cached_property
    def peak_time_s(self) -> float:
        """At PPP 1."""
        return sum(row.time_s for row in self.ops)

    @property
    def time_s(self) -> float:
        return self.peak_time_s / self.ppp.value

    @property
    def interval_s(self) -> tuple[float, float]:
        """With the bounds of the PPP."""
        return self.peak_time_s / self.ppp.high, self.peak_time_s / self.ppp.low

    @property
    def op_times_s(self) -> dict[int, float]:
        """By the op's index, for `roofline.roofline`."""
        return {row.op.index: row.time_s / self.ppp.value for row in self.ops}

    @property
    def text(self) -> str:
        """The model and its constant, in one line."""
        terms = "FLOPs / peak" if self.form == "flops" else "read + compute + write"
        return f"PALEO: ({terms}) / PPP {self.ppp.value:.3g} ({self.ppp.source})"


def spec_time(
    ledger: Ledger, device: Device, *, ppp: Ppp | float | None = None, form: Form = "bytes-and-flops"
) -> SpecTime:
    """The `spec` tier: a ledger's step on a device of which only the datasheet is known."""
    chosen = default_ppp(device) if ppp is None else ppp if isinstance(ppp, Ppp) else given_ppp(ppp)
    roofs = roofs_of(device)
    rows = tuple(_op_time(op, demand, roofs, form=form) for op in ledger.ops if (demand := demand_of(op)) is not None)
    return SpecTime(device, chosen, form, rows)


def _op_time(op: Op, demand: Demand, roofs: Roofs, *, form: Form) -> OpTime:
    bytes_per_s = roofs.slope().bytes_per_s
    if form == "flops":
        # The plain form knows matrix work only: the peak is theirs, and so are published FLOPs.
        matrix = Demand(demand.matrix_flops, 0, 0, 0, demand.precision)
        return OpTime(op, 0.0, matrix.compute_s(roofs), 0.0)
    return OpTime(op, demand.bytes_read / bytes_per_s, demand.compute_s(roofs), demand.bytes_written / bytes_per_s)


def flops_time_s(flops: float, peak_flops_per_s: float, ppp: float = 1.0) -> float:
    """The plain form, for FLOPs from anywhere. A multiply-add is 2 FLOP here, as it is in every peak."""
    if flops < 0 or not peak_flops_per_s > 0:
        raise BadInput(
            "not-positive",
            f"{flops:g} FLOP at a peak of {peak_flops_per_s:g} FLOP/s: neither may be negative, nor the peak 0",
        )
    return flops / (peak_flops_per_s * check_ppp(ppp))


def throughput(batch: float, time_s: float) -> float:
    """Samples a second."""
    if not time_s > 0:
        raise BadInput("not-positive", f"a step that takes {time_s:g} s has no throughput")
    return batch / time_s


def ppp_of_flops(flops: float, time_s: float, peak_flops_per_s: float) -> float:
    """The PPP that makes the plain form give the measured time. Above 1 something is wrong with one of the three."""
    if not (flops > 0 and time_s > 0 and peak_flops_per_s > 0):
        raise BadInput("not-positive", "a PPP needs FLOPs, a time and a peak, all above 0")
    ratio = flops / time_s / peak_flops_per_s
    if ratio > 1:
        raise BadInput(
            "above-the-peak",
            f"{flops:g} FLOP in {time_s:g} s is {ratio:.3g} times the peak of {peak_flops_per_s:g} FLOP/s: "
            "another unit did the work (tensor cores?), or the FLOPs or the time are of something else",
        )
    return ratio


def ppp_of_step(ledger: Ledger, device: Device, *, form: Form = "bytes-and-flops", scope: Scope = "gpu-busy") -> Ppp:
    """PPP from a measured ledger: the time at the full peak over the time it took, by the GPU or by the wall."""
    measured = Measured(ledger)
    time = wall_s(measured) if scope == "wall" or ledger.header.target == "cpu" else busy_s(measured)
    if not time:
        raise BadInput(
            "no-time", f"no {scope} time was measured of {ledger.header.model}: a PPP needs one (rooflight measure)"
        )
    at_peak = spec_time(ledger, device, ppp=1.0, form=form).peak_time_s
    if not at_peak:
        raise BadInput("no-flops", f"no op of {ledger.header.model} has a formula: a PPP needs FLOPs")
    if at_peak > time:
        raise BadInput(
            "above-the-peak",
            f"{ledger.header.model} took {time:.3g} s, less than the {at_peak:.3g} s it needs at the peak of "
            f"{device.title}: bytes came from caches, or it ran elsewhere or in another precision; no PPP says that",
        )
    value = at_peak / time
    where = ledger.header.device or device.title
    source = f"computed: {ledger.header.model}, batch {ledger.header.batch}, {scope} {time:.4g} s on {where}"
    return Ppp(value, source, low=value, high=value)


def measured_ppp(ledger: Ledger, *, scope: Scope) -> float | None:
    """What PALEO's constant would have to be for a step on a GPU; `None`: no time, an unknown device, or faster than
    the peak by what caches gave."""
    device = recognise_name(ledger.header.device or "")
    if device is None or ledger.header.target == "cpu":
        return None
    try:
        return ppp_of_step(ledger, device, scope=scope).value
    except RooflightError:
        return None


def best_ppp(peak_times_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """The one PPP with the least mean absolute error over several steps: the best that the model can do on them.

    Only to judge the model by; a PPP that has seen the answers predicts nothing.
    """
    pairs = list(zip(peak_times_s, measured_s, strict=True))
    if not pairs or any(not (at_peak > 0 and time > 0) for at_peak, time in pairs):
        raise BadInput(
            "nothing-to-fit", "the best PPP needs at least one step with a time at the peak and a measured one, above 0"
        )
    # The error is piecewise linear in 1/PPP, so its least value lies at the own PPP of one of the steps.
    return min(
        (at_peak / time for at_peak, time in pairs),
        key=lambda ppp: sum(abs(at_peak / ppp / time - 1) for at_peak, time in pairs),
    )
