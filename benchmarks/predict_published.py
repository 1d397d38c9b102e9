"""docs/predicting-published.md: NeuSight's steps predicted, beside NeuSight. Written by `accuracy.py --pages`.

usage: predict_published.py [-o PAGE]     (needs no GPU; the first time about a minute, for the traces)
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accuracy import Outcome as Prediction
from accuracy import errors
from judged_steps import NEUSIGHT, ROOT, device_named, device_reported, neusight

from rooflight.hardware.device import Device

OPS = ROOT / "tests" / "data" / "published_ops.json"
PAGE = ROOT / "docs" / "predicting-published.md"
METHOD = (
    "Each device is predicted by the tier that `rooflight predict` takes for it; transferred: the H200's calibration "
    "(torch 2.11), each task scaled to the device. The time is that of the device with its gaps. Nothing is fitted to "
    "these rows. The figures of the MI250 are "
    "those of NeuSight's own device file (`benchmarks/published_devices`), the others rooflight's. Other steps that "
    "were published, and other tiers: [accuracy.md](accuracy.md)."
)
SHORT = {
    "bert_large": "BERT-Large", "gpt2_large": "GPT2-Large", "gpt3_xl": "GPT3-XL", "gpt3_27": "GPT3-2.7B",
    "opt_13": "OPT-1.3B", "switchxl4": "Switch-XL-4", "switch4": "Switch-4",
}  # fmt: skip


# --- the rows ---


@dataclass(frozen=True)
class Outcome:
    """One published step beside its prediction."""

    row: dict[str, Any]
    prediction: Prediction

    @property
    def predicted_s(self) -> float:
        return self.prediction.predicted_s

    @property
    def tier(self) -> str:
        return self.prediction.tier

    @property
    def error(self) -> float:
        return relative(self.predicted_s, self.row)

    @property
    def inside(self) -> bool:
        return self.prediction.inside

    def theirs(self, tool: str) -> float | None:
        value = self.row["theirs_s"].get(tool)
        return None if value is None else relative(value, self.row)


def relative(predicted_s: float, row: dict[str, Any]) -> float:
    published: float = row["time_s"]
    return predicted_s / published - 1


def outcomes(data: dict[str, Any]) -> tuple[list[Outcome], list[tuple[dict[str, Any], str]]]:
    """The rows that can be predicted, and the others with the reason why not."""
    predicted, missing = errors(list(neusight()), make=True)
    assert not missing, missing
    by_row = {
        _key(one.step.device, one.step.model, one.step.step, one.step.batch, one.step.size): one for one in predicted
    }
    done, left = [], []
    for row in sorted(
        data["rows"], key=lambda row: (_order(row["device"]), row["step"], _model_order(row), row["batch"])
    ):
        model = data["models"][row["model"]]
        known = model.get(row["step"], model)
        if "why_not" in known:
            left.append((row, known["why_not"]))
        elif row["timed"] not in ("infer", "train"):
            left.append((row, {"compile": "compiled", "parallel": "on four GPUs"}[row["timed"]]))
        elif device_reported(row["device"]) is None:
            left.append((row, "no such device here"))
        else:
            key = _key(device_reported(row["device"]), row["model"], row["step"], row["batch"], row["seq"])
            done.append(Outcome(row, by_row[key]))
    return done, left


def _key(*parts: Any) -> tuple[Any, ...]:
    return parts


def _device(name: str) -> Device | None:
    """The device that torch calls so; where rooflight has none, the one described beside this file."""
    known = device_reported(name)
    return None if known is None else device_named(known)


def _order(device: str) -> tuple[int, str]:
    first = ("H100", "A100", "V100", "L4", "T4", "P100", "P4")
    return next((index for index, name in enumerate(first) if name in device), len(first)), device


def _model_order(row: dict[str, Any]) -> int:
    return list(SHORT).index(row["model"])


# --- the page ---


def page(
    data: dict[str, Any], ops: list[dict[str, Any]], done: list[Outcome], left: list[tuple[dict[str, Any], str]]
) -> str:
    sections = [
        "<!-- Made by `python benchmarks/accuracy.py --pages`. Do not edit: run it again. -->\n"
        "# Published times, predicted",
        f"{len(done)} steps of transformers on {len({o.row['device'] for o in done})} GPUs that other people timed: "
        f"the labels of [NeuSight]({data['from']}) (ASPLOS 2025, commit `{data['commit'][:12]}`), fp32 with TF32 off, "
        "eager. The rows are in `tests/data/published_steps.json`, the models in `benchmarks/published_models.py`.",
        METHOD,
        "## What the times are",
        *(f"- **{name}**: {text}." for name, text in data["timed"].items() if name in ("infer", "train")),
        "## Errors",
        "Of the absolute relative error: mean, median, 90th percentile, greatest; in 90%: the part of the rows inside their 90% "
        "interval. Beside it NeuSight's own predictions "
        "and the plain roofline of its authors, both from their repository and on the same rows. NeuSight learned from "
        "the P4, P100, V100, T4 and A100 40 GB; the H100, the L4 and the A100 80 GB were new to it; for AMD "
        "it has a model of its own, and their roofline has no rows.",
        summary(done),
        "Of the rows marked † the backward takes less than 1.4 times its forward, in all others 1.5 to 2.1 times: "
        "their forward waited, most likely for cudaMalloc. Without them:",
        summary([outcome for outcome in done if not outcome.row.get("forward_stalled")]),
        "## How far an efficiency carries over",
        "Single ops of the same shapes on several GPUs (`tests/data/published_ops.json`, from the same source): the "
        "roofline's time as a share of the measured one, median and range. Matmuls that the roofline gives 1 ms or more; "
        "memory-bound ops (softmax, pointwise, copies) that move 100 MB or more, compulsory bytes.",
        carried(ops),
        "## Every row",
        table(done),
        "## Not predicted here",
        left_out(left),
    ]  # fmt: skip
    return "\n\n".join(sections).replace(".\n\n- **train", ".\n- **train") + "\n"


def summary(done: list[Outcome]) -> str:
    lines = [
        "| device | step | tier | rows | mean | median | p90 | max | signed mean | in 90% | NeuSight: mean | max | "
        "their roofline: mean |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in done:
        groups.setdefault((outcome.row["device"], outcome.row["step"]), []).append(outcome)
    for step in ("infer", "train"):
        of_step = [outcome for outcome in done if outcome.row["step"] == step]
        if of_step:
            groups[f"all {len({o.row['device'] for o in of_step})} devices", step] = of_step
    for (device, step), rows in groups.items():
        absolute = [abs(row.error) for row in rows]
        theirs = [abs(e) for row in rows if (e := row.theirs("neusight")) is not None]
        roofline = [abs(e) for row in rows if (e := row.theirs("roofline")) is not None]
        cells = [
            device, step, ", ".join(sorted({row.tier for row in rows})), str(len(rows)), *_statistics(absolute),
            signed(statistics.fmean(row.error for row in rows)), f"{statistics.fmean(row.inside for row in rows):.0%}",
            *_of(theirs, statistics.fmean, max), *_of(roofline, statistics.fmean),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _statistics(errors: list[float]) -> Iterable[str]:
    p90 = sorted(errors)[math.ceil(0.9 * len(errors)) - 1]
    return map(percent, (statistics.fmean(errors), statistics.median(errors), p90, max(errors)))


def _of(errors: list[float], *functions: Callable[[list[float]], float]) -> list[str]:
    return [percent(function(errors)) if errors else "-" for function in functions]


def table(done: list[Outcome]) -> str:
    lines = [
        "| device | model | step | batch × tokens | published | predicted | error | NeuSight |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for outcome in done:
        row, theirs = outcome.row, outcome.theirs("neusight")
        cells = (
            row["device"], SHORT[row["model"]], row["step"], f"{row['batch']} × {row['seq']}",
            f"{row['time_s'] * 1e3:,.1f} ms" + (" †" if row.get("forward_stalled") else ""),
            f"{outcome.predicted_s * 1e3:,.1f} ms", signed(outcome.error), "-" if theirs is None else signed(theirs),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def carried(ops: list[dict[str, Any]]) -> str:
    """Share of the roofline that single ops reach, by device."""
    shares: dict[str, dict[str, list[float]]] = {}
    for op in ops:
        for name, (time_s, *_) in op["times"].items():
            device = _device(name)
            if device is None:
                continue
            flops, moved = _work(op)
            roof = max(flops / _fp32(device), moved / device.bandwidth_bytes_per_s.value)
            if (flops and roof >= 1e-3) or (not flops and moved >= 1e8):
                kind = "memory-bound" if not flops else op["op"]
                shares.setdefault(name, {}).setdefault(kind, []).append(roof / time_s)
    lines = ["| device | linear | bmm | memory-bound |", "|---|---|---|---|"]
    for name in sorted(shares, key=_order):
        cells = (_range(shares[name].get(kind, [])) for kind in ("linear", "bmm", "memory-bound"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _work(op: dict[str, Any]) -> tuple[int, int]:
    """FLOPs and compulsory bytes of one row."""
    if "inputs" in op:
        sizes = [math.prod(shape) for shape in op["inputs"]]
        return 0, 4 * (sum(sizes) + max(sizes))
    batch, m, n, k = op.get("batch", 1), op["m"], op["n"], op["k"]
    return 2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n)


def _fp32(device: Device) -> float:
    peak = device.peak("fp32")
    assert peak is not None
    return peak.value


def _range(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.0%} ({min(values):.0%} to {max(values):.0%}, {len(values)})"


def left_out(left: list[tuple[dict[str, Any], str]]) -> str:
    groups: dict[tuple[str, str], int] = {}
    for row, reason in left:
        what = row["device"] if reason.startswith("no such device") else SHORT[row["model"]]
        groups[reason, what] = groups.get((reason, what), 0) + 1
    return "\n".join(f"- {what}, {rows} row{'s' * (rows > 1)}: {reason}." for (reason, what), rows in groups.items())


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}%".replace("-", "−")


def write(path: Path = PAGE) -> str:
    """The page; returns its summary."""
    data, ops = json.loads(NEUSIGHT.read_text()), json.loads(OPS.read_text())["rows"]
    done, left = outcomes(data)
    path.write_text(page(data, ops, done, left))
    print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return summary(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    print(write(parser.parse_args().output))


if __name__ == "__main__":
    main()
