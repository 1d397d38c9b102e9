"""What advice predicted against what was measured: pairs of recordings of which one is the other with the change.

    python benchmarks/advice.py            prints the tables
    python benchmarks/advice.py --write    puts them into docs/verdicts.md

The first recording of a pair is judged as if the second were not there. Without a GPU, in seconds.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import median
from textwrap import fill

import rooflight
from rooflight.analysis.verdicts import Judge
from rooflight.metrics import gain, gain_text
from rooflight.reporting.sections.verdict_tables import advice_lines, step_table, verdict_table
from rooflight.reporting.writers.markdown import table_markdown
from rooflight.summary.measured_step import wall_s

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verdicts.md"
OPEN_ROWS = ROOT / "tests" / "data" / "h200_open.jsonl"
MARKED = re.compile(r"(<!-- (?P<name>[\w ]+): written by benchmarks/advice.py -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN = "vgg19-infer-fp32"

PAIRS = [
    *((f"{model}-{step}-fp32", "bf16", f"{model}-{step}-bf16")
      for model in ("resnet50", "vgg19", "distilbert", "gpt2", "transformer") for step in ("infer", "train")),
    ("resnet50-train-fp32", "compile", "resnet50-train-fp32-compiled"),
    ("gpt2-infer-bf16", "compile", "gpt2-infer-bf16-compiled"),
    ("resnet50-train-fp32", "graph", "resnet50-train-fp32-graph"),
]  # fmt: skip
TIMES = 4
"""How much larger the larger batches of the open rows are."""


@dataclass(frozen=True)
class Pair:
    """A step, a change, and the step with it: predicted and measured."""

    before: str
    change: str
    kernels_s: tuple[float, float, float]
    """Before, predicted, measured."""
    wall_s: tuple[float, float, float]
    layers: tuple[tuple[str, float, float, float], ...] = ()
    """Name, time before, predicted, measured, of layers with 1% of the kernels' time or more."""


def judged(name: str) -> Judge:
    return Judge(rooflight.load(f"recorded:h200/{name}"))


def pair(before: str, change: str, after: str) -> Pair:
    judge, real = judged(before), judged(after)
    advisor, now = judge.advisor, judge.measured.total.time_s
    walls = (wall_s(judge.measured), wall_s(real.measured))
    if change == "graph":
        (found,) = [one for one in advisor.step() if one.key == "graph"]
        return Pair(
            before,
            change,
            (now, found.changed_kernel_time_s, real.measured.total.time_s),
            (walls[0], found.time_s, walls[1]),
        )
    found = advisor.of_change(change)
    layers = tuple(layer_times(judge, real, change)) if change == "bf16" else ()
    return Pair(before, change, (now, found.changed_kernel_time_s, real.measured.total.time_s), (walls[0], found.time_s, walls[1]),
                layers)  # fmt: skip


def layer_times(judge: Judge, real: Judge, change: str) -> list[tuple[str, float, float, float]]:
    measured = {row.name: row.sums.time_s for row in real.rows()}
    modules = [row for row in judge.rows() if row.estimate.kind in ("module", "outside")]
    names = [row.name for row in modules]
    found = []
    for row in modules:
        leaf = row.name and not any(name.startswith(f"{row.name}.") for name in names)
        if leaf and (row.share or 0) >= 0.01 and measured.get(row.name):
            after = judge.advisor.of_change(change, row.group).changed_kernel_time_s
            found.append((row.name, row.sums.time_s, after, measured[row.name]))
    return found


def pair_table(pairs: list[Pair]) -> str:
    lines = [
        "| recording | with | kernels: now | predicted | measured | gain predicted | measured | wall: now | predicted "
        "| measured | gain predicted | measured |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in pairs:
        cells = [one.before, one.change]
        for now, predicted, measured in (one.kernels_s, one.wall_s):
            cells += [f"{time * 1e3:.2f} ms" for time in (now, predicted, measured)]
            cells += [gain_text(gain(now, time)).replace("-", "−") for time in (predicted, measured)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def layer_line(pairs: list[Pair]) -> str:
    layers = [layer for one in pairs for layer in one.layers]
    errors = sorted(abs(predicted / measured - 1) for _, _, predicted, measured in layers)
    wrong = sum((predicted < before) != (measured < before) for _, before, predicted, measured in layers)
    worst = max(((abs(p / m - 1), one.before, name, b, p, m) for one in pairs for name, b, p, m in one.layers))
    return (
        f"Of {len(layers)} layers in those ten pairs (without layers inside, 1% of the kernels' time or more) the predicted "
        f"time in bf16 is off by {median(errors):.0%} in the median and {errors[int(0.9 * len(errors))]:.0%} at the "
        f"ninetieth percentile; {wrong} of them became slower where a gain was predicted, or the other way round. The "
        f"worst: `{worst[2]}` of {worst[1]}, {worst[3] * 1e6:.0f} µs in fp32, predicted {worst[4] * 1e6:.0f} µs, measured "
        f"{worst[5] * 1e6:.0f} µs."
    )


def batch_line() -> str:
    """Steps of which the GPU is busy for a quarter of the wall time or less, and the same at four times the batch."""
    rows = [json.loads(line) for line in OPEN_ROWS.read_text().splitlines()][1:]
    known = {(row["model"], row["dtype"], row["mode"], row["batch"]): row for row in rows}
    ratios = []
    for (model, dtype, mode, batch), row in known.items():
        larger = known.get((model, dtype, mode, TIMES * batch))
        if larger is not None and row["seconds"] >= TIMES * row["gpu_seconds"]:
            ratios.append((larger["seconds"] / row["seconds"], f"{model} {dtype} {mode} b{batch}"))
    ratios.sort()
    return (
        f"Larger batches are not among the recordings. Of the steps measured on the H200 before (`tests/data/"
        f"h200_open.jsonl`), {len(ratios)} have a GPU that is idle for three quarters of the step or more, and were measured "
        f"at {TIMES} times the batch as well: such a step took {median(r for r, _ in ratios):.2f} times as long in the median, "
        f"{ratios[0][0]:.2f} to {ratios[-1][0]:.2f} times ({ratios[-1][1]}), where advice says about the same."
    )


def kept() -> str:
    pairs = [pair(*one) for one in PAIRS]
    precision = [one for one in pairs if one.change == "bf16"]
    lines = "\n\n".join(fill(line, 120) for line in (layer_line(precision), batch_line()))
    return f"{pair_table(pairs)}\n\n{lines}\n"


def shown() -> str:
    """One recording as it is judged."""
    judge = judged(SHOWN)
    step = judge.step()
    lines = "\n".join(f"- {line}" for line in advice_lines(judge, "type"))
    tables = "\n".join(table_markdown(table) for table in (verdict_table(judge, "type"), step_table(judge)))
    return f"> {step.sentence}\n>\n> {step.whole.evidence}\n\n{tables}\n{lines}\n"


def printed() -> str:
    """What the page's first block of Python prints."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    with redirect_stdout(StringIO()) as said:
        exec(code[1], {})
    return f"```text\n{said.getvalue()}```\n"


SECTIONS = {"in Python": printed, "one step": shown, "predicted and measured": kept}


def written(page: str) -> str:
    """The page with the sections of today."""
    return MARKED.sub(lambda found: f"{found[1]}{SECTIONS[found['name']]()}{found[3]}", page)


def main() -> None:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        print("\n".join(f"## {name}\n{section()}" for name, section in SECTIONS.items()))


if __name__ == "__main__":
    main()
