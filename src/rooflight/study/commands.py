"""Command lines that do one side of one cell by themselves: what a ledger says of how it was made."""

from __future__ import annotations

import shlex
from pathlib import Path

from rooflight.study.cell import Cell


def estimate_command(cell: Cell) -> str:
    return cell.command("estimate")


def measure_command(cell: Cell, device: str) -> str:
    return cell.command("measure", on=device)


def predict_command(cell: Cell) -> str:
    return cell.command("predict", on=cell.on or "h200")


def worker_command(folder: Path) -> str:
    return shlex.join(["python", "-m", "rooflight.study.worker", str(folder)])
