"""The numbers of a row: out of a ledger, a prediction, a measurement; named as `cell.QUANTITIES` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rooflight import summary
from rooflight.analysis.cause import account
from rooflight.analysis.flop_causes import explain_flops
from rooflight.analysis.verdicts import Judge
from rooflight.errors import RooflightError
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, Note, is_inside, total
from rooflight.metrics import FIT_WORDS, bound, intensity, percent_of_roof, ratio
from rooflight.prediction.paleo import measured_ppp
from rooflight.study.cell import QUANTITIES, Side
from rooflight.summary import measured_rows, measured_step
from rooflight.summary.functions import row_names
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import MeasuredRow
from rooflight.summary.sums import OpGroup, Sums

if TYPE_CHECKING:
    from rooflight.prediction.result import Prediction

Number = int | float
Values = dict[str, Number]
LEAST_SHARE = 0.001
"""Layer types with less of the FLOPs have no share of their own."""


def estimated(ledger: Ledger, layers: Sequence[str] = ()) -> Values:
    """What the mathematics says of the step and of some of its layers."""
    sums = total(ledger.ops)
    numbers: dict[str, Number | None] = {**_by_metric("estimated", sums), "params": summary.params(ledger)}
    for row in summary.rows(ledger, "type"):
        if sums.flops and row.share is not None and row.share >= LEAST_SHARE and row.name.isidentifier():
            numbers[f"share.{row.name}"] = row.share
    values = _named(numbers, "estimated")
    for row in summary.rows(ledger, "module") if layers else ():
        if row.name in layers:
            sizes = _sizes(ledger, row.name)
            values |= _named({**_by_metric("estimated", row.totals, row), **sizes}, "estimated", row.name)
    return values


def _sizes(ledger: Ledger, layer: str) -> dict[str, Number | None]:
    """Memory of one layer: what it holds, and what its ops make."""
    held = sum(module.param_bytes for module in ledger.modules if is_inside(module.path, layer))
    ours = {op.index for op, name in zip(ledger.ops, row_names(ledger), strict=True) if is_inside(name, layer)}
    made = [storage for storage in ledger.storages if storage.born in ours and not storage.host]
    output = sum(storage.nbytes for storage in made) if ledger.storages else None
    return {"param_bytes": held, "output": output, "footprint": None if output is None else held + output}


def missing_layers(ledger: Ledger, layers: Sequence[str]) -> tuple[Note, ...]:
    """What must be said of layers that were asked for by a name that this model does not have."""
    there = {module.path for module in ledger.modules} | set(row_names(ledger))
    return tuple(
        Note("no-such-layer", f"{ledger.header.model} has no layer {layer}") for layer in layers if layer not in there
    )


def predicted(
    prediction: Prediction, traced: Ledger | None = None, layers: Sequence[str] = ()
) -> tuple[Values, dict[str, str]]:
    """The numbers of a prediction, and what it says in words. `traced`: the same ops, at any batch, to tell layers."""
    numbers = _by_metric("predicted", prediction, prediction.memory)
    intervals = {
        "time": prediction.time_interval_s,
        "gpu_busy": prediction.gpu_time_interval_s,
        "host": prediction.host_time_interval_s,
    }
    for name, interval in intervals.items():
        if interval is not None:
            numbers |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    if prediction.many is not None:  # these are of one GPU alone
        numbers |= {"percent_of_roof": None, "kernels": None}
    values = _named(numbers, "predicted")
    facts = {"device.predicted": prediction.device, "tier": prediction.tier}
    if prediction.many is None:  # as percent of roof
        facts["bound.predicted"] = prediction.bound
    if prediction.fit is not None:
        facts["fits"] = FIT_WORDS[prediction.fit]
    if traced is not None and len(traced.ops) == len(prediction.op_times_s):
        names = row_names(traced) if layers else []
        for layer in layers:
            inside = [place for place, name in enumerate(names) if is_inside(name, layer)]
            if inside:
                values |= _named(_predicted_layer(prediction, inside), "predicted", layer)
                facts[f"{layer}/bound.predicted"] = _predicted_bound(prediction, inside)
    return values, facts


def _predicted_layer(prediction: Prediction, ops: Sequence[int]) -> dict[str, Number | None]:
    """The time of these ops alone, how near it is to their roofs, and the most that one of them borrows."""
    time_s = sum(prediction.op_times_s[op] for op in ops)
    least = [max(prediction.op_least_s[op]) for op in ops] if prediction.op_least_s else []
    course = None if prediction.memory is None else prediction.memory.timeline
    # A category in which nothing ever is has no course.
    borrowed = () if course is None else course.categories.get("workspace", (0,) * len(course.allocated))
    return {
        "kernel_time": time_s,
        "percent_of_roof": percent_of_roof(sum(least), time_s) if least else None,
        "workspace": max(borrowed[op] for op in ops) if len(borrowed) == len(prediction.op_times_s) else None,
    }


def _predicted_bound(prediction: Prediction, ops: Sequence[int]) -> str:
    """The side with more of their time, as of a step; the host is the step's alone."""
    sides = {True: 0.0, False: 0.0}
    for op in ops:
        compute_s, memory_s = prediction.op_least_s[op]
        if compute_s or memory_s:
            sides[memory_s > compute_s] += prediction.op_times_s[op]
    return bound(sides[False], sides[True])


def measured(ledger: Ledger, layers: Sequence[str] = ()) -> tuple[Values, dict[str, str]]:
    """The numbers of a measurement, and what it says in words."""
    step = Measured(ledger)
    executed, moved = measured_step.executed_flops(step), measured_step.dram_bytes(step)
    rates, used = measured_step.rates(step), measured_step.utilisation(step)
    judge = _judge(ledger)
    verdict = None if judge is None else judge.step()
    values = _named(
        {
            **_counted(step.total, executed, moved),
            "time": measured_step.wall_s(step),
            "gpu_busy": measured_step.busy_s(step),
            "throughput": rates.samples_per_s,
            "tokens": rates.tokens_per_s,
            "memory": _of_step(step, "peak_allocated_bytes"),
            "reserved": _of_step(step, "peak_reserved_bytes"),
            "mfu": None if used is None else used.mfu,
            "hfu": None if used is None else used.hfu,
            "ppp": measured_ppp(ledger, scope="wall"),
            "percent_of_roof": None if verdict is None else verdict.percent_of_roof,
            "gain": None if verdict is None else verdict.gain,
            "unexplained": _unexplained(ledger),
        },
        "measured",
    )
    if len(step.ranks) > 1:  # sums over all GPUs, beside times and memory of one
        values = {name: value for name, value in values.items() if name.partition(".")[0] not in _OF_ALL_RANKS}
    bounds = {"bound.measured": "" if verdict is None else verdict.bound or ""}
    for row in measured_rows.rows(step) if layers else ():
        if row.name in layers:
            row = _of_one_rank(step, row)
            placed = None if judge is None else judge.of([row], advised=False)[0]
            counted = _counted(row.sums, row.sums.executed_flops, row.sums.dram_bytes)
            of_roof = None if placed is None else placed.percent_of_roof
            numbers = {**counted, **_measured_sizes(ledger, row), "percent_of_roof": of_roof}
            values |= _named(numbers, "measured", row.name)
            bounds[f"{row.name}/bound.measured"] = "" if placed is None else placed.bound or ""
    facts = {"device": ledger.header.device or "", "torch": ledger.header.torch or "", **bounds}
    return values, {name: text for name, text in facts.items() if text}


_OF_ALL_RANKS = ("flops", "executed", "bytes", "kernel_time", "kernels")


def _of_one_rank(step: Measured, row: MeasuredRow) -> MeasuredRow:
    """The row as the first process has it: what is estimated and predicted of a layer is one replica's."""
    if len(step.ranks) == 1:
        return row
    ours = {op.index for op in step.ledger.ops if op.rank == step.ranks[0]}
    facts = tuple(fact for fact in row.group.facts if ours.issuperset(fact.ops))
    group = OpGroup(tuple(index for index in row.group.ops if index in ours), facts)
    sums = step.sums(group)
    return replace(row, group=group, own=group, sums=sums, own_sums=sums)


def _measured_sizes(ledger: Ledger, row: MeasuredRow) -> dict[str, Number | None]:
    """Memory of one layer as the allocator saw it, and its time, which on a CPU is that of its ops."""
    output, borrowed = row.sums.get("output_bytes"), row.sums.get("workspace_bytes")
    footprint: Number | None = None
    if output is not None and borrowed is not None:
        footprint = (_sizes(ledger, row.name)["param_bytes"] or 0) + output + borrowed
    return {
        "kernel_time": row.sums.time_s,
        "output": output,
        "workspace": borrowed,
        "growth": row.sums.get("growth_bytes"),
        "footprint": footprint,
    }


def _counted(sums: Sums, executed: Number | None, moved: Number | None) -> dict[str, Number | None]:
    """What counters and kernels say of a step or a layer."""
    return {
        "flops": sums.matrix_executed,
        "executed": executed,
        "bytes": moved,
        "intensity": intensity(executed, moved),
        "kernel_time": sums.get("kernel_time_s"),
        "kernels": sums.get("kernels"),
    }


def _unexplained(ledger: Ledger) -> float | None:
    """Op by op, without signs: what is too much in one op does not make up for what is missing in another."""
    rows = explain_flops(ledger)
    return ratio(account(rows).unexplained_gross, account(rows).asked) if rows else None


def _judge(ledger: Ledger) -> Judge | None:
    """As `rooflight compare` judges it; nothing where the device is not in the database."""
    if recognise_name(ledger.header.device) is None:
        return None
    try:
        judge = Judge(ledger)
        judge.step()
    except RooflightError:
        return None
    return judge


def _by_metric(side: Side, *sources: object) -> dict[str, Number | None]:
    """The quantities of a side that one of these has under the name of their metric."""
    return {
        name: getattr(source, metric)
        for name, quantity in QUANTITIES.items()
        for source in sources
        if (metric := quantity.sides.get(side)) is not None and hasattr(source, metric)
    }


def _of_step(step: Measured, name: str) -> Number | None:
    value = step.step.get(name)
    return None if value is None else value.value


def _named(values: Mapping[str, Number | None], side: Side, layer: str = "") -> Values:
    """Unknown ones are left away."""
    prefix = f"{layer}/" if layer else ""
    order = dict.fromkeys((*_ORDER[side], *values))
    return {f"{prefix}{name}.{side}": value for name in order if (value := values.get(name)) is not None}


_ORDER: dict[Side, tuple[str, ...]] = {
    "estimated": ("flops", "macs", "other_flops", "bytes", "intensity", "params", "param_bytes", "output", "footprint"),
    "predicted": ("time", "time_low", "time_high", "gpu_busy", "throughput", "tokens", "mfu", "percent_of_roof", "gain",
                  "kernels", "memory", "reserved", "workspace"),
    "measured": ("flops", "executed", "bytes", "intensity", "time", "gpu_busy", "kernel_time", "throughput", "tokens",
                 "memory", "reserved", "output", "workspace", "growth", "footprint", "mfu", "hfu", "percent_of_roof",
                 "gain", "kernels", "unexplained"),
}  # fmt: skip
"""Of the columns of a study's CSV and data frame; what else there is, and what `rates` adds, comes behind."""
