"""A measurement in words: how the step did, what was not measured, under which conditions, and from which source."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from rooflight import units
from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.measured.facts import Number
from rooflight.measured.step import (
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
from rooflight.metrics import CPU_FLOPS, CUDA_FLOPS, DRAM_BYTES, EXECUTED_FLOPS, QUANTITIES, TENSOR_FLOPS
from rooflight.units import peak_tera, per_second, seconds, whole_bytes, whole_count

_UNITS = {"tensor": "tensor cores", "cuda": "CUDA cores", "cpu": "the CPU"}


def conventions(measured: Measured) -> str:
    """What the columns that are shown mean."""
    sums = measured.total
    said = []
    if sums.get("kernel_time_s") is not None:
        said.append(
            "kernel time is the duration of an op's kernels, added up, in runs without counters, share is of it"
        )
    elif sums.get("host_time_s") is not None:
        said.append("CPU time is that of the call, share is of it")
    said.append("useful = matrix work by formula, 1 multiply-add = 2 FLOP")
    if sums.executed_flops is not None:
        said.append(
            "tensor, CUDA core, CPU FLOPs = what was executed, as counted, an FMA as 2; exec/useful is over the ops "
            "with matrix work; FLOP/s are executed FLOPs by the time of the ops"
        )
    else:
        said.append("FLOP/s are useful FLOPs by the time of the ops")
    used = utilisation(measured)
    if used is not None and used.hfu is not None:
        said.append(
            "HFU is the share of the wall time that the units would need for what they executed, each at its own peak, "
            "one after the other"
        )
    if sums.dram_bytes is not None:
        said.append(
            "DRAM bytes are counted: what one op writes may stay in the L2 cache and reach DRAM during a later one, so "
            "modules and the step are firmer than ops"
        )
    if any(check.spread is not None for check in self_check(measured)):
        said.append("spread of the range: how far three counts of the whole step lie apart")
    said.append("compulsory bytes: every distinct input read once, every output written once")
    if sums.get("growth_bytes") is not None:
        said.append(
            "growth: allocated after its last op minus before its first, for each stretch of the step that only its "
            "ops run in, so rows do not add up; workspace: taken and given back inside an op, the largest counts"
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
    for name, quantities in (("tensor cores", TENSOR_FLOPS), ("CUDA cores", CUDA_FLOPS), ("the CPU", CPU_FLOPS)):
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
    found = {name.rpartition("_")[2]: _whole(measured, name) for name in names}
    return " + ".join(f"{whole_count(value)} {precision}" for precision, value in found.items() if value)


def _whole(measured: Measured, name: str) -> Number | None:
    return measured.step[name].value if name in measured.step else measured.total.get(name)


def speed(measured: Measured) -> str:
    """`699 samples/s; MFU 3.1% of 494.5 TFLOP/s tf32, HFU 3.3% of each unit's own peak`."""
    found, used = rates(measured), utilisation(measured)
    said = []
    if found.samples_per_s is not None:
        said.append(f"{per_second(found.samples_per_s)} samples/s")
    if found.tokens_per_s is not None:
        said.append(f"{per_second(found.tokens_per_s)} tokens/s")
    if used is not None:
        causal = "" if used.mfu_causal is None else f" (causal half: {units.percent(used.mfu_causal)})"
        hfu = "" if used.hfu is None else f", HFU {units.percent(used.hfu)} of each unit's own peak"
        said.append(f"MFU {units.percent(used.mfu)}{causal} of {used.peaks_text}{hfu}")
    return "; ".join(said)


_STEADY = 3.0
"""Times that differ by more than this factor between runs of one step tell of the machine, not of the step."""


_CROWDED = 1.3
"""A load for each core beyond which steps on the CPU wait for others. The step's own threads make it up to 1."""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


_WAITED = 10
"""Per cent of the time in which threads wanted a core and had none. Alone on a machine it is below 1."""


def crowded(ledger: Ledger) -> str:
    """That other programs took the cores from this one; empty where they did not, or nobody knows."""
    waited = ledger.header.conditions.get("waited_for_a_core", "")
    if _number(waited.partition("%")[0]) < _WAITED:
        return ""
    return f"TIMES UNRELIABLE: others kept the cores busy, its threads waited {waited}: measure again when it is quiet"


def doubt(measured: Measured) -> str:
    """Said on top when the times cannot be trusted; empty when they can."""
    wall, ops = measured.step.get("wall_time_s"), measured.total.get("host_time_s")
    if wall is None:
        return ""
    if said := crowded(measured.ledger):
        return said
    load = measured.ledger.header.conditions.get("load_average") or measured.ledger.header.conditions.get(
        "host_load_average", ""
    )
    first = load.partition(",")[0]
    busy = f" (load {first})" if load else ""
    if wall.low and wall.high and wall.high > _STEADY * wall.low:
        return (
            f"TIMES UNRELIABLE: the plain step took {seconds(wall.low)} to {seconds(wall.high)}; something else kept "
            f"the machine busy{busy}: measure again when it is quiet"
        )
    cores = re.match(r"\d+", measured.ledger.header.conditions.get("cores", ""))
    # The load lags behind by a minute: it is asked only where the kernel does not say who waited.
    told = "waited_for_a_core" in measured.ledger.header.conditions
    if ops is not None and not told and cores and _number(first) > _CROWDED * int(cores[0]):
        return (
            f"TIMES UNRELIABLE: the machine was busy with other things (load {first} on {cores[0]} cores): measure "
            "again when it is quiet"
        )
    ops = None if ops is None else ops / len(measured.ranks)
    if ops is not None and ops > _STEADY / 2 * wall.value:
        return (
            f"TIMES UNRELIABLE: the ops took {seconds(ops)} one by one, and the plain step {seconds(wall.value)}; "
            f"something else kept the machine busy{busy}: measure again when it is quiet"
        )
    return ""


def headlines(measured: Measured) -> list[str]:
    """The result in a few lines."""
    lines = (doubt(measured), verdict(measured), counted(measured), speed(measured))
    return [line for line in lines if line]


def disagreement(measured: Measured) -> list[str]:
    """Why the ops move more bytes than the step, where they do."""
    found = {check.name: check for check in self_check(measured)}
    check = found.get("dram_bytes_written")
    if check is None or not check.whole_step or check.sum_of_ops <= 1.01 * check.whole_step:
        return []
    more = units.percent(check.sum_of_ops / check.whole_step - 1)
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
    share = units.percent(count / done.sum)
    return f"nvprof's flop_count_sp would show {units.exact(count)}, {share} of what was executed"


def coverage(measured: Measured) -> list[str]:
    """Which ops have no value of what others have; said even when there are none."""
    families = {
        "time": ("kernel_time_s", "host_time_s"), "executed FLOPs": EXECUTED_FLOPS, "DRAM bytes": DRAM_BYTES,
    }  # fmt: skip
    ran, lines, complete = len(measured.launched), [], []
    did = "compute" if measured.ledger.header.target == "cpu" else "launched something"
    for family, names in families.items():
        known = [name for name in names if name in measured.known]
        if not known:
            continue
        missing = measured.without(known)
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
    named = ((1, "one op"), (2, "several that were fused"), (0, "none that is known"))
    parts = [f"{measured.attributed[n] / whole:.1%} to {name}" for n, name in named if measured.attributed[n]]
    return f"the kernels' time belongs {', '.join(parts)}" if parts else ""


def conditions(ledger: Ledger) -> str:
    """Clocks, power and what else was running; empty for a trace without a device."""
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in ledger.header.conditions.items())


def provenance(measured: Measured) -> list[str]:
    """Where each number comes from: one line for every collector."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    ledger = measured.ledger
    rows = [row.quantities for row in ledger.measurements] + [kernel.quantities for kernel in ledger.kernels]
    for quantities in rows:
        for name, value in quantities.items():
            collector, _, how = value.origin.partition(": ")
            if how.startswith("not in use"):
                continue  # zeros that need no column either
            names = found[collector][how]
            if name in QUANTITIES and name not in names:
                names.append(name)
    lines = []
    for collector, ways in found.items():
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
