"""Steps that somebody timed and published, all in one form: what `benchmarks/accuracy.py` judges predictions by.

What predicts them is not chosen by them (benchmarks/held_out.toml, docs/decisions/0031 and 0034).
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rooflight.hardware.device import Device
from rooflight.hardware.devices import find, recognise_name
from rooflight.prediction.checked_steps import RowSource

ROOT = Path(__file__).parents[1]
PUBLISHED = Path(__file__).parent / "published"
OWN_DEVICES = Path(__file__).parent / "published_devices"
NEUSIGHT = ROOT / "tests" / "data" / "published_steps.json"
H200_OPEN = ROOT / "tests" / "data" / "h200_open.jsonl"
H200_HELD_OUT = Path(__file__).parent / "h200" / "results" / "held_out.json"

SOURCES = {
    "neusight": RowSource(
        title="labels of NeuSight (Lee, Phanishayee, Mahajan; ASPLOS 2025): transformers in fp32, TF32 off, eager",
        url="https://github.com/sitar-lab/NeuSight at 6945927",
        licence="MIT",
        timed="CUDA events around forward, or forward and backward without the optimizer; mean of the 5 least of 25",
    ),
    "timm": RowSource(
        title="results of pytorch-image-models (timm): image networks under fp16 autocast, eager, cudnn.benchmark on; "
        "inference in torch 2.4, training in torch 1.12",
        url="https://github.com/huggingface/pytorch-image-models, results/",
        licence="Apache-2.0",
        timed="the wall around a step that ends with a synchronisation; training with its optimizer (SGD, momentum)",
    ),
    "kernelbench": RowSource(
        title="baselines of KernelBench (Ouyang et al. 2025): single ops, chains of ops and networks in fp32, torch 2.5, "
        "eager, modules in train mode without gradients",
        url="https://github.com/ScalingIntelligence/KernelBench at a6dea99",
        licence="MIT",
        timed="CUDA events around one call on an idle GPU, so with the host's way to the first kernel; mean of 100",
    ),
    "nvidia": RowSource(
        title="ResNet-50 v1.5 of NVIDIA's DeepLearningExamples in PyTorch (container 21.03)",
        url="https://github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5",
        licence="figures of its README",
        timed="images per second of a training or inference loop, data loading included",
    ),
    "h200-open": RowSource(
        title="recorded by rooflight's authors on an H200, torch 2.11: 120 steps of built-in models",
        url="tests/data/h200_open.jsonl",
        licence="Apache-2.0",
        timed="the wall of a step in a loop, and the sum of its kernels",
    ),
    "h200-held-out": RowSource(
        title="recorded by rooflight's authors on an H200, torch 2.11: steps of models that nothing was developed on",
        url="benchmarks/h200/results/held_out.json",
        licence="Apache-2.0",
        timed="the wall of a step in a loop, and the sum of its kernels",
    ),
}
StepName = Literal["infer", "train"]
Scope = Literal["kernels", "events", "call", "wall"]
"""What the time holds: kernels alone; kernels and the gaps between them (CUDA events around a step that the GPU
bounds); the same around one call on an idle GPU, which waits for the host; or everything, by a watch."""


@dataclass(frozen=True)
class TraceKey:
    """What is traced, whatever the batch where one trace serves all of them."""

    how: Literal["model", "neusight", "kernelbench"]
    model: str
    """As rooflight takes it; of KernelBench: level and problem."""
    step: StepName
    dtype: str = "fp32"
    autocast: str | None = None
    input: str | None = None
    """As `3x224x224`."""
    seq: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    loss: str | None = None
    optimizer: str | None = None
    foreach: bool | None = None
    tf32: bool | None = None
    target: str = "cuda"
    batch: int | None = None
    """`None`: one trace for every batch."""
    fused_attention: bool = True
    """Torch has had a fused kernel for attention since 2.0: before, timm's networks wrote it out."""


@dataclass(frozen=True)
class PublishedStep:
    source: str
    device: str
    """rooflight's name, or that of a file of benchmarks/published_devices."""
    model: str
    family: str
    """`op` and `chain of ops` for what is no model; else the trace tells its kind."""
    step: StepName
    batch: int | None
    size: int | None
    """Tokens of a sequence or pixels of an image's side."""
    precision: str
    """`fp32` (with TF32 as the trace says), `bf16`, `amp-fp16`."""
    channels_last: bool
    published_s: float
    scope: Scope
    trace: TraceKey
    notes: str = ""

    @property
    def name(self) -> str:
        layout = " nhwc" if self.channels_last else ""
        return f"{self.model} {self.step} b{self.batch} {self.size or ''} {self.precision}{layout}".replace("  ", " ")


@cache
def device_named(name: str) -> Device:
    own = OWN_DEVICES / f"{name}.toml"
    return find(str(own) if own.is_file() else name)


def steps(only: str | None = None, *, quick: bool = False) -> list[PublishedStep]:
    """All of them, or those of one source. `quick`: of timm's every sixth model, of KernelBench's every fifth problem."""
    readers = {
        "neusight": neusight, "timm": timm, "kernelbench": kernelbench, "nvidia": nvidia, "h200-open": h200_open,
        "h200-held-out": h200_held_out,
    }  # fmt: skip
    found = [step for name, read in readers.items() if only in (None, name) for step in read()]
    return list(_thinned(found)) if quick else found


def _thinned(all_steps: list[PublishedStep]) -> Iterator[PublishedStep]:
    every = {"timm": 6, "kernelbench": 5}
    places: dict[tuple[str, str], dict[tuple[str, int | None], int]] = {}
    for step in all_steps:
        group = places.setdefault((step.source, step.step), {})
        place = group.setdefault((step.model, step.size), len(group))
        if place % every.get(step.source, 1) == 0:
            yield step


# --- NeuSight's labels ---


def neusight() -> Iterator[PublishedStep]:
    data = json.loads(NEUSIGHT.read_text())
    for row in data["rows"]:
        model = data["models"][row["model"]]
        known = model.get(row["step"], model)
        device = device_reported(row["device"])
        if "why_not" in known or row["timed"] not in ("infer", "train") or device is None:
            continue
        key = TraceKey(
            "neusight", known["spec"], row["step"], seq=row["seq"], settings=tuple(known["set"].items()), tf32=False,
            optimizer="sgd" if row["step"] == "train" else None, batch=row["batch"],
        )  # fmt: skip
        yield PublishedStep(
            source="neusight", device=device, model=row["model"], family="", step=row["step"],
            batch=row["batch"], size=row["seq"], precision="fp32", channels_last=False, published_s=row["time_s"],
            scope="events", trace=key, notes="forward waited" if row.get("forward_stalled") else "",
        )  # fmt: skip


def device_reported(name: str) -> str | None:
    """The name here of what torch calls so."""
    own = name.replace(" ", "_")
    if (OWN_DEVICES / f"{own}.toml").is_file() and recognise_name(name) is None:
        return own
    device = recognise_name(name)
    return None if device is None else device.name


# --- timm's tables ---


def _csv(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def timm() -> Iterator[PublishedStep]:
    for row in _csv(PUBLISHED / "timm.csv.gz"):
        training, size = row["step"] == "train", int(row["size"])
        step: StepName = "train" if training else "infer"
        # The tables' script: SGD with momentum; torch 1.12 had no foreach optimizer by default, and no fused attention.
        key = TraceKey(
            "model", f"timm:{row['model']}", step, autocast="fp16", input=f"3x{size}x{size}", target="cuda:80",
            optimizer="momentum" if training else None, foreach=False if training else None, fused_attention=not training,
        )  # fmt: skip
        yield PublishedStep(
            source="timm", device=row["device"], model=row["model"], family="", step=step,
            batch=int(row["batch"]), size=size, precision="amp-fp16", channels_last=row["channels_last"] == "1",
            published_s=float(row["time_ms"]) * 1e-3, scope="wall", trace=key, notes=row["table"],
        )  # fmt: skip


# --- KernelBench's problems ---


FAMILIES = {"1": "op", "2": "chain of ops", "3": ""}


def kernelbench() -> Iterator[PublishedStep]:
    for row in _csv(PUBLISHED / "kernelbench.csv.gz"):
        problem = f"level{row['level']}/{row['problem']}"
        capability = device_named(row["device"]).capability or 0
        target = "cuda" if capability >= 90 else "cuda:80" if capability >= 80 else "cuda:75"
        yield PublishedStep(
            source="kernelbench", device=row["device"], model=problem, family=FAMILIES[row["level"]], step="infer",
            batch=None, size=None, precision="fp32", channels_last=False, published_s=float(row["time_ms"]) * 1e-3,
            scope="call", trace=TraceKey("kernelbench", problem, "infer", target=target),
        )  # fmt: skip


# --- NVIDIA's figures of ResNet-50 ---


@dataclass(frozen=True)
class _Figure:
    device: str
    step: StepName
    batch: int
    images_per_s: float
    tf32: bool


RESNET50 = (
    _Figure("v100-sxm2-16", "train", 128, 367, False),
    _Figure("v100-sxm2-16", "infer", 32, 1127, False),
    _Figure("t4", "infer", 32, 420, False),
    _Figure("a100-sxm-80", "train", 256, 938, True),
)
"""NVIDIA DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5, README (container 21.03): throughput of one
GPU of a DGX-1 (V100 16 GB), a T4, a DGX A100 (80 GB; batch 256 by its configs.yml)."""


def nvidia() -> Iterator[PublishedStep]:
    for figure in RESNET50:
        training = figure.step == "train"
        key = TraceKey(
            "model", "resnet50", figure.step, tf32=figure.tf32, optimizer="momentum" if training else None,
            target="cuda:80" if figure.tf32 else "cuda:75",
        )  # fmt: skip
        yield PublishedStep(
            source="nvidia", device=figure.device, model="resnet50", family="", step=figure.step, batch=figure.batch,
            size=224, precision="tf32" if figure.tf32 else "fp32", channels_last=False,
            published_s=figure.batch / figure.images_per_s, scope="wall", trace=key, notes="data loading included",
        )  # fmt: skip


# --- the H200's own ---


NAMES = {
    "mnist_cnn": ("mnist-cnn", None), "transformer_s128": ("transformer", 128), "gpt2_s128": ("gpt2", 128),
    "gpt2_s1024": ("gpt2", 1024), "distilbert_s128": ("distilbert-mlm", 128),
}  # fmt: skip
"""Name in the rows -> built-in model and its sequence; the others have the same name."""
OPTIMIZERS = {"SGD": "momentum", "AdamW": "adamw", None: None}


def h200_open() -> Iterator[PublishedStep]:
    for line in H200_OPEN.read_text().splitlines():
        row = json.loads(line)
        if "gpu_seconds" not in row:
            continue
        model, seq = NAMES.get(row["model"], (row["model"], None))
        key = TraceKey(
            "model", model, row["mode"], dtype=row["dtype"], seq=seq, loss="mse" if row["mode"] == "train" else None,
            optimizer=OPTIMIZERS[row["optimizer"]],
        )  # fmt: skip
        yield from _both("h200-open", model, key, row["batch"], row["gpu_seconds"], row["seconds"])


def h200_held_out() -> Iterator[PublishedStep]:
    for row in json.loads(H200_HELD_OUT.read_text())["rows"]:
        if "gpu_time_s" not in row:
            continue
        key = TraceKey(
            "model", row["model"], row["step"], dtype=row["dtype"], seq=row["seq"], settings=tuple(row["set"].items()),
            loss="mse" if row["step"] == "train" else None,
        )  # fmt: skip
        yield from _both("h200-held-out", row["model"], key, row["batch"], row["gpu_time_s"], row["wall_time_s"])


def _both(
    source: str, model: str, key: TraceKey, batch: int, kernels_s: float, wall_s: float
) -> Iterator[PublishedStep]:
    plain = model.split(":")[-1]
    scopes: tuple[tuple[Scope, float], ...] = (("kernels", kernels_s), ("wall", wall_s))
    for scope, time_s in scopes:
        yield PublishedStep(
            source=source, device="h200", model=plain, family="", step=key.step, batch=batch, size=key.seq,
            precision=key.dtype, channels_last=False, published_s=time_s, scope=scope, trace=key,
        )  # fmt: skip


def as_data(key: TraceKey) -> dict[str, Any]:
    """What names the trace, for the name of its file."""
    named = {name: getattr(key, name) for name in TraceKey.__dataclass_fields__}
    return {name: value for name, value in named.items() if name != "fused_attention" or not value}
