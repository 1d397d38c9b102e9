"""A device's figures: peaks, bandwidths, ridges and links, each with its source, and what else a stated one may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, JudgedClaim, right, wrong
from rooflight.analysis.claims.ledger_query import find_device, other_cards
from rooflight.analysis.claims.matching import states
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity import StatedRun, link_claim
from rooflight.analysis.sanity import judge as judge_run
from rooflight.analysis.sanity.checks import SAME
from rooflight.hardware import devices
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, ridge, roofs_of, unit_name

FIGURES = ("peak", "bandwidth", "ridge", "gpu_link", "host_link")
_SLIPS = ("peak-of-another-precision", "peak-of-two", "peak-off-by-ten", "link-for-memory", "bandwidth-off-by-ten",
          "bits-for-bytes", "board-for-die")  # fmt: skip


def figure_of(claim: Claim) -> JudgedClaim:
    """The verdict on a row of a device's figure."""
    assert isinstance(claim.stated, Amount)
    figures = figures_of(claim)
    for answer in figures:
        if states(claim.stated, answer):
            return right(claim, answer)
    return wrong(claim, figures[0], *_slips(claim, float(claim.stated.value)))


def named_device(claim: Claim) -> tuple[int, Device, tuple[Device, ...]]:
    """How many of which device a row is of, and the others that its name may mean: `A100` alone is any of them, and
    `2x K80` is a board, where there is one."""
    text = claim.device or claim.layer
    if not text:
        raise CannotTell(f"{claim.quantity} of which device? The row names none", "the column device")
    count, device = find_device(text)
    if count == 2 and (board := _board_of(device)) is not None:
        return 1, board, ()
    return count, device, other_cards(text)


def _board_of(device: Device) -> Device | None:
    name = f"{device.name}-board"
    return devices.find(name) if name in devices.names() else None


def figures_of(claim: Claim) -> list[Answer]:
    """The figure, and after it those that the row may mean as well: of another unit, of another board of that name."""
    count, device, others = named_device(claim)
    # Whoever names a card of two dies by its maker's name states both.
    whole = _board_of(device) if count == 1 and device.vendor == "AMD" else None
    alike_ones = (device, *others, *((whole,) if whole is not None else ()))
    figures = [answer for alike in alike_ones for answer in _figures_of(alike, claim.name, claim.precision, count)]
    if not figures:
        raise CannotTell(f"{device.title} has no such figure", "rooflight list devices")
    return figures


def _figures_of(device: Device, name: str, precision: str, count: int) -> list[Answer]:
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


def _slips(claim: Claim, value: float) -> list[Finding]:
    """What else the stated value is a figure of."""
    name, device, precision = claim.name, named_device(claim)[1], claim.precision or "fp32"
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
    findings = [replace(slip, value=value) for slip in judge_run(given).findings if slip.code in _SLIPS]
    if name == "peak":
        findings = [*_sparse(device, precision, value), *findings]
    # That a board is two dies is said beside a figure that is wrong, not instead of it.
    if any(finding.code != "board-for-die" for finding in findings):
        return findings
    return _of_others(device, name, precision, value)


def _sparse(device: Device, precision: str, value: float) -> list[Finding]:
    """Twice the peak: what datasheets give for matrices of which half is zero."""
    roofs = [roof for roof in roofs_of(device).compute if roof.precision == precision and roof.unit == "tensor"]
    if any(abs(value / (2 * roof.flops_per_s) - 1) <= SAME for roof in roofs):
        return [Finding("peak-with-sparsity", "twice the peak: with sparsity, where half of a matrix is zero", value)]
    return []


def _of_others(device: Device, name: str, precision: str, value: float) -> list[Finding]:
    """The same figure of a device with a name that begins alike."""
    family = device.name.partition("-")[0]
    for other in devices.known():
        if other is not device and other.name.partition("-")[0] == family:
            for answer in _figures_of(other, name, precision, 1):
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


# Peaks that somebody may have divided by.

_TWO_DIES = "the peak of a board of two dies, and one process runs on one of them"
_FP32 = ("fp32", "tf32")


@dataclass(frozen=True)
class UsedPeak:
    """A peak of a device, and what is wrong with dividing by it; `is_wrong`: more than another convention."""

    flops_per_s: float
    text: str
    flaw: Finding | None = None
    is_wrong: bool = True


def used_peaks(claim: Claim, precision: str) -> Iterator[UsedPeak]:
    """Of the device that a row names, in its precision or the one given; then those that it may be taken for: of a
    board's two dies, of another precision. A row of a board is one of a die, unless it says that both work."""
    count, device, others = named_device(claim)
    is_board = device.name.endswith("-board") and count == 1 and find_device(claim.device)[0] == 1
    board = _board_of(device)
    if is_board:
        board, device = device, devices.find(device.name.removesuffix("-board"))
    asked = (claim.precision,) if claim.precision else _FP32 if precision in _FP32 else (precision,)
    for card in (device, *others):
        yield from (_used(roof, card, count) for roof in roofs_of(card).compute if roof.precision in asked)
    if board is not None:
        flaw = Finding("board-for-die" if is_board else "peak-of-two", _TWO_DIES)
        for roof in roofs_of(board).compute:
            if roof.precision in asked:
                yield replace(_used(roof, board, 1), flaw=flaw, is_wrong=not is_board)
    for roof in roofs_of(device).compute:
        if roof.precision not in asked and not roof.precision.startswith("int"):
            text = f"the {roof.precision} peak of {device.title} for {asked[0]} work"
            yield replace(_used(roof, device, count), flaw=Finding("peak-of-another-precision", text))


def _used(roof: Roof, device: Device, count: int) -> UsedPeak:
    times = f"{count} × " if count > 1 else ""
    text = f"{times}{roof.flops_per_s / 1e12:g} TFLOP/s ({_roof_text(device, roof)})"
    return UsedPeak(count * roof.flops_per_s, text)


def of_a_board(claim: Claim) -> Finding | None:
    """Is a peak that a row states that of a board, which says nothing of both of its dies at work?"""
    try:
        count, device = find_device(claim.device)
    except CannotTell:
        return None
    is_board = device.name.endswith("-board") and count == 1
    return Finding("board-for-die", _TWO_DIES) if is_board else None
