"""Logs of VGG-11, VGG-13 and VGG-19 at batch 16, as document 003 made them: counters by ncu, times by another run.

    python benchmarks/h200/vgg_logs.py FOLDER

writes NETWORK.ncu.csv.gz (one forward pass under Nsight Compute) and NETWORK.trace.json.gz (the same pass under
PyTorch's profiler, with nothing counted). Needs ncu, torch and torchvision, nothing of rooflight.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

NETWORKS = ("vgg11", "vgg13", "vgg19")
METRICS = (
    *(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("fadd", "fmul", "ffma")),
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "gpu__time_duration.sum",
)
NCU = (
    "ncu --profile-from-start off --target-processes all --replay-mode kernel --cache-control none --clock-control none "
    "--csv --page raw --print-units base --metrics"
).split()


def step(network: str, trace: str | None) -> None:
    """One pass after five others: between the profiler's start and stop, or into a trace."""
    import torch
    import torchvision
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(0)
    net = getattr(torchvision.models, network)(weights=None).cuda().eval()
    images = torch.randn(16, 3, 224, 224, device="cuda")
    with torch.no_grad():
        for _ in range(5):
            net(images)
        torch.cuda.synchronize()
        if trace is None:
            torch.cuda.profiler.start()
            net(images)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
            return
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            net(images)
            torch.cuda.synchronize()
    profiled.export_chrome_trace(trace)


def record(folder: Path) -> None:
    me = [sys.executable, __file__, "--step"]
    for network in NETWORKS:
        counted = subprocess.run([*NCU, ",".join(METRICS), *me, network], stdout=subprocess.PIPE, check=True)
        (folder / f"{network}.ncu.csv.gz").write_bytes(gzip.compress(counted.stdout))
        trace = folder / f"{network}.trace.json"
        subprocess.run([*me, network, str(trace)], check=True)
        (folder / f"{network}.trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
        trace.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "--step":
        step(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
    else:
        record(Path(sys.argv[1]))
