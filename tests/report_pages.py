"""Reports that several tests look at: made once, however many processes ask for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from msgspec.structs import replace
from torch import nn

import rooflight
from rooflight.ledger import Kernel, Ledger, Measurement, Value

HOSTILE = "</script><script>hacked=1</script>"
"""A name that ends the script it stands in, if anything lets it."""
MARKUP = "<img src=x onerror=hacked=2>"
ROOT = Path(__file__).parents[1]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A file that the first process to ask for it makes; its siblings of the same run wait for it."""
    folder = factory.getbasetemp().parent if factory.getbasetemp().name.startswith("popen") else factory.getbasetemp()
    path = folder / name
    with FileLock(f"{path}.lock"):
        if not path.exists():
            make(path)
    return path


def hostile_ledger() -> Ledger:
    """A measured step whose model, modules, kernels and notes are named to break a page."""
    model = nn.Sequential()
    model.add_module(HOSTILE, nn.Linear(8, 4))
    model.add_module(MARKUP, nn.ReLU())
    ledger = rooflight.estimate(model, torch.zeros(2, 8))
    times = [
        Measurement(scope="op", ops=(op.index,), quantities={"kernel_time_s": Value(1e-5, HOSTILE)})
        for op in ledger.ops
        if op.kind == "compute"
    ]
    step = Measurement(scope="step", quantities={"wall_time_s": Value(1e-4, MARKUP), "gpu_busy_s": Value(5e-5, "x")})
    kernels = tuple(
        Kernel(name=f"{HOSTILE}{number}", ops=row.ops, start_s=number * 1e-5, time_s=1e-5, stream=7)
        for number, row in enumerate(times)
    )
    header = replace(ledger.header, model=HOSTILE, device="NVIDIA H200", notes=(MARKUP,), command=f"x {HOSTILE}")
    return replace(ledger, header=header, kernels=kernels, measurements=(*times, step))
