"""What the options of a step gain, predicted and measured: `h200/options.py` timed them on an H200.

usage: python benchmarks/options.py    prints one row a step and option; ratios are with the option by without
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import rooflight

RESULTS = Path(__file__).parent / "h200" / "results" / "options.json"
OPTIONS = ("fused", "channels_last", "graphs", "compile", "tf32")


@dataclass(frozen=True)
class Gained:
    step: str
    option: str
    kernels: tuple[float, float]
    """With it by without it: predicted, measured."""
    busy_s: tuple[float, float]
    """GPU-busy with it: predicted, measured."""


def gained() -> Iterator[Gained]:
    rows = [row for row in json.loads(RESULTS.read_text())["rows"] if "error" not in row]
    plain = {_step(row): row for row in rows if not _options(row)}
    for row in rows:
        if not _options(row) or _step(row) not in plain:
            continue
        step = {key: row[key] for key in ("model", "batch", "step", "dtype", "seq") if key in row}
        busy = [_predicted(**step), _predicted(**step, **_options(row))]
        measured = plain[_step(row)]["gpu_busy_s"], row["gpu_busy_s"]
        yield Gained(_step(row), " ".join(_options(row)), (busy[1] / busy[0], measured[1] / measured[0]),
                     (busy[1], measured[1]))  # fmt: skip


def _predicted(**asked: Any) -> float:
    return rooflight.predict(on="h200", advice=False, **asked)[0].gpu_busy_s


def _options(row: Mapping[str, Any]) -> dict[str, bool]:
    return {name: row[name] for name in OPTIONS if name in row}


def _step(row: Mapping[str, Any]) -> str:
    return " ".join(str(row[key]) for key in ("model", "batch", "step", "dtype", "seq") if key in row)


def main() -> None:
    errors = []
    for one in gained():
        (predicted, measured), error = one.kernels, one.busy_s[0] / one.busy_s[1] - 1
        errors.append(abs(predicted / measured - 1))
        print(f"{one.step:28} {one.option:20} GPU-busy x {predicted:.3f} predicted, x {measured:.3f} measured; with it "
              f"{error:+.1%} off")  # fmt: skip
    print(f"{len(errors)} rows: the ratio is {mean(errors):.1%} off in the mean, {max(errors):.1%} at most")


if __name__ == "__main__":
    main()
