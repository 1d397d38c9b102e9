"""The database of devices as a page: all side by side, then each with every figure, its source and its date."""

from __future__ import annotations

from rooflight.hardware.device import Device
from rooflight.hardware.devices import known
from rooflight.reporting.sections import device_tables
from rooflight_docs.markdown import cell, table


def page() -> str:
    devices = known()
    parts = [f"## All {len(devices)}\n", _side_by_side(devices), f"{device_tables.CONVENTIONS.capitalize()}.\n"]
    return "\n".join([*parts, *(_one(device) for device in devices)])


def _side_by_side(devices: tuple[Device, ...]) -> str:
    found = device_tables.devices_table(devices)
    rows = [[f"[`{row[0]}`](#{row[0]})", *map(cell, row[1:])] for row in found.written()]
    return table([column.name for column in found.columns], rows, right=range(2, len(found.columns)))


def _one(device: Device) -> str:
    found, sources = device_tables.device_table(device)
    lines = [f"## {device.name}\n", f"{device.title}."]
    if device.aliases:
        lines.append(f"Also: {', '.join(f'`{name}`' for name in device.aliases)}.")
    if device.recognised_as:
        lines.append(f"Reported as: {', '.join(f'`{name}`' for name in device.recognised_as)}.")
    lines += [
        "",
        table(("value of", "value", "source"), [[cell(text) for text in row] for row in found.written()], right=(1, 2)),
    ]
    lines += [f"{number}. {cell(source)}" for number, source in enumerate(sources, start=1)]
    if device.notes:
        lines += ["", *(f"- {cell(note)}" for note in device.notes)]
    return "\n".join(lines) + "\n"
