"""A measurement in words: how the step did, what was not measured, under which conditions, and from which source."""

from __future__ import annotations

from collections import Counter, defaultdict

from rooflight import formatting
from rooflight.formatting import peak_tera, per_second, seconds, whole_bytes, whole_count
from rooflight.ledger import Ledger
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, EXECUTED_FLOPS, QUANTITIES, TENSOR_FLOPS
from rooflight.reporting.sections.inferred_text import inferred_line
from rooflight.summary.facts import Number
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import (
    busy_s,
    busy_share,
    dram_bytes,
    executed,
    is_host_bound,
    rates,
    self_check,
    utilisation,
    wall_s,
)
from rooflight.summary.reliability import doubt

_UNITS = {"tensor": "tensor cores", "cuda": "CUDA cores"}


def conventions(measured: Measured) -> str:
    """What the columns that are shown mean."""
    sums = measured.total
    said = []
    if sums.get("kernel_time_s") is not None:
        said.append(
            "kernel time is the sum of the durations of an op's kernels, in runs without counters, and share is of it"
        )
    elif sums.get("host_time_s") is not None:
        said.append("CPU time is that of the op's call, and share is of it")
    said.append("useful = matrix work by formula, 1 multiply-add = 2 FLOP")
    if sums.executed_flops is not None:
        said.append(
            "tensor, CUDA core FLOPs = executed FLOPs, as counted, an FMA as 2; exec/useful is over the ops "
            "with matrix work; FLOP/s = executed FLOPs / time of the ops"
        )
    else:
        said.append("FLOP/s = useful FLOPs / time of the ops")
    used = utilisation(measured)
    if used is not None and used.hfu is not None:
        said.append(
            "HFU is the share of the wall time that the units would need for what they executed, each at its own peak, "
            "one after the other"
        )
    if sums.dram_bytes is not None:
        said.append(
            "DRAM bytes are counted: what one op writes may stay in the L2 cache and reach DRAM during a later one, "
            "so figures of modules and of the step are more reliable than those of ops"
        )
    if any(check.spread is not None for check in self_check(measured)):
        said.append("spread of the range: how much three counts of the whole step vary")
    said.append("compulsory bytes: every distinct input read once, every output written once")
    if sums.get("growth_bytes") is not None:
        said.append(
            "growth: allocated after its last op minus before its first, for each part of the step in which only "
            "its ops run, so rows do not add up; workspace: temporary memory of an op, freed before it ends; of "
            "several ops, the largest"
        )
    return "; ".join(said) + "."


def verdict(measured: Measured) -> str:
    """`22.9 ms a step; the GPU was busy for 5.13 ms and idle for 78% of the step: host-bound`; empty when unknown."""
    wall, busy, share = wall_s(measured), busy_s(measured), busy_share(measured)
    several = f" (the slowest of {len(measured.ranks)} ranks)" if len(measured.ranks) > 1 else ""
    said = [] if wall is None else [f"{seconds(wall)} a step{several}"]
    if busy is not None:
        said.append(f"the GPU was busy for {seconds(busy)}")
        if share is not None and is_host_bound(measured):
            said[-1] += f" and idle for {1 - share:.0%} of the step: host-bound"
        elif share is not None:
            said[-1] += f", {min(share, 1):.0%} of the step"
    return "; ".join(said)


def counted(measured: Measured) -> str:
    """Executed FLOPs by unit, and DRAM bytes; empty without counters."""
    parts = []
    for name, quantities in (("tensor cores", TENSOR_FLOPS), ("CUDA cores", CUDA_FLOPS)):
        if work := _by_precision(measured, quantities):
            parts.append(f"{work} on {name}")
    unknown = "" if executed(measured) is not None else "; the other units were not counted"
    said = [f"executed {' + '.join(parts)}{unknown}"] if parts else []
    if dram_bytes(measured) is not None:
        read, written = (_whole(measured, name) for name in DRAM_BYTES)
        said.append(f"DRAM {whole_bytes(read)} read + {whole_bytes(written)} written")
    return "; ".join(said)


def _by_precision(measured: Measured, names: tuple[str, ...]) -> str:
    """`186 G tf32 + 3.1 G bf16`; what is zero or unknown is left out."""
    flops = {name.rpartition("_")[2]: _whole(measured, name) for name in names}
    return " + ".join(f"{whole_count(value)} {precision}" for precision, value in flops.items() if value)


def _whole(measured: Measured, name: str) -> Number | None:
    return measured.step[name].value if name in measured.step else measured.total.get(name)


def speed(measured: Measured) -> str:
    """`699 samples/s; MFU 3.1% of 494.5 TFLOP/s tf32, HFU 3.3% of each unit's own peak`."""
    speeds, used = rates(measured), utilisation(measured)
    said = []
    if speeds.samples_per_s is not None:
        said.append(f"{per_second(speeds.samples_per_s)} samples/s")
    if speeds.tokens_per_s is not None:
        said.append(f"{per_second(speeds.tokens_per_s)} tokens/s")
    if used is not None:
        causal = "" if used.mfu_causal is None else f" (causal half: {formatting.percent(used.mfu_causal)})"
        hfu = "" if used.hfu is None else f", HFU {formatting.percent(used.hfu)} of each unit's own peak"
        said.append(f"MFU {formatting.percent(used.mfu)}{causal} of {used.peaks_text}{hfu}")
    return "; ".join(said)


def headlines(measured: Measured) -> list[str]:
    """The result in a few lines."""
    lines = (doubt(measured), verdict(measured), counted(measured), inferred_line(measured), speed(measured))
    return [line for line in lines if line]


def disagreement(measured: Measured) -> list[str]:
    """Why the ops move more bytes than the step, where they do."""
    check = next((check for check in self_check(measured) if check.name == "dram_bytes_written"), None)
    if check is None or not check.whole_step or check.sum_of_ops <= 1.01 * check.whole_step:
        return []
    more = formatting.percent(check.sum_of_ops / check.whole_step - 1)
    return [
        f"the ops write {more} more to DRAM than the step: counted one by one, with a pause after each, they meet the "
        "L2 cache in another state than in the running step"
    ]


def flop_count_line(measured: Measured) -> str:
    """What those see who count as nvprof did; empty where the tensor cores did nothing, or not all was counted."""
    done = executed(measured)
    if done is None or not any(done.values.get(name) for name in TENSOR_FLOPS):
        return ""
    count = done.values["cuda_flops_fp32"]
    share = formatting.percent(count / done.sum)
    return f"nvprof's flop_count_sp would show {formatting.exact(count)}, {share} of what was executed"


def coverage(measured: Measured) -> list[str]:
    """Which ops have no value of what others have; said even when there are none."""
    families = {
        "time": ("kernel_time_s", "host_time_s"),
        "executed FLOPs": EXECUTED_FLOPS,
        "DRAM bytes": DRAM_BYTES,
    }
    ran, lines, complete = len(measured.launched), [], []
    did = "compute" if measured.ledger.header.target == "cpu" else "launched something"
    for family, names in families.items():
        counted = [name for name in names if name in measured.known]
        if not counted:
            continue
        missing = measured.without(counted)
        if not missing:
            complete.append(family)
            continue
        named = Counter(op.name for op in missing).most_common(5)
        listed = ", ".join(f"{name} ({calls}×)" for name, calls in named)
        more = " and others" if sum(calls for _, calls in named) < len(missing) else ""
        lines.append(f"{family}: missing for {len(missing):,} of the {ran:,} ops that {did}: {listed}{more}")
    lines += disagreement(measured)
    if complete:
        lines.insert(0, f"{', '.join(complete)}: every one of the {ran:,} ops that {did} has a value")
    return lines


def attribution(measured: Measured) -> str:
    """How much of the kernels' time is known to belong to which op; empty without kernels."""
    whole = sum(measured.attributed.values())
    named = ((1, "one op"), (2, "several fused ops"), (0, "no known op"))
    parts = [f"{measured.attributed[n] / whole:.1%} to {name}" for n, name in named if measured.attributed[n]]
    return f"the kernels' time belongs {', '.join(parts)}" if parts else ""


def remarks(measured: Measured) -> list[str]:
    """What was not measured, or does not belong to one op, and what other tools would count."""
    lines = [*coverage(measured), flop_count_line(measured)]
    if measured.attributed[0] or measured.attributed[2]:
        lines.append(attribution(measured))
    return [line for line in lines if line]


def conditions(ledger: Ledger) -> str:
    """Clocks, power and what else was running; empty for a trace without a device."""
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in ledger.header.conditions.items())


def provenance(measured: Measured) -> list[str]:
    """Where each number comes from: one line for every collector."""
    origins: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    ledger = measured.ledger
    rows = [row.quantities for row in ledger.measurements] + [kernel.quantities for kernel in ledger.kernels]
    for name, origin in dict.fromkeys((name, value.origin) for row in rows for name, value in row.items()):
        collector, _, how = origin.partition(": ")
        if how.startswith("not in use"):
            continue  # zeros that need no column either
        names = origins[collector][how]
        if name in QUANTITIES:
            names.append(name)
    lines = []
    for collector, ways in origins.items():
        parts = [f"{', '.join(names)} = {how}" if how else ", ".join(names) for how, names in ways.items() if names]
        lines.append(f"{collector}: {'; '.join(parts)}" if parts else collector)
    if (used := utilisation(measured)) is not None:
        peaks: dict[str, list[str]] = defaultdict(list)
        for precision, roof in used.peaks.items():
            peaks[roof.source].append(f"{peak_tera(roof.flops_per_s)} {precision} (MFU)")
        for name, roof in used.roofs.items():
            unit, _, precision = name.partition("_flops_")
            peaks[roof.source].append(f"{peak_tera(roof.flops_per_s)} {precision} on {_UNITS[unit]}")
        lines += [f"{source}: the peaks of {', '.join(roofs)}" for source, roofs in peaks.items()]
    return lines
