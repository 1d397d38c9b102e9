"""Time convolutions that cut an image of three colours into patches, and keep them for `chapters.py --into`.

usage: patches.py OUT.json SECONDS    (needs a CUDA GPU)

Kernels as large as their stride, from 8x8 to 32x32: a short calibration has 4x4 and 16x16 only.
"""

import json
import sys
from contextlib import closing
from datetime import date
from functools import partial
from pathlib import Path
from time import monotonic

import torch

from rooflight.calibration import convolution as conv
from rooflight.calibration.case import case, precision_set
from rooflight.calibration.plan import Chapter
from rooflight.calibration.run import Bench, clock_for, timed_rows
from rooflight.calibration.sampling import choice, is_power_of_two, points, whole
from rooflight.hardware.devices import recognise_name
from rooflight.machine.installed_gpus import driver_version
from rooflight.ops.kernel_task import Task

SHARES = {"tf32": (8, 3), "bf16": (8, 4), "fp16": (4, 4), "fp32": (4, 0)}


def patch_cases(precision, seed, channels_last):
    for u in points(4, seed):
        side = choice(u[0], ((2, 8), (3, 14), (2, 16), (4, 32)))
        across = whole(u[1], 3, 384 // side)
        if side * across in (224, 256, 288, 336, 384, 448):
            across -= 1
        n, k = whole(u[2], 1, 200), whole(u[3], 96, 1280, 32)
        n += is_power_of_two(n) + (n == 1)
        if k in (384, 768, 1024, 1280):
            k += 32
        h = side * across
        if n * max(3 * h * h, k * across * across) > 2e8:
            continue
        for way in ("conv-forward", "conv-wgrad"):  # nobody asks for the gradient of an image
            yield case(
                conv.call_of, Task(way, precision, (n, 3, h, h, k, side, side, side, 0, 1, 1, int(channels_last)))
            )


def main():
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    device = recognise_name(torch.cuda.get_device_name())
    peaks = {precision: device.peak(precision).value for precision in SHARES}
    bench = Bench(torch.device("cuda"), peaks, int(device.l2_bytes.value), seconds)
    some = [
        Chapter(f"patches {precision}{' channels last' * last}", patch_cases(precision, 500 + 10 * last + number, last),
                share, partial(precision_set, precision), chosen=True)
        for number, (precision, shares) in enumerate(SHARES.items()) for last, share in enumerate(shares) if share
    ]  # fmt: skip
    whole_share, rows = sum(chapter.share for chapter in some), {}
    about = {"device": torch.cuda.get_device_name(), "torch": str(torch.__version__), "driver": driver_version(),
             "made": date.today().isoformat(), "chapters": [chapter.name for chapter in some]}  # fmt: skip
    with closing(clock_for(bench)) as clock:
        for chapter in some:
            found = timed_rows(clock, chapter, monotonic() + seconds * chapter.share / whole_share)
            for key, more in found.items():
                rows.setdefault(key, []).extend(more)
            print(chapter.name, {key: len(more) for key, more in found.items()}, flush=True)
            out.write_text(json.dumps(about | {"points": rows}) + "\n")


if __name__ == "__main__":
    main()
