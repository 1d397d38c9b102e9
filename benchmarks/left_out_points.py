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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rooflight.hardware.calibration import Calibration, read, shipped
from rooflight.hardware.devices import find
from rooflight.prediction.calibrated.baseline import columns
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.model import CalibratedModel, _FamilyModel
from rooflight.prediction.tiers import speed_of

FOLDS, AT_A_TIME = 5, 400
Only = Callable[[str, np.ndarray], np.ndarray]
"""Which rows of a family are judged."""
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


@dataclass(frozen=True)
class LeftOut:
    """Points of a family, each predicted from a calibration without it; logarithms of efficiencies."""

    family: _FamilyModel
    judged: np.ndarray
    """Which of the family's points were left out."""
    folds: list[np.ndarray]
    found: np.ndarray

    @property
    def off(self) -> np.ndarray:
        return (self.found - self.family.warm.values)[self.judged]


def left_out(model: CalibratedModel, name: str, precision: str, only: Only | None = None) -> LeftOut:
    """Leave each fifth of the points out in turn (of those that `only` picks), and predict it from the rest."""
    family = model._family(name, precision)
    count = len(family.rows)
    judged = np.ones(count, dtype=bool) if only is None else only(name, family.rows)
    folds = np.array_split(np.random.default_rng(0).permutation(np.flatnonzero(judged)), FOLDS)
    found = np.full(count, np.nan)
    for out in folds:
        rest = _FamilyModel(name, precision, np.delete(family.rows, out, axis=0), model.speed)
        seconds = rest.times(family.rows[out, :-3], precision, model.speed)[0]
        found[out] = family.warm.values[out] + np.log(seconds / (1e-9 * family.rows[out, -3]))
    return LeftOut(family, judged, folds, found)


def figures() -> dict[str, float]:
    """Return, by family, the mean distance of the logarithms; and of all points: the median error, and the share that
    is off by more than a factor of two."""
    model = calibrated(shipped("h200"))
    found = {f"{name}_{precision}": left_out(model, name, precision).off for name, precision in FAMILIES}
    every = np.concatenate(list(found.values()))
    return {
        **{f"{name}_log": float(np.mean(np.abs(off))) for name, off in found.items()},
        "all_median": float(np.median(np.abs(np.expm1(every)))),
        "all_off_by_2": float(np.mean(np.abs(every) > np.log(2))),
    }


def calibrated(calibration: Calibration | None) -> CalibratedModel:
    assert calibration is not None
    return CalibratedModel(calibration, speed_of(find("h200")))


def main() -> None:
    model = calibrated(read(Path(sys.argv[1])) if len(sys.argv) > 1 else shipped("h200"))
    print(
        "| family | points | median | mean, logarithm | off by 2 | nearest point | one efficiency | signed | signed, whole tiles |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    groups: list[tuple[str, str, Only | None]] = [(*name, None) for name in FAMILIES]
    groups += [(name, precision, grouped) for name, precision in FAMILIES if name.startswith("conv-")]
    for name, precision, only in groups:
        one = left_out(model, name, precision, only)
        judged, truth = one.judged, one.family.warm.values
        placed = features(name, precision, one.family.rows[:, :-3])
        near = np.full(len(truth), np.nan)
        for out in one.folds:
            kept = np.delete(np.arange(len(truth)), out)
            near[out] = truth[kept][nearest(placed[kept], placed[out])]
        errors = [np.exp(off) - 1 for off in (one.off, (near - truth)[judged], (np.median(truth) - truth)[judged])]
        whole = whole_tiles(name, one.family.rows)[judged]
        far = np.mean(np.abs(one.off) > np.log(2))
        words = [f"{np.median(np.abs(errors[0])):.1%}", f"{np.mean(np.abs(one.off)):.1%}", f"{far:.1%}"]
        words += [f"{np.median(np.abs(error)):.1%}" for error in errors[1:]] + [f"{np.median(errors[0]):+.1%}"]
        words.append(f"{np.median(errors[0][whole]):+.1%} of {whole.sum()}" if whole.sum() > 10 else "-")
        print(
            f"| {name} {precision}{', groups' if only else ''} | {judged.sum():,} | {' | '.join(words)} |", flush=True
        )


if __name__ == "__main__":
    main()
