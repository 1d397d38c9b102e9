"""Predictions as one JSON document: raw numbers, SI units, unknown is null."""

from __future__ import annotations

from typing import Any

import msgspec

from rooflight.prediction.result import Limit, Prediction, Predictions


def predict_data(found: Predictions, *, epochs: int | None = None, dataset_size: int | None = None,
             price: float | None = None, op_times: bool = False) -> dict[str, Any]:  # fmt: skip
    """`op_times`: the seconds of every op too, which are many."""
    from rooflight.reporting.predict_document import conventions

    rows = []
    for one in found:
        row = _row(one, op_times=op_times)
        if epochs is not None and dataset_size is not None:
            run = one.run(epochs, dataset_size, price, accumulate=found.header.accumulate)
            row["run"] = None if run is None else msgspec.to_builtins(run)
        if price is not None:
            row["price_per_hour"] = price
            row["cost_of_million_samples"] = one.cost_of_samples(10**6, price)
        rows.append(row)
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(found.header)),
        "predictions": rows,
        "devices": [msgspec.to_builtins(device) for device in found.devices],
        "calibrations": found.calibrations,
        **({"limits": [_limit(limit) for limit in found.limits]} if found.limits else {}),
        **({"savings": msgspec.to_builtins(found.savings)} if found.savings else {}),
        "notes": list(found.notes),
        "conventions": conventions(found),
    }


def _limit(limit: Limit) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(limit)
    if limit.memory is not None:
        made["memory"]["device_bytes"] = limit.memory.device_bytes
    return made


def _row(one: Prediction, *, op_times: bool) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(one)
    if not op_times:
        del row["op_times_s"]
    if one.roofline is None:
        del row["roofline"]
    if one.many is None:
        del row["many"]
    for name in ("max_batch", "max_seq"):
        if row[name] is None:
            del row[name]
    if one.memory is not None:
        # The numbers that scripts ask for most stand in the row itself.
        row["peak_allocated_bytes"] = one.memory.peak_allocated_bytes
        row["peak_reserved_bytes"] = one.memory.peak_reserved_bytes
        row["device_bytes"] = one.memory.device_bytes
        row["fits"] = one.memory.fits
        row["fit"] = one.memory.fit
        row["memory"]["device_bytes"] = one.memory.device_bytes
        row["memory"]["fragmentation"] = one.memory.fragmentation
        if one.memory.timeline is None:
            del row["memory"]["timeline"]
    row["gpus"] = one.gpus
    # By their full names, beside the short ones.
    row["wall_time_s"], row["gpu_busy_s"], row["gain"] = one.wall_time_s, one.gpu_busy_s, one.gain
    return row
