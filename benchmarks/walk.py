"""Count the files that one number passes: those with a function that ran between a verb's call and its result.

    python benchmarks/walk.py [WALK ...] [--source SRC] [--write]

Prints each walk's files in the order of first entry. `--write` stores them in results/walks.json under the last commit to
the source, `--source` walks another checkout's. Code that runs while a module is imported does not count.
`sys.setprofile` sees the calls: `sys.monitoring` came with Python 3.12, and 3.11 is supported. Each walk has a process and
an empty cache of its own. `dram bytes` calls inner functions with the tests' stand-in for CUPTI, whose wheel it needs: it
covers what lies between the staged step and the ledger's row, without the kernels' timeline and CUDA's driver.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/walks.json"


def convolution_backward() -> Callable[[], Any]:
    """Estimate a training step of one convolution."""
    rooflight, torch = map(import_module, ("rooflight", "torch"))

    def verb() -> None:
        ledger = rooflight.estimate(torch.nn.Conv2d(3, 8, 3), torch.empty(2, 3, 8, 8), step="train")
        assert sum(op.name == "aten::convolution_backward" for op in ledger.ops) == 1

    return verb


def dram_bytes() -> Callable[[], Any]:
    """Count one operator."""
    torch = import_module("torch")
    from tests.measurement.test_cupti_bindings import StandIn

    from rooflight.measurement import api, options
    from rooflight.measurement.collectors import cpu, gpu, plain_step
    from rooflight.measurement.cupti import cupti
    from rooflight.measurement.cupti import gpu as device
    from rooflight.models.resolve import live_workload
    from rooflight.trace.options import TraceOptions

    class Library(StandIn):
        def do_HostEvaluate(self, params: Any) -> None:  # noqa: N802
            name = list(self.images[params.pCounterDataImage])[params.rangeIndex]
            for index in range(params.numMetrics):
                params.pMetricValues[index] = 0.0 if "empty" in name else 4096.0

    def collect(context: plain_step.CollectorContext) -> None:
        gpu._counters(context, plain_step.record_ops(context, lambda context: context.stage.record()))

    def verb() -> None:
        workload, target = (
            live_workload(torch.nn.Hardtanh(), (torch.ones(3),), {}, step="infer"),
            TraceOptions(target="cpu", on="cpu"),
        )
        ledger = api.measure_workload(workload, target, options.MeasureOptions(), api.Conditions("cpu"))
        assert {row.quantities["dram_bytes_read"].value for row in ledger.measurements} == {4096}

    library, chip = Library(cupti.load().paths), device.CountedGpu(context=1, chip="GH100", availability=None)
    patch.multiple(cupti, load=lambda: library).start()
    patch.multiple(device, device=lambda index=0: chip, synchronize=lambda context: None).start()
    patch.multiple(cpu, collect=collect).start()
    patch.multiple(torch.cuda, current_device=lambda: 0, synchronize=lambda: None, mem_get_info=lambda device: (0, 0),
                   get_device_properties=lambda device: SimpleNamespace(L2_cache_size=0)).start()  # fmt: skip
    return verb


def predict_convolution() -> Callable[[], Any]:
    """Predict one convolution from its traced ledger, without advice."""
    rooflight, torch = map(import_module, ("rooflight", "torch"))
    ledger = rooflight.estimate(torch.nn.Conv2d(3, 8, 3), torch.empty(2, 3, 8, 8))
    return lambda: rooflight.predict(ledger, on="a100", advice=False)


def command(line: str, code: int = 0) -> Callable[[], Callable[[], Any]]:
    """Run a command as a shell would; `code` is the exit code that is expected."""

    def verb() -> None:
        from rooflight.commands.main import main

        try:
            main()
        except SystemExit as stop:
            if stop.code != code:
                raise RuntimeError(f"{line}: exit code {stop.code}") from stop

    def prepared() -> Callable[[], Any]:
        sys.argv = ["rooflight", *line.split()]
        Path("claims.csv").write_text("layer,quantity,value,unit,batch\nconv2,FLOP,21233664,,64\n")  # wrong
        return verb

    return prepared


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "convolution_backward": convolution_backward,
    "dram bytes": dram_bytes,
    "predict convolution": predict_convolution,
    "predict resnet50": command("predict resnet50 --on a100"),
    "percent of roof": command("report recorded:h200/mnist-cnn-infer-fp32 -o page.html"),
    "claim": command("compare recorded:h200/mnist-cnn-infer-tf32 --claims claims.csv", code=1),
}


def walk(name: str, source: Path) -> list[str]:
    """Files of one walk, in this process, which is a fork of its own."""
    root, files, importing = str(source / "rooflight") + os.sep, dict[str, None](), Counter[int]()

    def record(frame: FrameType, event: str, _: object) -> None:
        file, thread = frame.f_code.co_filename, threading.get_ident()
        if frame.f_code.co_name == "<module>":
            importing[thread] = max(0, importing[thread] + {"call": 1, "return": -1}.get(event, 0))
        elif event == "call" and not importing[thread] and file.startswith(root):
            files.setdefault(file.removeprefix(root))

    sys.path[:0] = [str(source), str(source.parent)]
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as sys.stdout:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = folder
        verb = WALKS[name]()
        threading.setprofile(record)
        sys.setprofile(record)
        verb()
        sys.setprofile(None)
    return list(files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], default=[], metavar="WALK", help=", ".join(WALKS))
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    results, source = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}, asked.source.resolve()
    commit = subprocess.check_output(
        ["git", "-C", source, "log", "-1", "--format=%h", "--abbrev=8", "--", "."], text=True
    )
    for name in asked.walks or WALKS:
        with multiprocessing.get_context("fork").Pool(1) as fork:
            files = fork.apply(walk, (name, source))
        rooms = Counter(file.split(os.sep)[0] for file in files).most_common()
        print(f"{name}: {len(files)} files ({', '.join(f'{room} {count}' for room, count in rooms)})")
        print("".join(f"    {file}\n" for file in files))
        results.setdefault(name, {})[commit.strip()] = {"files": len(files), "in order": " ".join(files)}
    if asked.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
