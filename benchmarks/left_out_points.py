"""How well the points of a calibration tell one another: each fifth is left out, and predicted from the rest.

usage: left_out_points.py [CALIBRATION]     (needs no GPU; five minutes)

Without CALIBRATION, the H200's that comes with rooflight. Beside the model of time, two simpler ones on the same points:
the nearest point's efficiency, and one efficiency for all (the median). Figures are medians of the relative error of
the warm time; of the model also the mean of how far the logarithm is off, and the share of points that are off by more
than a factor of two; `signed` is the model's own median, of all points and of those whose sides are multiples of 128. The
model's times are those of a step, in which a kernel's code is near (0.12 µs less a kernel).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rooflight.hardware.calibration import read, shipped
from rooflight.hardware.devices import find
from rooflight.prediction.calibrated.baseline import columns
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.model import CalibratedModel, _FamilyModel
from rooflight.prediction.tiers import speed_of

FOLDS, AT_A_TIME = 5, 400
FAMILIES = [("gemm", precision) for precision in ("fp32", "tf32", "bf16")] + [
    (f"conv-{way}", precision) for way in ("forward", "dgrad", "wgrad") for precision in ("tf32", "bf16")
] + [("attention-efficient-forward", "fp32"), ("attention-cudnn-forward", "bf16"), ("reduce", "fp32"), ("cat", "bf16")]  # fmt: skip


def nearest(points: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The place of the point nearest to each query."""
    chunks = np.array_split(queries, max(1, len(queries) // AT_A_TIME))
    return np.concatenate([((some[:, None, :] - points[None, :, :]) ** 2).sum(-1).argmin(1) for some in chunks])


def whole_tiles(family: str, rows: np.ndarray) -> np.ndarray:
    c = columns(family, rows)
    sides = ("m", "n", "k") if family == "gemm" else ("c", "k") if family.startswith("conv-") else ()
    return np.all([c[side] % 128 == 0 for side in sides], axis=0) if sides else np.zeros(len(rows), dtype=bool)


def grouped(family: str, rows: np.ndarray) -> np.ndarray:
    c = columns(family, rows[:, :-3])
    return (c["groups"] > 1) & (c["groups"] < c["c"])


def main() -> None:
    calibration = read(Path(sys.argv[1])) if len(sys.argv) > 1 else shipped("h200")
    assert calibration is not None
    model = CalibratedModel(calibration, speed_of(find("h200")))
    print(
        "| family | points | median | mean, logarithm | off by 2 | nearest point | one efficiency | signed | signed, whole tiles |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    groups = [(*name, None) for name in FAMILIES]
    groups += [(name, precision, grouped) for name, precision in FAMILIES if name.startswith("conv-")]
    for name, precision, only in groups:
        family = model._family(name, precision)
        truth, placed = family.warm.values, features(name, precision, family.rows[:, :-3])
        found, near = np.full(len(truth), np.nan), np.full(len(truth), np.nan)
        judged = np.ones(len(truth), dtype=bool) if only is None else only(name, family.rows)
        for out in np.array_split(np.random.default_rng(0).permutation(np.flatnonzero(judged)), FOLDS):
            kept = np.delete(np.arange(len(truth)), out)
            rest = _FamilyModel(name, precision, family.rows[kept], model.speed)
            seconds = rest.times(family.rows[out, :-3], precision, model.speed)[0]
            found[out] = truth[out] + np.log(seconds / (1e-9 * family.rows[out, -3]))
            near[out] = truth[kept][nearest(placed[kept], placed[out])]
        errors = [np.exp(one[judged] - truth[judged]) - 1 for one in (found, near, np.median(truth) + 0 * truth)]
        far = np.mean(np.abs(found - truth)[judged] > np.log(2))
        whole = whole_tiles(name, family.rows)[judged]
        words = [f"{np.median(np.abs(errors[0])):.1%}", f"{np.mean(np.abs((found - truth)[judged])):.1%}", f"{far:.1%}"]
        words += [f"{np.median(np.abs(error)):.1%}" for error in errors[1:]] + [f"{np.median(errors[0]):+.1%}"]
        words.append(f"{np.median(errors[0][whole]):+.1%} of {whole.sum()}" if whole.sum() > 10 else "-")
        print(
            f"| {name} {precision}{', groups' if only else ''} | {judged.sum():,} | {' | '.join(words)} |", flush=True
        )


if __name__ == "__main__":
    main()
