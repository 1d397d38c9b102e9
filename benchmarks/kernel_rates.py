"""Learns how fast kernels of convolutions are, from single ops of random shapes: the table of analysis/timed.

usage: kernel_rates.py FOLDER ...    (folders with ledgers of h200/instructions.py; default: h200/results/instructions)

For every name of a kernel seven numbers (`rooflight.analysis.kernel_rates.KernelRate`), fitted so that the kernel's time
comes out in the mean of the logarithms, drawn to those of its kind where it was timed a few times only. Kinds that take
much less in the random networks (h200/results/nets) than by these numbers are left out. Without a GPU, in a minute.
"""

import gzip
import math
import sys
from collections import Counter
from pathlib import Path

import msgspec
import torch

import rooflight
from rooflight.analysis.cause import kernels_of_ops
from rooflight.analysis.kernel_rates import FOLDER, KernelRate, KernelRates, KernelWork, convolution_works
from rooflight.analysis.time_causes import is_beside
from rooflight.hardware.devices import recognise_name
from rooflight.ops.kernel_names import role_of

LEDGERS = Path(__file__).parent / "h200" / "results" / "instructions"
TURNS = 900
TILED = (2.5e-6, 0.6, 6e12, 150e-9, 3.5e12, 0.5e-6, 0.0)
PLAIN = (2e-6, 0.05, 6e12, 50e-9, 3.5e12, 0.2e-6, 0.0)
"""Where a kind begins: start, busy part, L2, step, DRAM, round, power of the tile."""
TOO_SLOW = {"cutlass, whole, tensor tf32": 1.31, "engine, whole, cuda fp32": 2.11, "nvjet, whole, tensor bf16": 1.46}
"""Kinds that are left out: their time by these numbers over that in the random networks."""


def timed(paths: list[Path]) -> tuple[list[tuple[KernelWork, float]], str, str]:
    rows, device_name, version = [], "", ""
    for path in paths:
        ledger = rooflight.load(path)
        device = recognise_name(ledger.header.device)
        assert device is not None
        device_name, version = device.name, ledger.header.torch or version
        kernels = kernels_of_ops(ledger)
        for op in ledger.ops:
            own = [kernel for kernel in kernels[op.index] if kernel.kind == "kernel"]
            names = [role_of(kernel.name) for kernel in own]
            works = convolution_works(op, own, names, device)
            rows += [
                (work, kernel.time_s)
                for work, kernel in zip(works, own, strict=True)
                if work is not None and kernel.time_s and not is_beside(kernel)
            ]
    return rows, device_name, version


def modelled(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    start, busy, l2, step, dram, round_ = (torch.exp(p[:, n]) for n in range(6))
    limits = torch.stack(
        [x[:, 0] / (busy * torch.exp(p[:, 6] * x[:, 5])), x[:, 1] / l2, x[:, 2] * step, x[:, 3] / dram]
    )
    return start + ((limits + 1e-12) ** 4).sum(0) ** 0.25 + round_ * x[:, 4]


def fitted(rows: list[tuple[KernelWork, float]]) -> list[KernelRate]:
    kinds = sorted({work.kind for work, _ in rows})
    assert TOO_SLOW.keys() <= set(kinds), f"no kernel is of a kind that is left out: {TOO_SLOW.keys() - set(kinds)}"
    makes = sorted({(work.kind, work.make) for work, _ in rows})
    of_kind = torch.tensor([kinds.index(work.kind) for work, _ in rows])
    place = {make: n for n, make in enumerate(makes)}
    of_make = torch.tensor([place[work.kind, work.make] for work, _ in rows])
    x = torch.tensor(
        [[work.compute_s, work.l2_bytes, work.steps, work.dram_bytes, work.rounds, math.log(work.tile / 16384)]
         for work, _ in rows], dtype=torch.float64)  # fmt: skip
    y = torch.tensor([time_s for _, time_s in rows], dtype=torch.float64)
    begin = torch.tensor([[*map(math.log, (row := TILED if " bits" not in kind else PLAIN)[:6]), row[6]]
                          for kind in kinds], dtype=torch.float64)  # fmt: skip
    shared = begin.clone().requires_grad_(True)
    own = torch.zeros(len(makes), 7, dtype=torch.float64, requires_grad=True)
    weight = (y / 5e-6).clamp(max=1) + 0.3
    steps = torch.optim.Adam([shared, own], lr=0.03)
    for turn in range(TURNS):
        if turn == TURNS * 2 // 3:
            steps.param_groups[0]["lr"] = 0.008
        steps.zero_grad()
        off = torch.log(modelled(shared[of_kind] + own[of_make], x) / y).abs()
        ((weight * off).sum() + 0.2 * (own**2).sum() + 0.3 * ((shared - begin) ** 2).sum()).backward()
        steps.step()
    with torch.no_grad():
        found = modelled(shared[of_kind] + own[of_make], x)
        print(f"{len(rows)} kernels: {((found - y).abs().sum() / y.sum()):.1%} of their time is off, "
              f"{(found / y - 1).abs().median():.1%} in the median")  # fmt: skip
    counts = Counter((work.kind, work.make) for work, _ in rows)
    rates = []
    for n, (kind, make) in enumerate(makes):
        *logs, larger = (shared[kinds.index(kind)] + own[n]).tolist()
        start, busy, l2, step, dram, round_ = (float(f"{math.exp(value):.4g}") for value in logs)
        rates.append(KernelRate(kind, make, start, busy, l2, step, dram, round_, round(larger, 3), counts[kind, make]))
    return [rate for rate in rates if rate.kind not in TOO_SLOW]


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]] or [LEDGERS]
    rows, device, version = timed(sorted(path for folder in folders for path in folder.glob("*.json.gz")))
    table = KernelRates(device, version, tuple(fitted(rows)))
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{device}.json.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(table), 9, mtime=0))
    print(f"wrote {path.name}: {len(table.rates)} kernels, {path.stat().st_size:,} bytes")


main()
