"""Traces KernelBench's problems into benchmarks/published/kernelbench-ledgers.msgpack.gz: their ops, no code of theirs.

usage: kernelbench_ledgers.py CHECKOUT     a checkout of https://github.com/ScalingIntelligence/KernelBench at a6dea99

**Of that commit**: the times were taken on 2025-01-21 and 22; the problems of later commits (b08d959, 2025-07-02, and
after) are larger by up to some hundred times. Read from their scripts: torch 2.5.0, CUDA 12.4, fp32 with torch's own
switches (TF32 in convolutions, none in matmuls), no_grad, **the module left in train mode** (batch norms take the
statistics of the batch, dropout drops), CUDA events around one call that begins on an idle GPU, mean of 100 calls after
3: the time of the host before the first kernel is in it.
"""

from __future__ import annotations

import gzip
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

import rooflight
from rooflight.errors import one_line
from rooflight.ledger import Ledger

OUT = Path(__file__).parent / "published" / "kernelbench-ledgers.msgpack.gz"
TARGETS = ("cuda", "cuda:80", "cuda:75")


def main() -> None:
    folder = Path(sys.argv[1]) / "KernelBench"
    ledgers: dict[str, dict[str, Ledger]] = {}
    failed: dict[str, str] = {}
    for level in (1, 2, 3):
        for path in sorted((folder / f"level{level}").glob("*.py")):
            name = f"level{level}/{path.stem}"
            try:
                first = traced(path, TARGETS[0])
                ledgers[name] = {TARGETS[0]: first}
                for target in TARGETS[1:]:
                    other = traced(path, target)
                    if other.ops != first.ops:
                        ledgers[name][target] = other
            except Exception as error:
                failed[name] = one_line(error)
                print(name, one_line(error), flush=True)
    OUT.write_bytes(gzip.compress(msgspec.msgpack.encode({"ledgers": ledgers, "failed": failed}), mtime=0))
    print(f"{len(ledgers)} problems, {len(failed)} not traced, {OUT.stat().st_size / 1e3:.0f} kB")


def traced(path: Path, target: str) -> Ledger:
    module = types.ModuleType("problem")
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    with torch.device("meta"), torch.no_grad():
        inputs: list[Any] = module.get_inputs()
    with torch.no_grad():
        model = _made(module)
    ledger = rooflight.estimate(_in_train_mode(model), *inputs, step="infer", target=target, batch=1)
    return without_names(ledger)


def _made(module: types.ModuleType) -> nn.Module:
    """On tensors without data, but for those that read values while they are made."""
    model: nn.Module
    try:
        with torch.device("meta"):
            model = module.Model(*module.get_init_inputs())
    except RuntimeError:
        model = module.Model(*module.get_init_inputs()).to("meta")
    return model


def _in_train_mode(model: nn.Module) -> nn.Module:
    """An inference puts the model in eval mode; theirs was left as it was made."""
    kind = type(model)
    model.__class__ = type(kind.__name__, (kind,), {"train": lambda self, mode=True: kind.train(self, True)})
    return model.train()


def without_names(ledger: Ledger) -> Ledger:
    """Ops, shapes and storages: what a prediction needs. Names of their modules and costs are left out."""
    ops = tuple(msgspec.structs.replace(op, module="", cost=None) for op in ledger.ops)
    header = msgspec.structs.replace(ledger.header, command="", model="problem")
    return msgspec.structs.replace(ledger, ops=ops, header=header, modules=())


if __name__ == "__main__":
    main()
