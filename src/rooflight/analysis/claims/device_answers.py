"""What a device's file answers: peaks, bandwidths, ridges and links, with the source of each figure."""

from __future__ import annotations

from dataclasses import replace

from rooflight.analysis.claims.claim import Claim
from rooflight.analysis.claims.ledger_query import find_device
from rooflight.analysis.claims.result import Answer, CannotTell
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity import StatedRun, judge, link_claim
from rooflight.analysis.sanity.checks import SAME
from rooflight.hardware import devices
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, ridge, roofs_of, unit_name

FIGURES = ("peak", "bandwidth", "ridge", "gpu_link", "host_link")
_SLIPS = ("peak-of-another-precision", "peak-of-two", "peak-off-by-ten", "link-for-memory", "bandwidth-off-by-ten",
          "bits-for-bytes", "board-for-die")  # fmt: skip


def _named(claim: Claim) -> tuple[int, Device, tuple[Device, ...]]:
    """How many of which device a row is of, and the others that its name may mean: `A100` alone is any of them, and
    `2x K80` is a board, where there is one."""
    text = claim.device or claim.layer
    if not text:
        raise CannotTell(f"{claim.quantity} of which device? The row names none", "the column device")
    count, device = find_device(text)
    plain = text.lower().split()[-1] if count > 1 else text.lower()
    if count == 2 and f"{device.name}-board" in devices.names():
        return 1, devices.find(f"{device.name}-board"), ()
    if plain in devices.names():
        return count, device, ()
    alike = (other for other in devices.known() if other.name.startswith(f"{plain}-") and other is not device)
    return count, device, tuple(other for other in alike if not other.name.endswith("-board"))


def answers(claim: Claim) -> list[Answer]:
    """The figure, and after it those that the row may mean as well: of another unit, of another board of that name."""
    count, device, others = _named(claim)
    figures = [answer for alike in (device, *others) for answer in _answers(alike, claim.name, claim.precision, count)]
    if not figures:
        raise CannotTell(f"{device.title} has no such figure", "rooflight list devices")
    return figures


def _answers(device: Device, name: str, precision: str, count: int) -> list[Answer]:
    roofs = roofs_of(device)
    slope = roofs.slope()
    if name == "bandwidth":
        return [_figure(count * slope.bytes_per_s, f"memory of {device.title}", slope.source)]
    if name in ("gpu_link", "host_link"):
        return _links(device, name)
    wanted = [roof for roof in roofs.compute if roof.precision == (precision or "fp32")]
    if not precision:
        wanted += [roof for roof in roofs.compute if roof not in wanted]
    # Matrix work runs on tensor cores where they have its precision: that roof is named first.
    wanted.sort(key=lambda roof: roof.unit != "tensor" if precision else False)
    if name == "peak":
        return [_figure(count * roof.flops_per_s, _roof_text(device, roof), roof.source) for roof in wanted]
    by = f"/ {slope.bytes_per_s / 1e9:g} GB/s"
    texts = (f"{roof.flops_per_s / 1e12:g} TFLOP/s ({_roof_text(device, roof)}) {by}" for roof in wanted)
    return [_figure(ridge(roof, slope), text, roof.source) for roof, text in zip(wanted, texts, strict=True)]


def _links(device: Device, name: str) -> list[Answer]:
    return [
        _figure(ways * figure.value, f"{link} of {device.title}, {text}", figure.source)
        for link, figure in device.links_bytes_per_s.items()
        if (link in ("pcie", "nvlink-c2c")) == (name == "host_link")
        for ways, text in ((1, "one direction"), (2, "both directions together"))
    ]


def _roof_text(device: Device, roof: Roof) -> str:
    return f"{roof.precision} on the {unit_name(device, roof.unit)} of {device.title}"


def _figure(value: float, how: str, source: str) -> Answer:
    """Sources round the same figure differently."""
    return Answer(value, how, source, value * (1 - SAME), value * (1 + SAME))


def slips(claim: Claim, value: float) -> list[Finding]:
    """What else the stated value is a figure of."""
    name, device, precision = claim.name, _named(claim)[1], claim.precision or "fp32"
    if name in ("gpu_link", "host_link"):
        slip = link_claim(device, value, "gpu-gpu" if name == "gpu_link" else "gpu-cpu")
        return [] if slip is None else [replace(slip, value=value)]
    if name not in ("peak", "bandwidth"):
        return _ridges(device, precision, value)
    given = StatedRun(
        device=device,
        precision=precision,
        peak_flops_per_s=value if name == "peak" else None,
        bandwidth_bytes_per_s=value if name == "bandwidth" else None,
    )
    findings = [replace(slip, value=value) for slip in judge(given).findings if slip.code in _SLIPS]
    # That a board is two dies is said beside a figure that is wrong, not instead of it.
    if any(finding.code != "board-for-die" for finding in findings):
        return findings
    return _of_others(device, name, precision, value)


def _of_others(device: Device, name: str, precision: str, value: float) -> list[Finding]:
    """The same figure of a device with a name that begins alike."""
    family = device.name.partition("-")[0]
    for other in devices.known():
        if other is not device and other.name.partition("-")[0] == family:
            for answer in _answers(other, name, precision, 1):
                assert isinstance(answer.value, float)
                if abs(value / answer.value - 1) <= SAME:
                    return [Finding("another-device", f"that is the figure of {other.title}", value)]
    return []


def _ridges(device: Device, precision: str, value: float) -> list[Finding]:
    roofs = roofs_of(device)
    for roof in roofs.compute:
        if roof.precision != precision and abs(value / ridge(roof, roofs.slope()) - 1) <= SAME:
            text = f"that is the ridge of {_roof_text(device, roof)}, not of {precision} work"
            return [Finding("peak-of-another-precision", text, value)]
    return []
