"""What the two sets of tables of claims are made with: how a table is written, which ledger it is held against, and
numbers that are worked out here by hand, from plain torch modules, from a recording or from the documents.

Nothing of the checker is used: the sets judge it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import rooflight
from rooflight.ledger import Ledger
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.recordings import recording

Cells = dict[str, object]
DOCUMENTS: list[dict[str, Any]] = json.loads((DATA / "documents.json").read_text())
ABOUT = ("layer", "quantity", "value", "unit", "batch", "step", "precision", "device", "model", "kind", "note")
"""Columns that say what a row is of; in a wide table all others are quantities."""
V100, A100 = "v100-sxm2-16", "a100-sxm-40"


@dataclass(frozen=True)
class ClaimTable:
    """A table and the ledger that it is held against."""

    ledger: Ledger
    rows: Sequence[Cells]
    delimiter: str = ","
    checkable: bool = True
    """Is there a row that a ledger, a device's figures or other rows can answer? Else exit code 1 is right."""

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(["layer", *(name for row in self.rows for name in row)]))

    @property
    def csv(self) -> bytes:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.columns, delimiter=self.delimiter, restval="")
        writer.writeheader()
        writer.writerows(self.rows)
        return buffer.getvalue().encode()

    @property
    def cells(self) -> list[tuple[int, str]]:
        """Where the claims stand, row and column, in the order in which they are read."""
        if "value" in self.columns:
            return [(place, "value") for place in range(len(self.rows))]
        columns = [name for name in self.columns if name not in ABOUT]
        return [(place, name) for place, row in enumerate(self.rows) for name in columns if row.get(name, "") != ""]


def long(*rows: tuple[object, ...], **shared: object) -> list[Cells]:
    """Rows of (layer, quantity, value) or (quantity, value); what is shared stands in columns of its own."""
    return [{"layer": row[0] if len(row) == 3 else "", "quantity": row[-2], "value": row[-1], **shared} for row in rows]


# Ledgers.


@cache
def estimated(model: str, batch: int = 1, step: Any = "infer", channels: str = "") -> Ledger:
    return rooflight.estimate(model, batch=batch, step=step, overrides={"channels": channels} if channels else {})


def recorded(name: str) -> Ledger:
    """That comes with rooflight."""
    return recording(f"h200/{name}")


@cache
def studied(study: str, name: str) -> Ledger:
    """Of a study that was recorded, by the beginning of its file's name."""
    (path,) = (ROOT / "studies" / "recorded" / "h200" / study / "ledgers").glob(f"{name}*.measured.json.gz")
    return rooflight.load(path)


def of_step(ledger: Ledger, quantity: str) -> float:
    """What was measured of the whole step."""
    (step,) = (found for found in ledger.measurements if found.scope == "step")
    return step.quantities[quantity].value


def of_layer(ledger: Ledger, module: str, quantity: str) -> float:
    """What was measured of the ops of one module, added up."""
    ops = {op.index for op in ledger.ops if op.module == module}
    found = [one for one in ledger.measurements if one.scope == "op" and ops.issuperset(one.ops)]
    return sum(one.quantities[quantity].value for one in found if quantity in one.quantities)


def executed(ledger: Ledger) -> float:
    return sum(of_step(ledger, f"{unit}_flops_{name}") for unit, name in (("tensor", "tf32"), ("cuda", "fp32")))


def moved(ledger: Ledger) -> float:
    return of_step(ledger, "dram_bytes_read") + of_step(ledger, "dram_bytes_written")


# Numbers of the documents.


def stated(subject: str, quantity: str) -> Any:
    return _document(subject, quantity)["stated"]


def correct(subject: str, quantity: str) -> Any:
    return _document(subject, quantity)["correct"]


def _document(subject: str, quantity: str) -> dict[str, Any]:
    return next(row for row in DOCUMENTS if (row["subject"], row["quantity"]) == (subject, quantity))


# Numbers by hand.


def conv_macs(channels_out: int, size: int, channels_in: int, kernel: int) -> int:
    """Of one image."""
    return channels_out * size * size * channels_in * kernel * kernel


@dataclass(frozen=True)
class HandLayer:
    name: str
    macs: int
    """Of one image."""
    params: int
    size: int
    """Height of what it gives; a linear layer's features."""


MNIST = (
    HandLayer("conv1", conv_macs(32, 26, 1, 3), 32 * 9 + 32, 26),
    HandLayer("conv2", conv_macs(64, 24, 32, 3), 64 * 32 * 9 + 64, 24),
    HandLayer("fc1", 9216 * 128, 9216 * 128 + 128, 128),
    HandLayer("fc2", 128 * 10, 128 * 10 + 10, 10),
)
CONV2 = MNIST[1]
_VGG = {
    11: "64 M 128 M 256 256 M 512 512 M 512 512 M",
    13: "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
    16: "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
    19: "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}


def vgg(depth: int) -> list[HandLayer]:
    """Its layers with parameters, named as summary tools number them."""
    layers, number, channels, size = [], 0, 3, 224
    for word in _VGG[depth].split():
        number += 1
        if word == "M":
            size //= 2
            continue
        out = int(word)
        macs = conv_macs(out, size, channels, 3)
        layers.append(HandLayer(f"Conv2d-{number}", macs, out * channels * 9 + out, size))
        channels = out
        number += 1  # its ReLU
    number += 1  # the adaptive pool
    for features, out in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        number += 1
        layers.append(HandLayer(f"Linear-{number}", features * out, features * out + out, out))
        number += 2  # ReLU and Dropout
    return layers


def macs_of(layers: Iterable[HandLayer]) -> int:
    return sum(layer.macs for layer in layers)


def params_of(layers: Iterable[HandLayer]) -> int:
    return sum(layer.params for layer in layers)


# Figures of devices, as their makers state them.

PEAK = {"V100 fp32": 15.7e12, "V100 fp64": 7.8e12, "A100 fp32": 19.5e12, "A100 tf32": 156e12,
        "K80 fp32": 4.368e12, "K80 fp64": 1.456e12, "board fp32": 8.73e12, "board fp64": 2.91e12}  # fmt: skip
BANDWIDTH = {"V100": 900e9, "A100": 1555e9, "K80": 240e9}
