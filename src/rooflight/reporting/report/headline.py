"""The few figures that a reader wants first: what it costs, how long, what bounds it, what fits, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rooflight import summary, units
from rooflight.errors import RooflightError
from rooflight.ledger import total
from rooflight.measured.step import busy_s, rates, utilisation, wall_s
from rooflight.metrics import ONCE_IT_FITS, fit_text, gain_text, percent_text, text
from rooflight.prediction.result import Prediction
from rooflight.reporting.document import Fact
from rooflight.reporting.measure_text import doubt
from rooflight.reporting.report.told import Told
from rooflight.reporting.verdict_text import far_text
from rooflight.units import per_second, quotient, seconds, whole_bytes, whole_count


def facts_of(told: Told) -> Iterator[Fact]:
    """Those that are known; what cannot be had is left out."""
    for part in (_work, _measured, _predicted_time, _bound, _memory, _to_do):
        try:
            yield from part(told)
        except RooflightError:
            continue  # its section says why


def _work(told: Told) -> Iterator[Fact]:
    """What the mathematics asks for, as far as formulas tell."""
    ledger = told.ledger
    if not ledger.ops:
        return
    sums = total(ledger.ops)
    unknown = sum(entry.calls for entry in sums.uncounted)
    ranks = len({op.rank for op in ledger.ops})
    label = "useful FLOPs of a step" + (f", of {ranks} ranks together" if ranks > 1 else "")
    if all(op.cost is None for op in ledger.ops):
        yield Fact(label, "–", "no op of it has a formula")
        return
    parts = [f"{units.count(sums.macs)} MACs"]
    parts += [f"{units.count(summary.params(ledger))} parameters"] if ledger.modules else []
    parts.append(f"{units.bytes_(sums.bytes)} moved at least")
    parts += [f"{unknown:,} ops without a formula are not in it"] if unknown else []
    yield Fact(label, f"{'≥ ' if unknown else ''}{units.count(sums.flops)}", " · ".join(parts))


def _measured(told: Told) -> Iterator[Fact]:
    if not told.is_measured:
        return
    measured = told.measured
    wall, busy = wall_s(measured), busy_s(measured)
    used, speed = utilisation(measured), rates(measured)
    where = told.ledger.header.device or told.ledger.header.target
    if wall is not None:
        parts = [where]
        parts += [f"GPU busy {seconds(busy)}"] if busy is not None else []
        parts += [f"{per_second(speed.samples_per_s)} samples/s"] if speed.samples_per_s is not None else []
        parts += [f"MFU {units.percent(used.mfu)}"] if used is not None else []
        doubtful = " (unreliable, see below)" if doubt(measured) else ""
        yield Fact(f"time of a step, {measured.origin}{doubtful}", seconds(wall), " · ".join(parts))
    sums = measured.total
    if sums.executed_flops is not None:
        over = sums.executed_per_useful
        useful = total(told.ledger.ops).flops
        parts = [f"{quotient(sums.executed_flops / useful)} × the useful"] if useful else []
        parts += [f"{quotient(over)} × in ops with matrix work"] if over is not None else []
        parts += [f"DRAM {whole_bytes(sums.dram_bytes)}"] if sums.dram_bytes is not None else []
        yield Fact("executed FLOPs, counted", whole_count(sums.executed_flops), " · ".join(parts))


def _own_prediction(told: Told) -> Prediction | None:
    found = told.outlook.devices.found
    return found[0] if found is not None and len(found) else None


def _predicted_time(told: Told) -> Iterator[Fact]:
    one = None if told.is_measured else _own_prediction(told)
    if one is None:
        return
    from rooflight.reporting.predict_tables import between

    yield Fact(
        f"time of a step, predicted on {one.device}", seconds(one.time_s),
        f"90% interval {between(one.time_interval_s)} · {per_second(one.throughput)} samples/s · "
        f"MFU {text('mfu', one.mfu)} · {text('intensity', one.intensity)} FLOP/byte · {one.tier}",
    )  # fmt: skip


def _bound(told: Told) -> Iterator[Fact]:
    step = told.roofed.step()
    if step.bound is None:
        return
    parts = []
    if step.busy_share is not None:
        parts.append(f"the GPU is busy {min(step.busy_share, 1):.0%} of the time")
    if step.percent_of_roof is not None:
        parts.append(f"{percent_text(step.percent_of_roof)} of the attainable roof while it works")
    parts += [far_text(step)] if step.far else []
    yield Fact(f"bound by{_there(told)}", step.bound, " · ".join(parts))


def _there(told: Told) -> str:
    """Where a verdict is not of the run itself."""
    step = told.roofed.step()
    return f", predicted on {step.device}" if step.times == "predicted" else ""


def _memory(told: Told) -> Iterator[Fact]:
    peak = told.measured.step.get("peak_allocated_bytes") if told.is_measured else None
    found = told.outlook.devices.found
    fits = [one for one in found or () if one.memory is not None]
    said = [f"{one.device}: {fit_text(one.fit)}" for one in fits]
    own = fits[0].memory if fits else None
    if peak is not None and told.ledger.header.target != "cpu":
        reserved = told.measured.step.get("peak_reserved_bytes")
        parts = [f"{whole_bytes(reserved.value)} reserved"] if reserved is not None else []
        yield Fact(f"memory at the peak, {told.measured.origin}", whole_bytes(peak.value), " · ".join([*parts, *said]))
    elif own is not None:
        yield Fact(f"memory at the peak, predicted on {fits[0].device}", whole_bytes(own.peak_allocated_bytes),
                   " · ".join([f"{whole_bytes(own.device_bytes)} in use on the device", *said]))  # fmt: skip


def _to_do(told: Told) -> Iterator[Fact]:
    step = told.roofed.step()
    if not step.advice:
        return
    best = step.advice[0]
    after = best.changed_kernel_time_s if best.time_s is None else best.time_s
    before = best.kernel_time_s if best.time_s is None else best.wall_time_s
    detail = f"{seconds(after)} predicted, instead of {seconds(before)} {step.times}"
    first = ONCE_IT_FITS if step.fit == "does not fit" else ""
    yield Fact(f"what would help most{_there(told)}{first}", best.how, f"{gain_text(best.gain)} throughput · {detail}")
