"""Time works that networks have and a short calibration has few of, and keep them for `chapters.py --into`.

usage: more_chapters.py OUT.json SECONDS [WORD ...]    (needs a CUDA GPU)
       more_chapters.py --thin SEVERAL.json... OUT.json    at most so many of a kind: more would only be slower

A handful of wide groups, convolutions of sequences, odd images and volumes, products with vectors, reductions that find
places or norms, running sums, pools of volumes, group norms, losses. (Before these: layers of one sample, gates of one
pixel, depthwise and grouped convolutions, true fp32 and fp16, batch norms of few channels, factors of another width.)
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
from rooflight.calibration import elements, gemm, indexed, recurrent
from rooflight.calibration.case import precision_set
from rooflight.calibration.plan import Chapter
from rooflight.calibration.run import Bench, clock_for, timed_rows
from rooflight.hardware.devices import recognise_name
from rooflight.machine.installed_gpus import driver_version

LONGEST_S, LARGEST = 3e-3, 2 * 10**8
# kind: seconds by precision, first as tensors usually lie, then with channels last
KINDS = {
    conv.few_groups_cases: ({"tf32": 50, "bf16": 50, "fp32": 12, "fp16": 10}, {"bf16": 8, "tf32": 6}),
    conv.pointwise_cases: ({"bf16": 20, "tf32": 8}, {}),
}
SIDES = {1: {"tf32": 9, "fp32": 6, "bf16": 6}, 2: {"tf32": 24, "fp32": 16, "bf16": 14},
         3: {"tf32": 26, "fp32": 16, "bf16": 14}}  # fmt: skip
USUAL = {1: {"tf32": 5, "bf16": 4, "fp32": 3}, 3: {"tf32": 32, "bf16": 28, "fp32": 14}}


def chapters(peaks, words=()):
    """`words`: only those with one of them in their names."""
    return (chapter for chapter in all_chapters(peaks) if not words or any(word in chapter.name for word in words))


def all_chapters(peaks):
    def of_precision(name, cases, seconds, precision):
        return Chapter(name, cases, seconds, partial(precision_set, precision), chosen=True)

    for place, (kind, layouts) in enumerate(KINDS.items()):
        for last, shares in enumerate(layouts):
            for number, (precision, seconds) in enumerate(shares.items()):
                seed = 510 + 20 * place + 10 * last + number
                cases = kind(precision, peaks[precision], seed, LONGEST_S, channels_last=bool(last))
                name = f"{kind.__name__} {precision}{', channels last' if last else ''}"
                yield of_precision(name, cases, seconds, precision)
    for sides, shares in SIDES.items():
        for number, (precision, seconds) in enumerate(shares.items()):
            cases = conv.odd_cases(sides, precision, peaks[precision], 560 + 10 * sides + number, LONGEST_S)
            yield of_precision(f"{sides} sides {precision}", cases, seconds, precision)
    for sides, shares in USUAL.items():
        for number, (precision, seconds) in enumerate(shares.items()):
            cases = conv.layer_cases(sides, precision, peaks[precision], 660 + 10 * sides + number, LONGEST_S)
            yield of_precision(f"usual layers, {sides}, {precision}", cases, seconds, precision)
    for number, (precision, seconds) in enumerate({"fp32": 6, "bf16": 4, "tf32": 3}.items()):
        cases = gemm.vector_cases(precision, peaks[precision], 600 + number, LONGEST_S)
        yield of_precision(f"vectors {precision}", cases, seconds, precision)
    for number, (precision, seconds) in enumerate({"tf32": 24, "bf16": 14, "fp32": 14}.items()):
        cases = recurrent.recurrent_cases(precision, peaks[precision], 605 + number, LONGEST_S)
        yield of_precision(f"recurrent {precision}", cases, seconds, precision)
    for number, family in enumerate(("reduce", "reduce-norm", "reduce-index", "scan")):
        yield Chapter(family, elements.reduce_cases(610 + number, LARGEST, family), 1 if family == "reduce" else 3)
        yield Chapter(f"short {family}", elements.short_reduce_cases(family, 620 + number, LARGEST), 3)
    for number, family in enumerate(
        f"{kind}-pool3d-{way}" for kind in ("max", "avg") for way in ("forward", "backward")
    ):
        yield Chapter(family, elements.volume_pool_cases(family, 630 + number, LARGEST), 2.5)
    for number, family in enumerate(("group-norm-forward", "group-norm-backward")):
        yield Chapter(family, elements.group_norm_cases(family, 640 + number, LARGEST), 3)
    for number, family in enumerate((*indexed.INDEXED, "embedding-forward")):
        yield Chapter(f"indexed {family}", indexed.indexed_cases(family, 660 + number, LARGEST), 8)
    yield Chapter("losses", elements.nll_cases(650, LARGEST), 2)
    yield Chapter("broadcast", elements.broadcast_cases(651, LARGEST), 3)


def main():
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    device = recognise_name(torch.cuda.get_device_name())
    peaks = {precision: device.peak(precision).value for precision in ("fp32", "tf32", "bf16", "fp16")}
    bench = Bench(torch.device("cuda"), peaks, int(device.l2_bytes.value), seconds)
    some = list(chapters(peaks, sys.argv[3:]))
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


MOST = {"gate": 450, "pointwise": 9000, "depthwise": 900, "grouped": 9000, "general": 6000, "gemm": 1200,
        "group-norm-forward": 400, "group-norm-backward": 400}  # fmt: skip
OTHERS = 700


def kind_of(family, numbers):
    if not family.startswith("conv"):
        return "batch-norm" if family.startswith("batch-norm") else family
    _, c, h, _, _, r, _, _, _, _, groups, _ = numbers[:12]
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
                found.setdefault(
                    (key, kind_of(family, row[:-3]), row[11] if family.startswith("conv") else 0), []
                ).append(row)
    points = {}
    for (key, kind, _), rows in found.items():
        points.setdefault(key, []).extend(rows[:: -(-len(rows) // MOST.get(kind, OTHERS))])
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
