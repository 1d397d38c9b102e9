"""How far transferred times of single ops are off, by GPU and family: what the constants of the transfer were chosen by.

usage: transfer.py [--vary NAME=VALUE,VALUE ...] [--held-out] [--across]     (needs no GPU; a few seconds a value)

The ops are those of the published calibrations of the GPUs that may be tuned on (benchmarks/held_out.toml). `--vary`
tries other values of a constant of `rooflight.prediction.transfer`. `--held-out` shows the other GPUs instead: that was
looked at after the constants were chosen. `--across`: convolutions in fp32 of each GPU, corrected by those of others.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rooflight.hardware.calibration import published_name, shipped
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.ops.kernel_task import Task
from rooflight.prediction import transfer
from rooflight.prediction.calibrated.corrections import Corrections, PointsOf
from rooflight.prediction.calibrated.features import group
from rooflight.prediction.calibrated.model import TaskTimes
from rooflight.prediction.tiers import Predictor, predictor, retargeted
from rooflight.step.cache_reuse import Array

HELD_OUT = Path(__file__).parent / "held_out.toml"
_LEAST_S = 5e-5
"""Shorter ops say more of launches than of kernels."""


def devices(*, held_out: bool) -> list[str]:
    named = tomllib.loads(HELD_OUT.read_text())["transfer"]["held_out" if held_out else "tuned_on"]
    return [name for name in named if shipped(published_name(name)) is not None]


class Ops:
    """Single ops of one GPU: their times there, and on the calibrated device."""

    def __init__(self, name: str, origin: Predictor) -> None:
        self.device, self.origin = find(name), origin
        calibration = shipped(published_name(name))
        assert calibration is not None
        pairs = [
            (task, row[-3] * 1e-9)
            for group_ in calibration.points
            for task, row in zip(group_.tasks(), group_.rows, strict=True)
        ]
        pairs = [(retargeted(task, self.device), seconds) for task, seconds in pairs if seconds >= _LEAST_S]
        self.tasks = [task for task, _ in pairs]
        self.seconds = np.array([seconds for _, seconds in pairs])
        self.times: TaskTimes = origin.model.times(self.tasks)

    def off(self) -> dict[tuple[str, str], Array]:
        """Logarithms of predicted over measured, by family and precision."""
        warm_s, _ = transfer.transferred(self.tasks, self.times, origin=self.origin.device, target=self.device)
        off: dict[tuple[str, str], list[float]] = defaultdict(list)
        for task, value in zip(self.tasks, np.log(warm_s / self.seconds).tolist(), strict=True):
            off[group(task.family), task.precision].append(value)
        return {key: np.array(values) for key, values in off.items()}


def across() -> None:
    """Does what is so of convolutions in fp32 on one GPU hold on another?"""
    origin = predictor(find("h200"))

    def carried(tasks: Sequence[Task], device: Device) -> tuple[Array, Array]:
        times = Predictor(device, "transferred", origin.model, "").task_times(tasks)
        return times.warm_s, times.cold_s

    some = {name: shipped(published_name(name)) for name in ("v100-pcie-32", "p100-pcie", "p4")}
    for name, calibration in some.items():
        assert calibration is not None
        kind = [
            points for points in calibration.points if (points.family, points.precision) == ("conv-forward", "fp32")
        ]
        tasks = [task for points in kind for task in points.tasks()]
        seconds = np.array([row[-3] for points in kind for row in points.rows]) * 1e-9
        warm_s, cold_s = carried(tasks, find(name))
        off = {"nothing": np.log(np.clip(seconds, warm_s, cold_s) / seconds)}
        for other, others in some.items():
            if other != name and others is not None:
                ratio = Corrections((PointsOf(others, find(other)),), carried).of(tasks).ratio
                off[other] = np.log(np.clip(seconds, ratio * warm_s, ratio * cold_s) / seconds)
        words = ", ".join(f"{by} {np.mean(np.abs(some_off)):.0%}" for by, some_off in off.items())
        print(f"{name}: {len(tasks)} convolutions, off by, corrected by {words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=VALUE,VALUE")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--across", action="store_true")
    given = parser.parse_args()
    if given.across:
        across()
        return
    origin = predictor(find("h200"))
    all_ops = {name: Ops(name, origin) for name in devices(held_out=given.held_out)}
    print(f"{'GPU':14} {'family':22} {'ops':>6} {'median':>8} {'mean off':>9}")
    for name, ops in all_ops.items():
        for (family, precision), off in sorted(ops.off().items()):
            bias, mean = np.exp(np.median(off)) - 1, np.mean(np.abs(off))
            print(f"{name:14} {family + ' ' + precision:22} {len(off):6,} {bias:+8.0%} {mean:9.0%}")
    for text in given.vary:
        constant, _, values = text.partition("=")
        before = getattr(transfer, constant)
        for value in values.split(","):
            setattr(transfer, constant, float(value))
            means: dict[str, list[float]] = defaultdict(list)
            for ops in all_ops.values():
                for (family, _), off in ops.off().items():
                    means[family].append(float(np.mean(np.abs(off))))
            words = ", ".join(f"{family} {np.mean(some):.1%}" for family, some in sorted(means.items()))
            print(f"{constant} = {value}: {words}")
        setattr(transfer, constant, before)


if __name__ == "__main__":
    main()
