"""The end of a report: conventions, origins, versions, what could not be measured, and the commands to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rooflight.formatting import giga, peak_tera
from rooflight.hardware.device import Device, Figure
from rooflight.hardware.devices import USUAL, find, names
from rooflight.ledger import Ledger
from rooflight.reporting.columns import column
from rooflight.reporting.document import Section, filled
from rooflight.reporting.sections import ledger_documents, measure_text
from rooflight.reporting.table import Cells, Column, Label, Table, figure, lines_table, table_of
from rooflight.spec import repeat, shell
from rooflight.summary.measured import Measured, is_measured


def origins_section(ledger: Ledger, measured: Measured, source: str, devices: Sequence[Device]) -> Section:
    header = ledger.header
    lines = [ledger_documents.coverage(ledger)] if ledger.ops else []
    lines += [f"note: {note}" for note in header.notes]
    small = [ledger_documents.CONVENTIONS] if ledger.ops else []
    tables = [_versions(ledger)]
    if is_measured(ledger):
        lines += measure_text.remarks(measured)
        small.append(measure_text.conventions(measured))
        sources = measure_text.provenance(measured)
        tables.append(lines_table("origin", sources, title="Where measured numbers come from"))
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
    rows = {
        "rooflight": header.rooflight,
        "torch": header.torch,
        "CUDA": header.cuda,
        "driver": header.driver,
        "device": header.device,
        "traced for": header.target,
        "execution": header.execution,
    }
    lines = [(name, str(value)) for name, value in (*rows.items(), *header.conditions.items()) if value]
    columns: Cells[tuple[str, str]] = [
        (column("what"), lambda line: line[0]),
        (Column("value", right=False), lambda line: line[1]),
    ]
    return table_of(columns, lines, title="Versions and conditions")


def _peaks(devices: Sequence[Device]) -> Table:
    columns: Cells[tuple[str, str, Label, Figure]] = [
        (column("device"), lambda row: row[0]),
        (Column("peak", right=False), lambda row: row[1]),
        (Column("value"), lambda row: row[2]),
        (Column("source", right=False), lambda row: row[3].source),
        (Column("read on", right=False), lambda row: row[3].date),
    ]
    rows = []
    for device in devices:
        bandwidth = device.bandwidth_bytes_per_s
        shown = figure(bandwidth.value, lambda value: f"{giga(value)} GB/s")
        rows.append((device.name, "memory bandwidth", shown, bandwidth))
        for unit, peaks in (("tensor", device.tensor_flops_per_s), ("core", device.core_flops_per_s)):
            rows += [
                (device.name, f"{unit} {precision}", figure(peak.value, peak_tera), peak)
                for precision, peak in peaks.items()
            ]
    return table_of(columns, rows, title="Peaks and bandwidths")


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
    asked = [device.name for device in devices]
    usual = [find(name).name for name in USUAL]
    return asked if asked and asked != usual and set(asked) <= set(names()) else None
