"""How well the points of a calibration tell one another: each is left out, and predicted from the rest.

usage: left_out_points.py [CALIBRATION]     (needs no GPU; half a minute)

Without CALIBRATION, the H200's that comes with rooflight. Beside kriging, two simpler ways on the same points: the
nearest point's efficiency, and one efficiency for all (the median). Figures are medians of the relative error of the
warm time; `signed` is kriging's own, of all points and of those whose sides are multiples of 128.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rooflight.hardware.calibration import read, shipped
from rooflight.hardware.devices import find
from rooflight.prediction.calibrated.baseline import columns
from rooflight.prediction.calibrated.model import CalibratedModel
from rooflight.prediction.tiers import speed_of

AT_A_TIME = 400
FAMILIES = [("gemm", precision) for precision in ("fp32", "tf32", "bf16")] + [
    (f"conv-{way}", precision) for way in ("forward", "dgrad", "wgrad") for precision in ("tf32", "bf16")
] + [("attention-efficient-forward", "fp32"), ("attention-cudnn-forward", "bf16"), ("reduce", "fp32"), ("cat", "bf16")]  # fmt: skip


def nearest(points: np.ndarray, places: np.ndarray) -> np.ndarray:
    squares = ((points[places][:, None, :] - points[None, :, :]) ** 2).sum(-1)
    squares[np.arange(len(places)), places] = np.inf
    return squares.argmin(1)


def whole_tiles(family: str, rows: np.ndarray) -> np.ndarray:
    c = columns(family, rows)
    sides = ("m", "n", "k") if family == "gemm" else ("c", "k") if family.startswith("conv-") else ()
    return np.all([c[side] % 128 == 0 for side in sides], axis=0) if sides else np.zeros(len(rows), dtype=bool)


def main() -> None:
    calibration = read(Path(sys.argv[1])) if len(sys.argv) > 1 else shipped("h200")
    assert calibration is not None
    model = CalibratedModel(calibration, speed_of(find("h200")))
    print("| family | points | kriging | nearest point | one efficiency | signed | signed, whole tiles |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, precision in FAMILIES:
        family = model._family(name, precision)
        truth, all_places = family.warm.values, np.arange(len(family.rows))
        chunks = np.array_split(all_places, max(1, len(all_places) // AT_A_TIME))
        kriged = np.concatenate([family.warm.without(some) for some in chunks])
        near = truth[np.concatenate([nearest(family.points, some) for some in chunks])]
        errors = [np.exp(found - truth) - 1 for found in (kriged, near, np.median(truth))]
        whole = whole_tiles(name, family.rows)
        words = [f"{np.median(np.abs(error)):.1%}" for error in errors] + [f"{np.median(errors[0]):+.1%}"]
        words.append(f"{np.median(errors[0][whole]):+.1%} of {whole.sum()}" if whole.sum() > 10 else "-")
        print(f"| {name} {precision} | {len(truth):,} | {' | '.join(words)} |")


if __name__ == "__main__":
    main()
