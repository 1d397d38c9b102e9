"""Time works that networks have and a short calibration has few of, and keep them for `chapters.py --into`.

usage: more_chapters.py OUT.json SECONDS    (needs a CUDA GPU)
       more_chapters.py --thin SEVERAL.json... OUT.json    at most so many of a kind: more would only be slower

Layers of one sample, gates of one pixel, depthwise and grouped convolutions, convolutions in true fp32 and in fp16,
batch norms of few channels, factors of another width, products of few rows.
"""

import json
import sys
from contextlib import closing
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic

import torch

from rooflight.calibration import convolution as conv
from rooflight.calibration import elements, gemm
from rooflight.calibration.case import precision_set
from rooflight.calibration.plan import Chapter
from rooflight.calibration.run import Bench, clock_for, timed_rows
from rooflight.hardware.devices import recognise_name
from rooflight.machine.installed_gpus import driver_version

LONGEST_S, LARGEST = 3e-3, 2 * 10**8
GATES = {"tf32": 6, "bf16": 6, "fp32": 3, "fp16": 3}
# kind: seconds by precision, first as tensors usually lie, then with channels last
KINDS = {
    conv.pointwise_cases: ({"tf32": 14, "bf16": 14, "fp32": 6}, {"bf16": 4}),
    conv.depthwise_cases: ({"tf32": 8, "bf16": 8, "fp32": 5, "fp16": 7}, {"tf32": 9, "bf16": 13, "fp16": 6}),
    conv.grouped_cases: ({"tf32": 16, "bf16": 16, "fp32": 8}, {"tf32": 6, "bf16": 8}),
    conv.convolution_cases: ({"fp32": 42, "fp16": 12}, {"fp32": 10, "fp16": 6}),
}


def small_products(precision, peak, seed):
    """Products of few rows, of the cases that calibration has."""
    return (one for one in gemm.gemm_cases(precision, peak, seed, LONGEST_S) if one.task.numbers[1] <= 4096)


def chapters(peaks):
    def of_precision(name, cases, seconds, precision):
        return Chapter(name, cases, seconds, partial(precision_set, precision), chosen=True)

    for number, (precision, seconds) in enumerate(GATES.items()):
        cases = conv.gate_cases(precision, peaks[precision], 300 + number, LONGEST_S)
        yield of_precision(f"gates {precision}", cases, seconds, precision)
    for place, (kind, layouts) in enumerate(KINDS.items()):
        for last, shares in enumerate(layouts):
            for number, (precision, seconds) in enumerate(shares.items()):
                seed = 310 + 20 * place + 10 * last + number
                cases = kind(precision, peaks[precision], seed, LONGEST_S, channels_last=bool(last))
                name = f"{kind.__name__} {precision}{', channels last' if last else ''}"
                yield of_precision(name, cases, seconds, precision)
    yield of_precision("small products fp32", small_products("fp32", peaks["fp32"], 400), 9, "fp32")
    yield of_precision("small products bf16", small_products("bf16", peaks["bf16"], 401), 5, "bf16")
    for kind in ("cudnn", "native"):
        for number, way in enumerate(("train", "eval", "backward")):
            family = f"batch-norm-{kind}-{way}"
            yield Chapter(family, elements.batch_norm_cases(family, 410 + number, LARGEST, cuda=True), 3.5)
    yield Chapter("factors of another width", elements.mixed_cases(420, LARGEST), 3)
    yield Chapter("broadcast", elements.broadcast_cases(421, LARGEST), 2)


def main():
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    device = recognise_name(torch.cuda.get_device_name())
    peaks = {precision: device.peak(precision).value for precision in ("fp32", "tf32", "bf16", "fp16")}
    bench = Bench(torch.device("cuda"), peaks, int(device.l2_bytes.value), seconds)
    some = list(chapters(peaks))
    whole = sum(chapter.share for chapter in some)
    rows = {}
    about = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
             "made": date.today().isoformat(), "chapters": [chapter.name for chapter in some]}  # fmt: skip
    with closing(clock_for(bench)) as clock:
        for chapter in some:
            begun = monotonic()
            try:
                found = timed_rows(clock, chapter, begun + seconds * chapter.share / whole)
            except Exception as error:
                print(chapter.name, f"{type(error).__name__}: {error}"[:150], flush=True)
                continue
            for key, more in found.items():
                rows.setdefault(key, []).extend(more)
            print(f"{chapter.name}: {monotonic() - begun:.1f} s", {key: len(more) for key, more in found.items()},
                  flush=True)  # fmt: skip
            out.write_text(json.dumps(about | {"points": rows}) + "\n")


MOST = {"gate": 450, "pointwise": 1300, "depthwise": 900, "grouped": 1300, "general": 1900, "gemm": 1500,
        "batch-norm": 550, "broadcast": 900, "mixed": 600}  # fmt: skip


def kind_of(family, numbers):
    if not family.startswith("conv-"):
        return "batch-norm" if family.startswith("batch-norm") else family
    _, c, h, _, _, r, _, _, _, _, groups, _ = numbers
    if groups > 1:
        return "depthwise" if groups >= c else "grouped"
    return "gate" if h == 1 else "pointwise" if r == 1 else "general"


def thinned(sources, out):
    """Evenly from the order they were timed in, which covers their space however much of it is taken."""
    parts = [json.loads(Path(source).read_text()) for source in sources]
    found = {}
    for part in parts:
        for key, rows in part["points"].items():
            family = key.partition(" ")[0]
            for row in rows:
                found.setdefault((key, kind_of(family, row[:-3]), row[-4] if family.startswith("conv") else 0), []).append(row)
    points = {}
    for (key, kind, _), rows in found.items():
        points.setdefault(key, []).extend(rows[:: -(-len(rows) // MOST[kind])])
    Path(out).write_text(json.dumps(parts[0] | {"points": points}) + "\n")
    print({key: len(rows) for key, rows in points.items()})


if __name__ == "__main__":
    if sys.argv[1] == "--thin":
        thinned(sys.argv[2:-1], sys.argv[-1])
    elif sys.argv[1] == "--list":  # without a GPU: the first cases of every chapter
        for chapter in chapters(dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), 67e12)):
            print(chapter.name, [tuple(one.task) for one in islice(chapter.cases, int(sys.argv[2]))])
    else:
        main()
