"""Records what tests read of a real GPU: a timeline of torch's profiler with and without marks, and a log of ncu.

usage: test_data.py FOLDER    (needs a CUDA GPU and ncu; writes the files of tests/data/timeline and tests/data/ncu)
"""

import gzip
import subprocess
import sys
from pathlib import Path

import rooflight
from rooflight.measurement import ncu, profiler_trace
from rooflight.measurement.execution.eager import EagerStep
from rooflight.measurement.options import MeasureOptions
from rooflight.models import build
from rooflight.trace import TraceOptions
from rooflight.trace.stage import staged


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        out.write(content)
    print(f"{path}: {path.stat().st_size:,} bytes")


def timelines(folder: Path) -> None:
    """A training step of resnet18, plain twice and once with a mark around every op."""
    contents = []
    decode = profiler_trace.decode

    def keep(content: bytes, *, source: str):
        contents.append(content)
        return decode(content, source=source)

    profiler_trace.decode = keep
    workload = build("resnet18", batch=16, step="train", device="cuda")
    with staged(workload, TraceOptions(on="cuda", loss="mse", optimizer="momentum")) as stage:
        stage.keep()
        step = EagerStep(stage)
        step.prepare()
        stage.settle()
        profiler_trace.profiled(stage.run, cuda=True)
        contents.clear()
        for _ in range(2):
            stage.put_back()
            step.profiled()
        stage.put_back()
        profiler_trace.profiled(lambda: stage.record(profiler_trace.RangeMarker()), cuda=True)
    for run, content in zip(("plain", "plain2", "marked"), contents, strict=True):
        write(folder / "timeline" / f"resnet18_{run}.json.gz", content)


def ncu_log(folder: Path) -> None:
    """A training step of mnist-cnn under ncu, every op in a range of its own."""
    ledger = rooflight.estimate("mnist-cnn", batch=64, step="train", optimizer="sgd")
    names = [counter.metric for counter in ncu.counters_for(ledger, MeasureOptions())]
    step = [
        sys.executable, "-m", "rooflight", "measure", "mnist-cnn", "--batch", "64", "--step", "train", "--optimizer", "sgd",
        "--profile-op", "all",
    ]  # fmt: skip
    ended = subprocess.run(ncu.command_line(step, names), capture_output=True, check=True)
    write(folder / "ncu" / "h200_mnist_ops.csv.gz", ended.stdout)


timelines(Path(sys.argv[1]))
ncu_log(Path(sys.argv[1]))
