"""Command lines that do one side of one cell by themselves: what a ledger says of how it was made."""

from __future__ import annotations

import shlex
from pathlib import Path

from rooflight.study.cell import Cell

_USUAL = {"step": "infer", "dtype": "fp32"}


def estimate_command(cell: Cell) -> str:
    return shlex.join(["rooflight", "estimate", *step_options(cell)])


def measure_command(cell: Cell, device: str) -> str:
    return shlex.join(["rooflight", "measure", *step_options(cell), "--on", device])


def predict_command(cell: Cell) -> str:
    more = ["--on", cell.on or "h200"]
    more += ["--gpus", str(cell.gpus)] if cell.gpus > 1 else []
    more += ["--parallel", cell.parallel] if cell.parallel else []
    return shlex.join(["rooflight", "predict", *step_options(cell), *more])


def step_options(cell: Cell) -> list[str]:
    """The model and its step, as every verb takes them."""
    line = [cell.model, "--batch", str(cell.batch)]
    for name in ("input", "seq", "past", "step", "dtype", "autocast", "loss", "optimizer"):
        value = getattr(cell, name)
        if value is not None and value != _USUAL.get(name):
            line += [f"--{name}", str(value)]
    if cell.tf32 is not None:
        line.append("--tf32" if cell.tf32 else "--no-tf32")
    for name, value in cell.set.items():
        line += ["--set", f"{name}={value}"]
    return line


def worker_command(folder: Path) -> str:
    return shlex.join(["python", "-m", "rooflight.study.worker", str(folder)])
