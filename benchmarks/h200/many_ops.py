"""A step of 20,000 ops with counters for each: more than fit into one image of the counters' memory.

usage: many_ops.py OUT.json [OPS]    (needs a CUDA GPU)
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import rooflight
from rooflight.metrics import DRAM_BYTES as DRAM

OPS = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(OPS // 2):
            x = torch.relu(x + 1.0)
        return x


def main() -> None:
    x = torch.randn(1 << 20, device="cuda")
    start = time.perf_counter()
    ledger = rooflight.measure(Chain().cuda(), x, repeat=3)
    seconds = time.perf_counter() - start
    counted = [row for row in ledger.measurements if row.scope == "op" and "cuda_flops_fp32" in row.quantities]
    step = next(row for row in ledger.measurements if row.scope == "step").quantities
    adds = sum(row.quantities["cuda_flops_fp32"].value for row in counted)
    result = {
        "ops": len(ledger.ops), "ops_counted": len(counted), "seconds": seconds, "fp32_flops_of_ops": adds,
        "fp32_flops_of_step": step["cuda_flops_fp32"].value, "useful": OPS // 2 * x.numel(),
        "dram_bytes_of_ops": sum(row.quantities[name].value for row in counted for name in DRAM if name in row.quantities), "dram_bytes_of_step": sum(step[name].value for name in DRAM), "notes": [note.text for note in ledger.header.notes if "counters" in note.text],
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


main()
