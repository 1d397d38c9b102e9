"""How fast the hosts of public single ops were, beside the host that rooflight was calibrated with.

usage: hosts.py FOLDER     (NeuSight's micro-benchmarks, as published_calibrations.py reads them; no GPU; seconds)

The shortest ops of a GPU take what its host takes for a call: their kernels take two microseconds. Over what the costs
of the calibrated host say of the same call, they tell how much slower another host is. Hosts are mostly as old as their
GPUs: a line through these is what the host of any other GPU is taken to be (prediction/host_speed.py). Single ops
alone are read, none that a prediction is judged by (benchmarks/held_out.toml).
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from published_tables import table

from rooflight.hardware.calibration import shipped
from rooflight.prediction.host_speed import IDLE_CALL
from rooflight.step.host_calls import cost_of

IDLE = Path(__file__).parent / "h200" / "results" / "idle_calls.json"
YEARS = {
    "p100-pcie-16": 2016, "p4": 2016, "v100-pcie-32": 2017, "a100-pcie-40": 2020, "mi100": 2020, "mi210": 2022,
}  # fmt: skip
"""When each GPU came out. The T4 is held out."""
CLASSES = {
    "add": "plain", "mul": "plain", "div": "plain", "tanh": "math", "gelu": "math", "softmax": "softmax",
    "ln": "layer-norm", "linear": "gemm", "bmm": "gemm",
}  # fmt: skip
MODULES = ("softmax", "ln", "linear", "gelu", "tanh")
KERNEL_S = 2e-6
T_95 = {4: 2.132, 5: 2.015, 6: 1.943}
"""Student's t, 95% on one side, by degrees of freedom."""
NINETY = 1.645


def idle_call_s() -> float:
    """What a call on an idle GPU takes beside its host's time and its kernel."""
    rows = [row for row in json.loads(IDLE.read_text())["rows"] if row["kind"] == "single"]
    return float(np.median([row["idle_s"] - row["row_s"] for row in rows])) - KERNEL_S


def host_ratio(folder: Path, name: str) -> float:
    """Of the calibrated host's costs: those of the machine that NeuSight timed this GPU in."""
    calibration = shipped("h200")
    assert calibration is not None
    costs = calibration.host
    by_op: dict[str, list[float]] = defaultdict(list)
    for row in table(folder / f"neusight-micro-{name}.csv.gz"):
        by_op[row["OPName"]].append(float(row["Latency"]) * 1e-3)
    ratios = []
    for op, kind in CLASSES.items():
        if op in by_op:
            host = cost_of(kind, "fp32", "infer", costs) + float(costs["launch.infer"].value)
            host += float(costs["module.infer"].value) if op in MODULES else 0.0
            shortest = float(np.quantile(by_op[op], 0.02))
            ratios.append((shortest - idle_call_s() - KERNEL_S) / host)
    return float(np.median(ratios))


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"{IDLE_CALL}: {1e6 * idle_call_s():.1f} us")
    ratios = {name: host_ratio(folder, name) for name in YEARS}
    years, logs = np.array(list(YEARS.values()), dtype=float), np.log(list(ratios.values()))
    slope, level = np.polyfit(years - years.mean(), logs, 1)
    free = len(years) - 2
    off = math.sqrt(float(((logs - level - slope * (years - years.mean())) ** 2).sum()) / free)
    for name, ratio in ratios.items():
        fitted = math.exp(level + slope * (YEARS[name] - years.mean()))
        print(f"{name:14} {YEARS[name]} {ratio:5.2f} of the calibrated host's time; the line says {fitted:.2f}")
    squares = float(((years - years.mean()) ** 2).sum())
    print(f"ratio = exp({level:.3f} {slope:+.3f} * (year - {years.mean():.2f})), one more is off by {off:.2f}, which as a normal "
          f"deviation is {T_95[free] / NINETY * off:.3f} * sqrt(1 + 1/{len(years)} + (year - mean)^2 / {squares:.1f})")  # fmt: skip


if __name__ == "__main__":
    main()
