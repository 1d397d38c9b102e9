"""Measured steps on an H200, each read and explained once: shipped recordings, recorded studies, micro-benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from unittest.mock import patch

import msgspec

from rooflight.explanation import timing
from rooflight.explanation.cause import Explained
from rooflight.explanation.flops import explain_flops
from rooflight.explanation.traffic import explain_traffic
from rooflight.files import load
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger, Value
from rooflight.recorded import PREFIX, names

ROOT = Path(__file__).parents[1]
MICRO = ROOT / "benchmarks" / "h200" / "results" / "instructions"
STUDIES = ROOT / "studies" / "recorded" / "h200"
ENDING = ".measured.json.gz"

RECORDINGS = [f"{PREFIX}{name}" for name in names()]
CELLS = [
    str(path.relative_to(STUDIES)).removesuffix(ENDING).replace("/ledgers/", "/")
    for path in sorted(STUDIES.glob(f"*/ledgers/*{ENDING}"))
]
"""`vgg-roofline/vgg11-b16-infer-fp32-h200-9c8bc4ed`: the study, and the cell with its number."""
SECTIONS = sorted(path.name.removesuffix(".json.gz") for path in MICRO.glob("*.json.gz"))

_CEILINGS = {name: timing.ceilings_of(find(name), None) for name in ("h200",)}
"""Read once: that takes longer than to explain a step."""


@cache
def ledger(place: str) -> Ledger:
    """A recording by its name, a study's cell, or a section of the micro-benchmarks."""
    if place.startswith(PREFIX):
        return load(place)
    if place in SECTIONS:
        return load(MICRO / f"{place}.json.gz")
    study, _, cell = place.partition("/")
    return load(STUDIES / study / "ledgers" / f"{cell}{ENDING}")


@cache
def flops(place: str) -> tuple[Explained, ...]:
    return tuple(explain_flops(ledger(place)))


@cache
def traffic(place: str) -> tuple[Explained, ...]:
    return tuple(explain_traffic(ledger(place)))


@cache
def time(place: str) -> tuple[Explained, ...]:
    with patch.object(timing, "ceilings_of", lambda device, _: _CEILINGS[device.name]):
        return tuple(timing.explain_time(ledger(place)))


def recounted(source: Ledger, change: Callable[[int | None, dict[str, Value]], Mapping[str, Value]]) -> Ledger:
    """The same step with other counters: `change` gets an op's index (`None`: the step) and what was measured."""
    rows = []
    for row in source.measurements:
        if row.scope == "step":
            rows.append(msgspec.structs.replace(row, quantities=dict(change(None, row.quantities))))
        elif row.scope == "op" and len(row.ops) == 1:
            rows.append(msgspec.structs.replace(row, quantities=dict(change(row.ops[0], row.quantities))))
        else:
            rows.append(row)
    return msgspec.structs.replace(source, measurements=tuple(rows))


def plus(value: Value, amount: float) -> Value:
    return Value(value.value + amount, value.origin)
