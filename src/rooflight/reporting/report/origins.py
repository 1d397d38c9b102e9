"""The end of a report: conventions, origins, versions, what could not be measured, and the commands to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rooflight.formatting import giga, peak_tera
from rooflight.hardware.device import Device
from rooflight.hardware.devices import USUAL, find, names
from rooflight.ledger import Ledger
from rooflight.reporting.columns import column
from rooflight.reporting.document import Section, filled
from rooflight.reporting.sections import ledger_documents, measure_text
from rooflight.reporting.table import Column, Table, figure
from rooflight.spec import repeat, shell
from rooflight.summary.measured import Measured, is_measured


def origins_section(ledger: Ledger, measured: Measured, source: str, devices: Sequence[Device]) -> Section:
    header = ledger.header
    lines = [ledger_documents.coverage(ledger)] if ledger.ops else []
    lines += [f"note: {note}" for note in header.notes]
    small = [ledger_documents.CONVENTIONS] if ledger.ops else []
    tables = [_versions(ledger)]
    if is_measured(ledger):
        lines += measure_text.coverage(measured)
        lines += [line] if (line := measure_text.flop_count_line(measured)) else []
        if measured.attributed[0] or measured.attributed[2]:
            lines.append(measure_text.attribution(measured))
        small.append(measure_text.conventions(measured))
        tables.append(_sources(measured))
    tables.append(_peaks(devices))
    return Section(
        "origins",
        "Conventions, origins, and how to repeat it",
        lines=tuple(lines),
        tables=filled(*tables),
        small_print=tuple(small),
        commands=tuple(_commands(ledger, source, devices)),
    )


def _versions(ledger: Ledger) -> Table:
    header = ledger.header
    rows = [
        ("rooflight", header.rooflight),
        ("torch", header.torch),
        ("CUDA", header.cuda),
        ("driver", header.driver),
        ("device", header.device),
        ("traced for", header.target),
        ("execution", header.execution),
    ]
    rows += [(name, value) for name, value in header.conditions.items()]
    columns = (column("what"), Column("value", right=False))
    return Table("Versions and conditions", columns, tuple((name, str(value)) for name, value in rows if value))


def _sources(measured: Measured) -> Table:
    columns = (Column("origin", right=False),)
    return Table(
        "Where measured numbers come from", columns, tuple((line,) for line in measure_text.provenance(measured))
    )


def _gigabytes(value: float) -> str:
    return f"{giga(value)} GB/s"


def _peaks(devices: Sequence[Device]) -> Table:
    def rows() -> Iterator[tuple[Any, ...]]:
        for device in devices:
            bandwidth = device.bandwidth_bytes_per_s
            yield device.name, "memory bandwidth", figure(bandwidth.value, _gigabytes), bandwidth.source, bandwidth.date
            for unit, peaks in (("tensor", device.tensor_flops_per_s), ("core", device.core_flops_per_s)):
                for precision, one in peaks.items():
                    yield device.name, f"{unit} {precision}", figure(one.value, peak_tera), one.source, one.date

    columns = (
        column("device"),
        Column("peak", right=False),
        Column("value"),
        Column("source", right=False),
        Column("read on", right=False),
    )
    return Table("Peaks and bandwidths", columns, tuple(rows()))


def _commands(ledger: Ledger, source: str, devices: Sequence[Device]) -> Iterator[str]:
    """What makes it again, and what shows it; `source` as a command line takes it."""
    if ledger.ops and ledger.header.step is not None:
        yield repeat(ledger.header, measured=is_measured(ledger))
    elif ledger.header.command:
        yield ledger.header.command
    sources = shlex.split(source)
    if not sources:
        return
    yield shell("report", *sources, on=_asked_for(devices), output="report.html")
    if is_measured(ledger) and ledger.ops and len(sources) == 1:
        yield shell("compare", *sources)


def _asked_for(devices: Sequence[Device]) -> list[str] | None:
    """Their names, where they are not those that a report takes by itself; one from a file cannot be named."""
    found = [device.name for device in devices]
    usual = [find(name).name for name in USUAL]
    return found if found and found != usual and set(found) <= set(names()) else None
