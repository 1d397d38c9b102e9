"""Record which attention kernel CUDA chooses, over a grid of shapes, types and options.

usage: attention_choice.py OUT.json.gz    (needs a CUDA GPU)

The trace predicts this choice with no GPU; tests/data/h200_attention_choice.json.gz, made by this script, holds the truth.
"""

import gzip
import itertools
import json
import sys
from collections import Counter

import torch

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}


def choice(*, dtype, head, sq, sk, heads_kv, mask, dropout, causal, grad, batch=2, heads=8):
    def make(h, s):
        return torch.randn(batch, h, s, head, device="cuda", dtype=dtype, requires_grad=grad)

    q, k, v = make(heads, sq), make(heads_kv, sk), make(heads_kv, sk)
    bias = None
    if mask == "bool":
        bias = torch.ones(batch, 1, sq, sk, dtype=torch.bool, device="cuda")
    elif mask == "float":
        bias = torch.zeros(batch, 1, sq, sk, dtype=dtype, device="cuda")
    elif mask == "2d":
        bias = torch.zeros(sq, sk, dtype=dtype, device="cuda")
    return NAMES[int(torch._fused_sdp_choice(q, k, v, bias, dropout, causal, enable_gqa=heads_kv != heads))]


def main() -> None:
    rows = []
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    grid = itertools.product(
        dtypes,
        (8, 20, 32, 64, 80, 96, 100, 128, 192, 256, 320),
        ((128, 128), (1, 128), (1, 1), (77, 77), (100, 128), (1024, 1024)),
        (8, 2),
        (None, "bool", "float", "2d"),
        (0.0, 0.1),
        (False, True),
        (False, True),
    )
    for dtype, head, (sq, sk), heads_kv, mask, dropout, causal, grad in grid:
        if mask and causal:
            continue
        row = dict(
            dtype=dtype,
            head=head,
            sq=sq,
            sk=sk,
            heads_kv=heads_kv,
            mask=mask,
            dropout=dropout,
            causal=causal,
            grad=grad,
        )
        try:
            row["choice"] = choice(**{**row, "dtype": dtypes[dtype]})
        except Exception as error:
            row["choice"] = "error: " + str(error).splitlines()[0][:80]
        rows.append(row)
    columns = list(rows[0])
    about = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                 made_by="benchmarks/h200/attention_choice.py", columns=columns,
                 rows=[[row[column] for column in columns] for row in rows])  # fmt: skip
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as out:
        out.write(json.dumps(about, separators=(",", ":")).encode())
    print(len(rows), "rows", Counter(row["choice"] for row in rows))


if __name__ == "__main__":
    main()
