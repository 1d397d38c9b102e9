"""Steps of one token against a KV cache, timed op by op: what the floor and the times of such steps are judged by.

usage: decode.py OUT.json SECONDS    (needs a CUDA GPU)

Kernel times are the profiler's. `attention` is one layer alone, as a model calls it; its bytes are cold, since another
layer's cache was read in between.
"""

import gc
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

import rooflight

STEPS = [
    ("gpt2", 1, 512, "bf16"), ("gpt2", 32, 512, "bf16"), ("gpt2", 1, 512, "fp32"), ("gpt2", 32, 512, "fp32"),
    ("gpt2", 100, 900, "bf16"), ("llama3-8b", 1, 1024, "bf16"), ("llama3-8b", 8, 8192, "bf16"),
    ("llama3-8b", 1, 32768, "bf16"), ("llama3-8b", 64, 8192, "bf16"),
]  # fmt: skip
LAYERS = [  # batch, heads, heads of keys, queries, keys, head size, precision
    (1, 32, 8, 1, 1024, 128, "bf16"), (16, 32, 8, 1, 4096, 128, "bf16"), (64, 32, 8, 1, 8192, 128, "bf16"),
    (4, 32, 8, 1, 32768, 128, "bf16"), (1, 32, 32, 1, 1024, 128, "bf16"), (16, 32, 32, 1, 4096, 128, "bf16"),
    (64, 32, 32, 1, 8192, 128, "bf16"), (4, 32, 32, 1, 32768, 128, "bf16"), (8, 12, 12, 1, 1000, 64, "bf16"),
    (8, 12, 12, 1, 1000, 64, "fp32"), (64, 16, 16, 1, 2000, 64, "fp32"), (2, 64, 8, 1, 16384, 128, "bf16"),
    (32, 8, 8, 77, 1024, 64, "bf16"), (2, 8, 8, 4096, 77, 40, "fp32"), (2, 8, 8, 4096, 77, 64, "bf16"),
    (16, 20, 20, 1, 1500, 64, "fp32"),
]  # fmt: skip


def layer(batch, heads, heads_kv, queries, keys, size, precision):
    """Median of the kernels' time, twenty calls on as many caches as do not fit the L2 together."""
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    nbytes = 2 * batch * heads_kv * keys * size * dtype.itemsize
    count = max(2, min(64, round(3e8 / nbytes)))
    q = torch.randn(batch, heads, queries, size, device="cuda", dtype=dtype)
    caches = [torch.randn(2, batch, heads_kv, keys, size, device="cuda", dtype=dtype) for _ in range(count)]

    def call(number):
        k, v = caches[number % count]
        return scaled_dot_product_attention(q, k, v, enable_gqa=heads != heads_kv)

    with torch.no_grad():
        for number in range(3):
            call(number)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for number in range(20):
                call(number)
            torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    names = sorted({event.name[:60] for event in kernels})
    return {"gpu_time_s": sum(event.device_time for event in kernels) * 1e-6 / 20, "kernels": names}


def step(model, batch, past, dtype):
    longer = {"max_position_embeddings": str(past + 1)} if past > 8191 else None  # than Llama 3 was trained for
    ledger = rooflight.measure(
        model, batch=batch, past=past, dtype=dtype, step="decode", overrides=longer, counters="none", repeat=5
    )
    whole = next(one for one in ledger.measurements if one.scope == "step").quantities
    found = {key: whole[key].value for key in ("wall_time_s", "gpu_busy_s", "kernels")}
    found["gpu_time_s"] = whole["kernel_time_s"].value
    by_op = defaultdict(float)
    for row in ledger.measurements:
        if row.scope == "op" and "kernel_time_s" in row.quantities:
            by_op[ledger.ops[row.ops[0]].packet] += row.quantities["kernel_time_s"].value
    return found | {"by_op": dict(sorted(by_op.items(), key=lambda item: -item[1])[:8])}


def main() -> None:
    out, end = Path(sys.argv[1]), time.time() + float(sys.argv[2])
    found = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "layers": [], "steps": []}
    for kind, rows, timed in (("layers", LAYERS, layer), ("steps", STEPS, step)):
        for row in rows:
            if time.time() > end:
                print("out of time before", row)
                break
            try:
                answer = timed(*row)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:200]}
            found[kind].append({"case": list(row), **answer})
            print(*row, answer.get("gpu_time_s", answer.get("error")), answer.get("by_op", ""), flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n")
            gc.collect()
            torch.cuda.empty_cache()


main()
