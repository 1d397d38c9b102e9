"""Predictions as a document, and as the JSON that programs read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rooflight import formatting, metrics
from rooflight.formatting import peak_tera, seconds
from rooflight.hardware.device import Device, Figure
from rooflight.ledger import Header
from rooflight.metrics import ONCE_IT_FITS, WORTH, busy_share, fit_text, percent_text
from rooflight.prediction.cluster.combined import HOST_SHARE
from rooflight.prediction.resolve_devices import DOES_NOT_FIT
from rooflight.prediction.result import ClusterPrediction, Prediction, Predictions, SizeLimit
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.sections import predict_memory_tables as memory_tables
from rooflight.reporting.sections import predict_tables as tables
from rooflight.reporting.sections.ledger_documents import in_precision, step_parts
from rooflight.reporting.table import Table


def predict_data(
    predictions: Predictions,
    *,
    epochs: int | None = None,
    dataset_size: int | None = None,
    price: float | None = None,
    op_times: bool = False,
) -> dict[str, Any]:
    """`op_times`: the seconds of every op too, which are many."""
    rows = []
    for prediction in predictions:
        row = _row(prediction, op_times=op_times)
        if epochs is not None and dataset_size is not None:
            run = prediction.run(epochs, dataset_size, price, accumulate=predictions.header.accumulate)
            row["run"] = msgspec.to_builtins(run)
        if price is not None:
            row["price_per_hour"] = price
            row["cost_of_million_samples"] = prediction.cost_of_samples(10**6, price)
        rows.append(row)
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(predictions.header)),
        "predictions": rows,
        "devices": [msgspec.to_builtins(device) for device in predictions.devices],
        "calibrations": predictions.calibrations,
        **({"limits": [_limit(limit) for limit in predictions.limits]} if predictions.limits else {}),
        **({"savings": msgspec.to_builtins(predictions.savings)} if predictions.savings else {}),
        "notes": list(predictions.notes),
        "conventions": conventions(predictions),
    }


def _limit(limit: SizeLimit) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(limit)
    if limit.memory is not None:
        fields["memory"]["device_bytes"] = limit.memory.device_bytes
    return fields


def _row(prediction: Prediction, *, op_times: bool) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(prediction)
    del row["op_least_s"]
    if not op_times:
        del row["op_times_s"]
    for name in ("roofline", "many", "max_batch", "max_seq", "measured_time_s", "measured_gpu_time_s"):
        if row[name] is None:
            del row[name]
    memory = prediction.memory
    if memory is not None:
        # The numbers that scripts ask for most stand in the row itself.
        asked_most = ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "fits", "fit")
        row |= {name: getattr(memory, name) for name in asked_most}
        row["memory"] |= {"device_bytes": memory.device_bytes, "fragmentation": memory.fragmentation}
        if memory.timeline is None:
            del row["memory"]["timeline"]
    # By their full names, beside the short ones.
    return row | {name: getattr(prediction, name) for name in ("gpus", "wall_time_s", "gpu_busy_s", "gain")}


DETAILED = 12
"""With more predictions than this, none of them is taken apart."""
_SOURCED = 1
"""Of so many devices the figures are named with their sources; of more, it is said where to find them."""

_LISTED = 5
"""Batches that the headline names one by one."""
_TIERS = {
    "calibrated": "calibrated: every op is timed as the kernels it launches, by interpolation between micro-benchmarks "
    "of this device",
    "partial": "partial: as transferred, each op corrected by what the given times say of its like on this device",
    "published": "published: as transferred, each op corrected by what others timed of its like on this GPU and "
    "published",
    "transferred": "transferred: as calibrated, but with micro-benchmarks of another device; what its roofs explain of "
    "a time is scaled by sustained FLOP/s and bandwidth, the rest by multiprocessors and clock",
    "guessed": "guessed: matrix work in a precision without micro-benchmarks, at the efficiency of another one and the "
    "peak of its own",
    "spec": "spec: read + compute + write of every op over the data sheet's figures and one constant (PALEO); no "
    "kernels, no host",
}
_OF_GPUS = ("GPU-busy is the time in which kernels run", "host-bound: the GPU works for less than 80% of the time")
"""What is explained only where there is a GPU: a CPU is its own host."""
_EXPLAINED = (
    "time/step is the wall time of one step in a running loop, set by the slower of host and device",
    "± is a 90% interval, by its farther side where it is narrow (spec: between the bounds of its PPP)",
    _OF_GPUS[0],
    "MFU is useful matrix FLOPs (1 multiply-add = 2 FLOP) over what the units they run on could do in that time",
    "% of roof is the least time that peaks and bandwidth allow every op, over the time predicted; above 100%, a "
    "cache holds what it reads",
    _OF_GPUS[1],
    "memory: allocated is what torch's allocator gives out, reserved what it holds on the device, in the first steps "
    "of a process that has just built the model; bytes are powers of 1,000",
)
CONVENTIONS = "; ".join(_EXPLAINED)
CPU_CONVENTIONS = "; ".join(part for part in _EXPLAINED if part not in _OF_GPUS)
MANY_CONVENTIONS = (
    "the batch is that of one replica (one data parallel rank); computing is one GPU's work without communication "
    "and pipeline bubbles; efficiency is against one GPU alone with the same batch, in a curve against its first "
    "row; PALEO's columns are speed-ups by its own models of communication, after the same computation"
)


def conventions(predictions: Predictions) -> list[str]:
    """What the words of a page mean, as far as it has them."""
    several = any(prediction.many is not None for prediction in predictions)
    return [
        CPU_CONVENTIONS if predictions.header.target == "cpu" else CONVENTIONS,
        *([MANY_CONVENTIONS] if several else []),
    ]


def predict_document(
    predictions: Predictions,
    *,
    epochs: int | None = None,
    dataset_size: int | None = None,
    price: float | None = None,
    op_times: bool = False,
) -> Document:
    """All of it. `price` is of one device for an hour, in any currency; `op_times` stand in its data."""
    few = len(predictions) <= DETAILED
    grid = all(len({getattr(row, axis) for row in predictions}) > 1 for axis in ("device", "batch"))
    if grid and len(predictions) > tables.PIVOTED:
        shown = list(tables.pivot_tables(predictions, price=price))
    else:
        shown = [tables.main_table(predictions, price=price)]
    if epochs is not None and dataset_size is not None:
        shown.append(tables.run_table(predictions, epochs=epochs, dataset_size=dataset_size, price=price))
    prediction = chosen(predictions)
    if few:
        shown += _details(predictions, prediction)
    asked = {"epochs": epochs, "dataset_size": dataset_size}
    return Document(
        title=headline(predictions),
        lines=tuple(_summary(predictions, prediction)),
        sections=table_sections(shown),
        notes=tuple(_notes(predictions, prediction, few=few, price=price)),
        small_print=tuple(_small_print(predictions)),
        rows=lambda: tables.csv_table(predictions, **asked, price=price),
        data=lambda: predict_data(predictions, **asked, price=price, op_times=op_times),
    )


def describe(predictions: Predictions) -> str:
    """The `repr`: a line for every prediction, and how they compare where that is not the devices' doing."""
    rows = [
        f"{_place(row)}: {seconds(row.time_s)} a step ({tables.between(row.time_interval_s)}), "
        f"{formatting.per_second(row.throughput)} samples/s, {'' if row.many else f'{row.bound}-bound, '}{row.tier}"
        f"{_in_memory(row)}"
        for row in predictions
    ]
    compared = _compared(predictions)
    return "\n".join([headline(predictions), *rows, *([compared] if compared.startswith(_OF_HOSTS) else [])])


def _in_memory(prediction: Prediction) -> str:
    if prediction.memory is None:
        return ""
    return f", {formatting.bytes_(prediction.memory.device_bytes)} of memory: {fit_text(prediction.fit)}"


def chosen(predictions: Predictions) -> Prediction:
    """The one that is taken apart: the first device with its largest batch."""
    rows = [prediction for prediction in predictions.predictions if prediction.device == predictions[0].device]
    return max(rows, key=lambda row: row.batch or 0)


def headline(predictions: Predictions) -> str:
    """`resnet50 · training step · batch 8, 64 · bf16 · cross-entropy loss, momentum · 8 GPUs, ddp`."""
    header = predictions.header
    sizes = list(dict.fromkeys(prediction.batch for prediction in predictions))
    several = len(sizes) > _LISTED
    batch = f"{_size(sizes[0])} to {_size(sizes[-1])}" if several else ", ".join(map(_size, sizes))
    parts = step_parts(header, batch, in_precision(header, _really(predictions)))
    many = predictions[0].many
    if many is not None:
        nodes = f" in {many.nodes:,} nodes" if many.nodes > 1 else ""
        parts.append(f"{many.gpus:,} GPUs{nodes}, {_parallel(many.parallel)}")
    return " · ".join(parts)


def _size(batch: int | None) -> str:
    return "unknown" if batch is None else f"{batch:,}"


def _really(predictions: Predictions) -> tuple[str, ...]:
    """TF32 is a way of tensor cores: on devices without it, fp32 is fp32."""
    has_tf32 = any("tf32" in device.tensor_flops_per_s for device in predictions.devices)
    return tuple(precision for precision in predictions.precisions if precision != "tf32" or has_tf32)


def _parallel(name: str) -> str:
    return f"{name} (tensor × pipeline × data)" if "x" in name else name


def _place(prediction: Prediction) -> str:
    gpus = f" · {prediction.gpus:,} GPUs" if prediction.many else ""
    return f"{prediction.device} · batch {_size(prediction.batch)}{gpus}"


def _summary(predictions: Predictions, prediction: Prediction) -> list[str]:
    beside = [*_limits(predictions), *_warnings(predictions)]
    measured = [line for row in predictions if (line := _measured(row))]
    if len(predictions) > 1:
        return [_compared(predictions), *measured, *beside]
    ends = prediction.time_interval_s
    often = "between the bounds of its PPP" if prediction.tier == "spec" else "90% interval"
    sure = f", {often} {tables.between(ends)}" if ends.low != ends.high else ""
    time = f"{seconds(prediction.time_s)} a step{sure}"
    rates = [f"{formatting.per_second(prediction.throughput)} samples/s"] if prediction.throughput else []
    rates += [f"{formatting.per_second(prediction.tokens_per_s)} tokens/s"] if prediction.tokens_per_s else []
    rates += [f"MFU {metrics.text('mfu', prediction.mfu)}"] if prediction.mfu is not None else []
    intensity = prediction.intensity
    rates += [f"{metrics.text('intensity', intensity)} FLOP/byte"] if intensity is not None else []
    lines = [f"{time}; {_verdict(prediction, predictions.header)}", *measured, "; ".join(rates)]
    if prediction.memory is not None:
        lines.append(memory_tables.memory_line(prediction.memory, each=prediction.many is not None))
    lines += beside
    if prediction.many is not None:
        many = prediction.many
        replicas = f"each of {many.data:,} replicas" if many.data > 1 else "the one replica"
        lines.append(f"{many.parameters:,} parameters, counted once; batch {many.batch:,} in {replicas}")
    return lines


def _compared(predictions: Predictions) -> str:
    """Which is the fastest, and what the order says little of."""
    running = [row for row in predictions if row.fit != "does not fit"]
    if not running:
        return "none of these fits"
    best = max(running, key=lambda row: row.throughput or 0.0)
    if not best.throughput:  # of a log that does not tell its batch
        best = min(running, key=lambda row: row.time_s)
    if _is_of_hosts(best, running):
        least = min(running, key=lambda row: (row.gpu_busy_s or row.time_s) / (row.batch or 1))
        busy = f"{least.device} at batch {_size(least.batch)}, {seconds(least.gpu_busy_s or least.time_s)} a step"
        return f"{_OF_HOSTS}; least GPU time for a sample: {busy}"
    if not best.throughput:
        return f"shortest step: {best.device}, {seconds(best.time_s)}"
    most = f"{best.device} at batch {_size(best.batch)}, {formatting.per_second(best.throughput)} samples/s"
    of_those = "" if len(running) == len(predictions) else " of those that fit"
    return f"highest throughput{of_those}: {most}{_as_fast(best, running)}"


def _measured(prediction: Prediction) -> str:
    """What the ledger itself took on this device, and how far off the prediction is."""
    parts = [("a step", prediction.time_s, prediction.measured_time_s)]
    if prediction.tier != "spec":
        parts.append(("GPU-busy", prediction.gpu_time_s, prediction.measured_gpu_time_s))
    texts = [
        f"{seconds(took)} {what} (predicted {formatting.signed_percent(time_s / took - 1)})"
        for what, time_s, took in parts
        if took
    ]
    return f"measured on {prediction.device}: {', '.join(texts)}" if texts else ""


_ALIKE = 0.97
"""Of the highest throughput: no less is as much."""


_OF_HOSTS = "host-bound, so which is fastest is a matter of hosts, which are not known"


def _is_of_hosts(best: Prediction, running: Sequence[Prediction]) -> bool:
    """Hosts of different devices are different machines, of which only a calibrated one is known."""
    unlike = len({row.device for row in running}) > 1 and any(row.tier != "calibrated" for row in running)
    return best.bound == "host" and unlike


def _as_fast(best: Prediction, running: Sequence[Prediction]) -> str:
    least = _ALIKE * (best.throughput or 0.0)
    alike = [row for row in running if row is not best and (row.throughput or 0.0) >= least]
    others = list(dict.fromkeys(_place(row) for row in alike))
    return f"; as much within {1 - _ALIKE:.0%}: {', '.join(others)}" if others else ""


def _limits(predictions: Predictions) -> list[str]:
    several = len(predictions.devices) > 1
    many = predictions[0].many is not None
    decoding = predictions.header.step == "decode"
    return [
        memory_tables.limit_line(limit, several=several, many=many, decoding=decoding) for limit in predictions.limits
    ]


def _warnings(predictions: Predictions) -> list[str]:
    """What makes all the numbers void stands beside them, not among the notes; of one step the line on memory says it
    already."""
    if len(predictions) == 1 and predictions[0].memory is not None:
        return []
    return [note.text for note in predictions.notes if note.code == DOES_NOT_FIT]


def _verdict(prediction: Prediction, header: Header) -> str:
    roof = f"{percent_text(prediction.percent_of_roof)} of the attainable roof"
    if prediction.many is not None:
        computing = f"{seconds(prediction.many.compute_s)} of it computing"
        if prediction.many.host_wait_s > HOST_SHARE * prediction.many.compute_s:
            computing += f", of which {seconds(prediction.many.host_wait_s)} waiting for the host"
        if prediction.many.efficiency is None:
            return f"{computing}; no efficiency, as one GPU cannot hold this step"
        efficiency = formatting.percent(prediction.many.efficiency)
        return f"{efficiency} of {prediction.gpus:,} times one GPU's throughput; {computing}"
    if prediction.tier == "spec" or header.target == "cpu":
        return f"{prediction.bound}-bound, {roof}"
    share = min(busy_share(prediction.gpu_busy_s, prediction.wall_time_s) or 0.0, 1.0)
    works = f"the GPU works for {seconds(prediction.gpu_time_s)} of it, {share:.0%}"
    return f"{works}: {prediction.bound}-bound, {roof} while it works"


def _details(predictions: Predictions, prediction: Prediction) -> list[Table]:
    """What one prediction is made of; of several, of which it is said."""
    of = "" if len(predictions) == 1 else f" · {_place(prediction)}"
    of_memory = memory_tables.tables(predictions, prediction, of)
    if prediction.many is not None:
        return [*tables.many_tables(prediction, prediction.many, of), *of_memory]
    timed = "CPU time" if predictions.header.target == "cpu" else "kernel time"
    parts = [tables.op_table(prediction, f"costliest ops by {timed}{of}")]
    if len(prediction.phases) > 1:
        parts.append(tables.phase_table(prediction, f"{timed} by phase"))
    if prediction.fit == "does not fit":  # what makes it fit comes first
        return [*parts, *of_memory, tables.advice_table(prediction, f"what would help{ONCE_IT_FITS}{of}")]
    return [*parts, tables.advice_table(prediction, f"what would help, predicted in the same way{of}"), *of_memory]


def _notes(predictions: Predictions, prediction: Prediction, *, few: bool, price: float | None) -> list[str]:
    said = [f"note: {note}" for note in dict.fromkeys(predictions.notes) if note.code != DOES_NOT_FIT]
    assumed = dict.fromkeys(advice.assumption for advice in prediction.advice if advice.assumption)
    said += [f"advice: {words}" for words in assumed if prediction.many is None]
    inside = [row.inside for row in predictions if row.inside is not None]
    if inside:
        least = min(inside)
        part = "all" if least > 0.995 else f"{'' if len(predictions) == 1 else 'at least '}{least:.0%}"
        rest = "" if least > 0.995 else ", the rest in ops outside of them"
        said.append(f"shapes: {part} of the device's time is in ops whose shapes lie among the calibrated ones{rest}")
    said += _over_peak(predictions)
    said += checked_lines(predictions)
    if few and prediction.many is None and not prediction.advice and prediction.tier != "spec":
        said.append(f"nothing that rooflight can predict would make it {WORTH:.0%} faster")
    if not few:
        said.append(f"give {DETAILED} or fewer devices and batches to see the costliest ops and what would help")
    said += [f"note: {note}" for note in _of_devices(predictions, lambda many: [str(note) for note in many.notes])]
    said += [f"assumed: {line}" for line in _of_devices(predictions, lambda many: many.assumptions)] if few else []
    if price is not None:
        said.append(f"at {price:g} an hour for one device, idle time not counted")
    return said


_OVER_PEAK = 3
"""Of so many predictions the plain ratio stands below the table; it is in the JSON of every one."""


def _over_peak(predictions: Predictions) -> list[str]:
    """FLOPs over peak, as with a table of FLOPs and a data sheet; nothing runs so fast."""
    lines = []
    for row in predictions if len(predictions) <= _OVER_PEAK else ():
        parts = []
        for time in row.flops_over_peak if row.many is None else ():
            rate = "" if time.throughput is None else f", {formatting.per_second(time.throughput)} samples/s"
            peak = "" if time.peak_flops_per_s is None else f"{peak_tera(time.peak_flops_per_s)} "
            parts.append(f"{seconds(time.time_s)}{rate} ({peak}{time.precision})")
        if parts:
            where = "" if len(predictions) == 1 else f" on {_place(row)}"
            double = f"; in double precision {parts[1]}" if len(parts) > 1 else ""
            lines.append(f"FLOPs over peak{where}: {parts[0]}{double}")
    return lines


def checked_lines(predictions: Predictions) -> list[str]:
    """How far such predictions were from timed steps: a line for each thing that is said, with its devices."""
    said = {row.device: row.checked.text for row in predictions if row.checked is not None}
    alone = "one GPU alone: " if any(row.many is not None for row in predictions) else ""
    lines = []
    for text, devices in _by_value(said.items()).items():
        where = "" if len(said) == 1 else f"{', '.join(devices)}: "
        lines.append(f"checked: {alone}{where}{text}")
    return lines


def _of_devices(predictions: Predictions, lines_of: Callable[[ClusterPrediction], Sequence[str]]) -> list[str]:
    """What is told of every run on many, each line once, with the devices, and of several batches with those, that it
    holds for unless it holds for all."""
    batches: dict[str, list[int | None]] = {}
    for row in predictions:
        batches.setdefault(row.device, []).append(row.batch)
    holds: dict[str, dict[str, list[int | None]]] = {}
    for row in predictions:
        for line in lines_of(row.many) if row.many is not None else ():
            holds.setdefault(line, {}).setdefault(row.device, []).append(row.batch)

    def named(device: str, some: list[int | None]) -> str:
        return device if some == batches[device] else f"{device} at batch {', '.join(map(_size, some))}"

    return [
        line
        if where == batches or line.startswith(f"{next(iter(where))}: ")
        else f"{', '.join(named(*place) for place in where.items())}: {line}"
        for line, where in holds.items()
    ]


def _small_print(predictions: Predictions) -> list[str]:
    lines = [_TIERS[tier] for tier in dict.fromkeys(prediction.tier for prediction in predictions)]
    lines += _sources(predictions)
    if len(predictions.devices) <= _SOURCED:
        lines += [_figures(device, predictions.precisions) for device in predictions.devices]
    else:
        lines.append("peaks and bandwidths with their sources: rooflight list devices NAME")
    lines.append("; ".join(conventions(predictions)) + ".")
    count, ops, header = predictions.traces, len(predictions[0].op_times_s), predictions.header
    traces = "one trace" if count == 1 else f"{count} traces, one a generation of GPUs, the first"
    where = "read from a log" if header.traced_on == "import" else f"on {header.traced_on} tensors"
    by = f"torch {header.torch}, rooflight" if header.torch is not None else "rooflight"
    lines.append(f"{traces} of {f'{ops:,} ops' if ops else 'the step'} {where}; {by} {header.rooflight}")
    return lines


def _sources(predictions: Predictions) -> list[str]:
    """What the times of every device come from; a calibration that several use in their own ways is described once."""
    # `transferred from h200: NVIDIA H200, 2026-11-15, ...` is how a calibration is used, and which one it is.
    parts = {device: words.partition(": ")[::2] for device, words in predictions.calibrations.items()}
    ways = _by_value(dict.fromkeys(parts.values()))
    shared = [which for which, how in ways.items() if which and len(how) > 1]
    sources = {row.device: predictions.calibrations.get(row.device) or row.source for row in predictions}
    said = {
        device: parts[device][0] if device in parts and parts[device][1] in shared else source
        for device, source in sources.items()
    }
    return [
        *(f"{', '.join(devices)}: {source}" for source, devices in _by_value(said.items()).items()),
        *(f"the calibration that these share: {which}" for which in shared),
    ]


def _by_value(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Those of which the same is said, together."""
    groups: dict[str, list[str]] = {}
    for name, value in pairs:
        groups.setdefault(value, []).append(name)
    return groups


def _figures(device: Device, precisions: tuple[str, ...]) -> str:
    """The peaks that were used, and whose word they are."""
    figures: list[tuple[str, Figure]] = []
    for precision in precisions or ("fp32",):
        peak = device.peak(precision)
        if peak is not None and (precision != "tf32" or "tf32" in device.tensor_flops_per_s):
            figures.append((f"{peak_tera(peak.value)} {precision}", peak))
    bandwidth = device.bandwidth_bytes_per_s
    figures.append((f"{bandwidth.value / 1e9:,g} GB/s", bandwidth))
    sources = _by_value((text, f"{figure.source}, read {figure.date}") for text, figure in figures)
    return f"{device.title}: " + "; ".join(f"{', '.join(texts)} ({source})" for source, texts in sources.items())
