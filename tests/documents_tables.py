"""The numbers of the founding documents as tables of claims: what they state, in the words that the linter reads.

Each number goes into the table of the ledger that it can be held against. What nobody states, or no ledger speaks of,
has no row; `TABLES` says how each of the others is written.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import rooflight
from rooflight.claims import Checked, check, parse_claims
from rooflight.ledger import Ledger

DOCUMENTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "documents.json").read_text())
NAMES = {
    "mnist32-64": "mnist-cnn",
    "mnist10-20": "mnist-cnn-5x5",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
    "GoogLeNet": "googlenet",
    "ResNet50": "resnet50",
}
EXPERIMENTS = {
    "1": ("resnet18", "V100"),
    "2": ("resnet50", "V100"),
    "3": ("resnet18", "A100"),
    "4": ("resnet50", "A100"),
}
DEVICES = {"V100": "v100-sxm2-16", "A100": "a100-sxm-40"}
Cells = dict[str, object]


@dataclass(frozen=True)
class Key:
    """Which ledger a table is held against."""

    model: str
    batch: int = 1
    step: str = "infer"
    channels: str = ""

    @property
    def name(self) -> str:
        return NAMES.get(self.model, self.model)


@cache
def ledger(key: Key) -> Ledger:
    overrides = {"channels": key.channels} if key.channels else {}
    return rooflight.estimate(key.name, batch=key.batch, step=key.step, overrides=overrides)


MNIST = Key("mnist32-64", 64)
MNIST5 = Key("mnist10-20")
MODIFIED = Key("mnist32-64", 1, "infer", "20,40")
VGG16, VGG19 = Key("vgg16"), Key("vgg19")


def training(model: str) -> Key:
    return Key(model, 2, "train")


def of_experiment(quantity: str, **more: object) -> Callable[[re.Match[str]], tuple[Key, Cells]]:
    def made(match: re.Match[str]) -> tuple[Key, Cells]:
        model, gpu = EXPERIMENTS[match[1]]
        return training(model), {"quantity": quantity, "device": DEVICES[gpu], "model": model, **more}

    return made


def of_memory(match: re.Match[str]) -> tuple[Key, Cells]:
    model, gpu = EXPERIMENTS[match[1]]
    return Key(model, 256, "train"), {"quantity": "gpu memory", "device": DEVICES[gpu]}


def of_memory_ratio(match: re.Match[str]) -> tuple[Key, Cells]:
    model, gpu = EXPERIMENTS[match[1]]
    return Key(model, 256, "train"), {"quantity": "gpu memory / parameter bytes", "device": DEVICES[gpu]}


def of_vgg(quantity: str) -> Callable[[re.Match[str]], tuple[Key, Cells]]:
    return lambda m: (Key(m[1], 16), {"quantity": quantity, "device": DEVICES[m[2]]})


def of_layer(quantity: str, **more: object) -> Callable[[re.Match[str]], tuple[Key, Cells]]:
    return lambda m: (Key(m[1], 16), {"layer": m[2], "quantity": quantity, **more})


def of_k80(quantity: str) -> Callable[[re.Match[str]], tuple[Key, Cells]]:
    return lambda m: (
        Key(NAMES[m[1]]),
        {"quantity": quantity, "device": "k80-board", "precision": m[2], "batch": 1, "model": m[1]},
    )


def of_device(quantity: str, **more: object) -> Callable[[re.Match[str]], tuple[Key, Cells]]:
    return lambda m: (Key("vgg11", 16), {"quantity": quantity, "device": DEVICES[m[1]], "precision": "fp32", **more})


TABLES: list[tuple[str, str, Callable[[re.Match[str]], tuple[Key, Cells]]]] = [
    # (subject, quantity, which table it stands in and how)
    (r"mnist32-64 conv2 b(\d+)", "conv2 FLOP.*", lambda m: (MNIST, {"layer": "conv2", "quantity": "FLOP", "batch": m[1]})),
    (r"mnist32-64 conv2 b(\d+)", r"conv2 output \+ parameter bytes", lambda m: (MNIST, {"layer": "conv2", "quantity": "output + parameter bytes", "batch": m[1]})),
    (r"mnist32-64 conv2 b(\d+)", r"conv2 output tensor.*", lambda m: (MNIST, {"layer": "conv2", "quantity": "output tensor", "batch": m[1]})),
    (r"mnist32-64 conv2 b(\d+)", "aten::empty workspace", lambda m: (MNIST, {"layer": "conv2", "quantity": "workspace", "batch": m[1]})),
    (r"mnist32-64 conv2 b(\d+)", "allocation size of the op", lambda m: (MNIST, {"layer": "conv2", "quantity": "allocation size", "batch": m[1]})),
    (r"mnist32-64 conv2 b(\d+)", '"40.6 MB" used at batch 64', lambda m: (MNIST, {"layer": "conv2", "quantity": "allocation size", "batch": m[1], "value": "40.6 MB"})),
    (r"mnist32-64 conv2 b(\d+)", "Self Size Increase.*", lambda m: (MNIST, {"layer": "conv2", "quantity": "self size increase", "batch": m[1]})),
    (r"mnist32-64 conv2", "profile caption batch", lambda m: (MNIST, {"layer": "conv2", "quantity": "batch"})),
    (r"mnist32-64 conv2 A100", "ncu fadd.*", lambda m: (MNIST, {"layer": "conv2", "quantity": "measured FLOP", "device": "a100-sxm-40"})),
    (r"conv2", "kernel ops.*", lambda m: (MNIST, {"layer": "conv2", "quantity": "flops / output elements"})),
    (r"(mnist32-64|mnist10-20) (conv\d|fc\d|total)", "parameters", lambda m: (MNIST if m[1] == "mnist32-64" else MNIST5, {"layer": m[2], "quantity": "parameters"})),
    (r"mnist32-64", "total mult-adds", lambda m: (MNIST, {"quantity": "total mult-adds", "batch": 1})),
    (r"(mnist32-64|mnist10-20)", "forward/backward size(, .*)?", lambda m: (MNIST if m[1] == "mnist32-64" else MNIST5, {"quantity": "forward/backward size", "batch": 1})),
    (r"(mnist32-64|mnist10-20)", "params size", lambda m: (MNIST if m[1] == "mnist32-64" else MNIST5, {"quantity": "params size"})),
    (r"(mnist32-64|mnist10-20)", "estimated total( size.*)?", lambda m: (MNIST if m[1] == "mnist32-64" else MNIST5, {"quantity": "estimated total size", "batch": 1})),
    (r"(mnist32-64|mnist10-20)", "input size", lambda m: (MNIST if m[1] == "mnist32-64" else MNIST5, {"quantity": "input size", "batch": 1})),
    (r"mnist shapes", r"conv1 output", lambda m: (MNIST, {"layer": "conv1", "quantity": "output size"})),
    (r"mnist shapes", r"conv2 output", lambda m: (MNIST, {"layer": "conv2", "quantity": "output size"})),
    (r"mnist shapes", "pool output", lambda m: (MNIST, {"layer": "max_pool2d", "quantity": "output size"})),
    (r"mnist shapes", "flattened features", lambda m: (MNIST, {"layer": "fc1", "quantity": "input features"})),
    (r"mnist shapes", "modified conv1 output channels.*", lambda m: (MODIFIED, {"layer": "conv1", "quantity": "output elements"})),
    (r"mnist shapes", "modified conv2 output elements", lambda m: (MODIFIED, {"layer": "conv2", "quantity": "output elements"})),
    (r"mnist shapes", "modified fc1 in_features", lambda m: (MODIFIED, {"layer": "fc1", "quantity": "in_features"})),
    (r"mnist10-20", "conv1 out", lambda m: (MNIST5, {"layer": "conv1", "quantity": "output size"})),
    (r"mnist10-20", "conv2 out", lambda m: (MNIST5, {"layer": "conv2", "quantity": "output size"})),
    (r"mnist10-20", "fc1 in", lambda m: (MNIST5, {"layer": "fc1", "quantity": "input features"})),
    (r"(smsp__\S+)", "metric name", lambda m: (MNIST, {"quantity": m[1], "value": "n/a"})),
    # Document 002.
    (r"(resnet\d+) (\d) GPU", "parameters", lambda m: (Key(m[1], 256, "train"), {"quantity": "parameters", "remark": f"{m[2]} GPU"})),
    (r"(resnet\d+)(?: (\d) GPU)?", "parameter bytes", lambda m: (Key(m[1], 256, "train"), {"quantity": "parameter bytes", "device": DEVICES["A100" if m[2] else "V100"]})),
    (r"Exp(\d)", "actual GPU memory", of_memory),
    (r"Exp(\d)", "actual/theoretical memory", of_memory_ratio),
    (r"memory ratio", '"more than 290 times"', lambda m: (Key("resnet18", 256, "train"), {"quantity": "gpu memory / parameter bytes", "device": DEVICES["V100"], "value": ">290"})),
    (r"(resnet\d+)", "theoretical FLOP", lambda m: (training(m[1]), {"quantity": "theoretical FLOP", "step": "forward", "batch": 2})),
    (r"Exp(\d) resnet\d+ [VA]100", "actual FLOP", of_experiment("actual FLOP")),
    (r"Exp(\d) resnet\d+ [VA]100", "actual/theoretical FLOP", of_experiment("actual FLOP / theoretical FLOP")),
    (r"Exp(\d) resnet\d+ [VA]100", "time", of_experiment("wall time")),
    (r"Exp(\d) resnet\d+ [VA]100", "DRAM bytes", of_experiment("DRAM bytes")),
    (r"Exp(\d) resnet\d+ [VA]100", "throughput", of_experiment("achieved bandwidth")),
    (r"Exp(\d) resnet\d+ [VA]100", "arithmetic intensity", of_experiment("arithmetic intensity")),
    (r"Exp(\d) resnet\d+ [VA]100", "performance", of_experiment("performance")),
    (r"Exp(\d)", "trial 4 plotted y", of_experiment("performance", note="plotted")),
    (r"(resnet\d+)", "FLOP decrease V100->A100", lambda m: (training(m[1]), {"quantity": "actual FLOP on a100-sxm-40 / actual FLOP on v100-sxm2-16", "value": "<10 %"})),
    (r"(resnet\d+)", "byte decrease", lambda m: (training(m[1]), {"quantity": "DRAM bytes on a100-sxm-40 / DRAM bytes on v100-sxm2-16", "value": "<60 %" if m[1] == "resnet18" else "<80 %"})),
    (r"", "resnet50/resnet18 parameters", lambda m: (Key("resnet18", 256, "train"), {"quantity": "parameters of resnet50 / parameters of resnet18"})),
    (r"(V100|A100) fp32", "ridge point", of_device("ridge point")),
    (r"(V100|A100) fp32", "peak", of_device("peak")),
    (r"(V100) fp32 point 2 and 3", "roof height", of_device("roof height")),
    (r"(V100|A100) (?:HBM2|40GB)", "bandwidth", of_device("bandwidth")),
    (r"(V100) SXM2", "NVLink bandwidth.*", of_device("GPU-CPU bandwidth")),
    # Document 003.
    (r"(V100|A100)", "peak AI", of_device("peak AI", note="003")),
    (r"(V100|A100)", "peak fp32", of_device("peak", note="003")),
    (r"(V100|A100)", "bandwidth", of_device("bandwidth", note="003")),
    (r"(vgg\d+) (\w+-\d+)", "FLOP per image", of_layer("FLOP per image")),
    (r"(vgg\d+) (\w+-\d+)", r"parameters \(Fig 2\)", of_layer("parameters")),
    (r"(vgg\d+) (\w+-\d+)", "output image size", of_layer("output image size")),
    (r"(vgg\d+)", "total parameters", lambda m: (Key(m[1], 16), {"quantity": "total parameters"})),
    (r"(vgg\d+)", "total FLOP batch 16", lambda m: (Key(m[1], 16), {"quantity": "total FLOP", "batch": 16})),
    (r"(vgg\d+)", "rounded total", lambda m: (Key(m[1], 16), {"quantity": "total FLOP", "batch": 16, "note": "rounded"})),
    (r"(vgg\d+)", "conv layers", lambda m: (Key(m[1], 16), {"layer": "Conv2d", "quantity": "conv layers"})),
    (r"(vgg\d+) ([VA]100) b16", "measured FLOP", of_vgg("measured FLOP")),
    (r"(vgg\d+) ([VA]100) b16", "DRAM bytes", of_vgg("DRAM bytes")),
    (r"(vgg\d+) ([VA]100) b16", "time", of_vgg("kernel time")),
    (r"(vgg\d+) ([VA]100) b16", "arithmetic intensity", of_vgg("arithmetic intensity")),
    (r"(vgg\d+) ([VA]100) b16", "performance", of_vgg("performance")),
    # Document 004.
    (r"vgg16 (features|classifier)_(\d+)", "ops", lambda m: (VGG16, {"layer": f"{m[1]}_{m[2]}", "quantity": "ops"})),
    (r"vgg16 avgpool", "ops", lambda m: (VGG16, {"layer": "avgpool", "quantity": "ops"})),
    (r"vgg16 \(labelled VGG19\)", "total ops", lambda m: (VGG16, {"quantity": "total ops"})),
    (r"vgg16 \(labelled VGG19\)", "conv ops", lambda m: (VGG16, {"layer": "Conv2d", "quantity": "ops"})),
    (r"VGG19 asked, VGG16 computed", "conv fraction %", lambda m: (VGG19, {"layer": "Conv2d", "quantity": "share of flops"})),
    (r"VGG16", "conv share quoted.*", lambda m: (VGG16, {"layer": "Conv2d", "quantity": "share of flops"})),
    (r"(VGG16|GoogLeNet|ResNet50)", r'total "FLOPs" \(Lu et al\.\)', lambda m: (Key(NAMES[m[1]]), {"quantity": "MACs", "model": m[1]})),
    (r"(VGG16|GoogLeNet|ResNet50) K80 (single|double) precision", "inference time", of_k80("inference time")),
    (r"(VGG16|GoogLeNet|ResNet50) K80 (single|double) precision", "throughput", of_k80("throughput")),
]  # fmt: skip
EVERYWHERE: list[tuple[str, str, Callable[[re.Match[str]], Cells], tuple[Key, ...]]] = [
    # Numbers that stand in several tables.
    (r"K80 (single|double)", "peak", lambda m: {"quantity": "peak", "device": "k80-board", "precision": m[1]}, tuple(Key(n) for n in ("vgg16", "googlenet", "resnet50"))),
    (r"(resnet50) 1 GPU", "parameters", lambda m: {"quantity": "parameters", "model": m[1]}, (Key("resnet18", 256, "train"),)),
]  # fmt: skip
UNHEARD = MNIST
"""Where numbers go that are of no model: accuracies, data sets, a script's output."""


def value_of(row: dict[str, Any]) -> str:
    """The number as the documents wrote it: summary tools print MiB with two decimals, percent have their sign."""
    stated = row["stated"]
    if row["unit"] == "byte" and isinstance(stated, float):
        mebi = stated / 2**20
        if abs(mebi - round(mebi, 2)) < 1e-9:
            return f"{mebi:.2f} MiB"
    units = {"GFLOP/s": "GFLOP/s", "byte/s": "B/s", "percent": "%", "MAC": "MAC"}
    number = (
        str(int(stated))
        if isinstance(stated, float) and stated.is_integer() and row["unit"] != "percent"
        else repr(stated)
    )
    return f"{number} {units.get(row['unit'], '')}".strip()


def row_of(row: dict[str, Any]) -> list[tuple[Key, Cells]]:
    """The tables that a number stands in; none where nothing was stated or no ledger speaks of it."""
    places: list[tuple[Key, Cells]] = []
    for subject, quantity, made in TABLES:
        if (found := re.fullmatch(subject, row["subject"])) and re.fullmatch(quantity, row["quantity"]):
            places.append(made(found))
            break
    for subject, quantity, cells_of, keys in EVERYWHERE:
        if (found := re.fullmatch(subject, row["subject"])) and re.fullmatch(quantity, row["quantity"]):
            places += [(key, cells_of(found)) for key in keys]
    if not places and row["stated"] is not None:
        places.append((UNHEARD, {"quantity": row["quantity"], "note": row["subject"]}))
    return [
        (key, {"layer": "", "value": cells.get("value") or value_of(row), **cells})
        for key, cells in places
        if row["stated"] is not None or "value" in cells
    ]


COLUMNS = ("layer", "quantity", "value", "batch", "step", "precision", "device", "model", "note", "number")


@cache
def tables() -> dict[Key, list[tuple[int, Cells]]]:
    """For each ledger the numbers, by their place in the documents, and how they are written."""
    found: dict[Key, list[tuple[int, Cells]]] = defaultdict(list)
    for number, row in enumerate(DOCUMENTS):
        for key, cells in row_of(row):
            found[key].append((number, cells))
    return dict(found)


def to_csv(rows: list[Cells]) -> bytes:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


@cache
def checked(key: Key) -> Checked:
    """A document's table against the ledger of its model."""
    rows: list[Cells] = [{**cells, "number": number} for number, cells in tables()[key]]
    return check(ledger(key), parse_claims(to_csv(rows), "documents.csv"), file="documents.csv")
