"""Kernels as Nsight Compute's pages name them, and the log they make together: common to its CSV and its console."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflight.importing.log import Dim3, Launch, Log
from rooflight.importing.ncu_messages import notes_of
from rooflight.importing.ncu_metrics import TIME, Printed, readings
from rooflight.importing.source import Source

_MOST_LAUNCHES = 1_000_000


@dataclass(frozen=True)
class Profiled:
    """A launch and its metrics as printed; `times`: how many launches it is the average of."""

    launch: Launch
    metrics: list[Printed]
    device: str
    capability: str
    times: int = 1


def log_of(source: Source, found: Sequence[Profiled], *, about: str) -> Log:
    metrics, notes = readings(source, [entry.metrics for entry in found])
    launches = [
        replace(entry.launch, metrics={name: value for name, value in values.items() if name != TIME},
                time_s=float(values[TIME].value) if TIME in values else None)
        for entry, values in zip(found, metrics, strict=True)
        for _ in range(entry.times)
    ]  # fmt: skip
    if any(entry.times > 1 for entry in found):
        about += ", summary"
        notes.append("the log is a summary: every launch of a kernel stands here with the average of all")
    return Log(
        tool="ncu",
        about=about,
        launches=tuple(launches),
        time_origin=f"ncu {TIME}",
        device=next((entry.device for entry in found if entry.device), None),
        capability=next((entry.capability for entry in found if entry.capability), None),
        notes=(*notes, *notes_of(source, launches=len(launches))),
    )


def dim3(source: Source, line: int, text: str) -> Dim3 | None:
    """`(22, 1, 64)`; nothing where there is nothing, as for a range of kernels."""
    if not text:
        return None
    found = re.fullmatch(r"\(?(\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\)?", text)
    if found is None:
        raise source.bad(line, f"{text!r} is no grid or block size: the file is not whole, export it again")
    return int(found[1]), int(found[2]), int(found[3])


def times(source: Source, line: int, text: str) -> int:
    """The number of invocations, 1 where there is none."""
    digits = re.sub(r"[.,\s'’]", "", text or "1")
    if not re.fullmatch(r"\d{1,9}", digits) or not 0 < int(digits) <= _MOST_LAUNCHES:
        raise source.bad(line, f"{text!r} is no number of invocations that rooflight can import")
    return int(digits)
