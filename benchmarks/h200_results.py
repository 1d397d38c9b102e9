"""Sections of docs/h200-measurements.md that come from the results of single scripts, and from steps that were recorded
in several ways. `h200_report.py` puts them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rooflight import formatting
from rooflight.analysis.comparison.sides import Comparison
from rooflight.formatting import quotient, seconds, signed_percent, whole_bytes
from rooflight.ledger import Ledger
from rooflight.metrics import DRAM_BYTES

VARIANTS = ("-compiled", "-graph")
"""What follows the name of an eager recording in those of the same step run otherwise."""

Row = Sequence[str]


def table(head: Row, rows: Iterable[Row], *, words: int = 1) -> str:
    """Markdown; the first `words` columns are text, the others numbers."""
    rule = ["---" if place < words else "---:" for place in range(len(head))]
    signed = ([re.sub(r"^-(?=\d)", "−", cell) for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *signed))


def code(lines: Iterable[str]) -> str:
    """Commands; a mark says which a machine without a GPU cannot run."""
    shown = [f"$ {line}" for line in lines]
    without = all(line.startswith(("$ rooflight report", "$ rooflight compare")) for line in shown)
    mark = [] if without else ["<!-- not run: needs a GPU -->"]
    return "\n".join([*mark, "```console", *shown, "```"])


def against_ncu(result: Any) -> list[str]:
    if result is None:
        return []
    rows, told = [], []
    for name, found in result["quantities"].items():
        rows.append((f"`{name}`", f"{found['ops']:,}", f"{found['equal']:,}", f"{found['sum_cupti']:,}",
                     f"{found['sum_ncu']:,}", quotient(found["sum_ncu"] / found["sum_cupti"])))  # fmt: skip
        for _, op, module, _, ours, theirs in found["worst"][:2]:
            told.append(f"`{op}` in `{module}`: {name} {whole_bytes(ours)}, by ncu {whole_bytes(theirs)}")
    exact = [row for name, row in zip(result["quantities"], rows, strict=True) if name not in DRAM_BYTES]
    all_equal = all(row[1] == row[2] for row in exact)
    parts = [
        "## Against Nsight Compute",
        code(["python benchmarks/h200/against_ncu.py OUT.json"]),
        f"`{result['command']}`, all counters in one run of each: CUPTI's ranges inside the process, and ncu around "
        "it, with caches and clocks left alone, its kernels attributed to ops by NVTX ranges.",
        table(("quantity", "ops", "equal", "sum, rooflight", "sum, ncu", "ncu/rooflight"), rows),
        ("FLOPs agree in every op, to the last digit: no tolerance is needed. " if all_equal else "")
        + "DRAM bytes do not, and cannot: ncu runs each kernel alone, again and again, and puts memory back in between. "
        "A kernel then does not find in the L2 cache what the kernel before it left there, and what it writes last "
        "reaches DRAM after counting has ended. Ranges in a running step count what happens in the step. "
        "The largest differences:",
        "\n".join(f"- {line}" for line in told),
        f"Time for the counters alone: {result['cupti_counters_s']:.1f} s in the process, "
        f"{result['ncu_counters_s']:.1f} s by ncu ({result['ncu_process_s']:.1f} s less the "
        f"{result['plain_process_s']:.1f} s of the same process without it): {result['ratio']:.0f} times as long.",
    ]  # fmt: skip
    if "cuda_flops_fp16" in result["quantities"]:
        parts.append(
            "The counters behind `cuda_flops_fp16` also tick where a compiler loads a constant by HFMA2. The ledger of a "
            "step without any 16-bit tensor therefore has no such quantity; the raw counts are still there."
        )
    return parts


def range_ends(result: Any) -> list[str]:
    """Why the ops write less than the step."""
    if result is None:
        return []
    rows, rates = [], []
    for step in dict.fromkeys(row["step"] for row in result):
        ends = {row["end"]: row for row in result if row["step"] == step}
        for end, row in ends.items():
            kept = (row["written_of_step"] - row["written_of_ops"]) / row["ops"]
            rows.append((step, end, signed_percent(row["read_of_ops"] / row["read_of_step"] - 1),
                         signed_percent(row["written_of_ops"] / row["written_of_step"] - 1),
                         f"{kept / 1000:,.0f} kB"))  # fmt: skip
        early, late = ends["100 µs later"], ends["2 ms later"]
        rates.append((late["written_of_ops"] - early["written_of_ops"]) / (late["ops"] * 1.9e-3))
    told = " and ".join(f"{rate / 1e6:.0f} MB/s" for rate in rates)
    return [
        "### Why the ops write less than the step",
        code(["python benchmarks/h200/range_ends.py OUT.json"]),
        table(("step", "a range ends", "ops read", "ops write", "too little, an op"), rows, words=2),
        f"A GPU that waits still writes what its cache holds: 2 ms more in every range adds {told}. Between two ranges CUPTI "
        "takes more than a millisecond, and what is written then belongs to no range: some 30 kB an op, which only shows "
        "in steps of many small ops. To wait in the range would count it, and with it much that is not the op's. So a range "
        "ends when the GPU is done. (The figures were copied, to 10 kB, from what a first form of the script printed, in "
        "which the range around the step waited as long as those of the ops; the script as it is here has not been run.)",
    ]


def undisturbed(result: Any) -> list[str]:
    if result is None:
        return []
    kept = [
        f"- `{name}`, three training steps with deterministic algorithms, after `rooflight.measure` and without it: "
        f"{row['equal_bit_for_bit']} of {row['tensors']} tensors (weights, buffers, output) equal bit for bit; the state "
        f"was {'put back' if row['state_kept'] else 'NOT put back'} exactly."
        for name, row in result.items()
        if "tensors" in row
    ]
    times = plain_times(result)
    columns = list(dict.fromkeys(when for row in times.values() for when in row))
    rows = [
        (name, *(spread(row[when], next(iter(row.values()))) if when in row else "–" for when in columns))
        for name, row in times.items()
    ]
    return [
        "## Does measuring change what is measured?",
        code(["python benchmarks/h200/undisturbed.py OUT.json"]),
        "\n".join(kept),
        "Time of plain forward passes in the same process, in ms: the median, how many times the first one that is, and "
        "the least and the greatest of the block.",
        table(("model, batch 16", *(when.replace("_", " ") for when in columns)), rows),
        "A step that keeps the GPU busy (`vgg19`) takes what it took before. One that waits for the host (`resnet18`) "
        "changes with the host from block to block, and has the hooks of torch's profiler, which a measurement also runs, "
        "in its host time. Wall times of a ledger are taken before any of this.",
    ]


def plain_times(result: Any) -> dict[str, dict[str, list[float]]]:
    """By model, then by when they were taken: median, least, greatest."""
    found = {}
    for name, row in result.items():
        if "plain ms" in name:
            found[name.split()[0]] = row
        elif times := {key.removeprefix("plain_ms_"): row[key] for key in row if key.startswith("plain_ms_")}:
            found[name] = times
    return found


def spread(values: list[float], first: list[float]) -> str:
    return f"{values[0]:.2f}, {quotient(values[0] / first[0])} × ({values[1]:.2f} to {values[2]:.2f})"


def executions(recordings: dict[str, Ledger]) -> list[str]:
    """Eager beside compiled and captured, for every step that was recorded in several ways."""
    parts = []
    for base, ledger in recordings.items():
        others = [base + ending for ending in VARIANTS if base + ending in recordings]
        if not others:
            continue
        sides = [Comparison(ledger, recordings[name]) for name in others]
        names = list(dict.fromkeys(line.name for side in sides for line in side.totals()))
        found = [{line.name: line for line in side.totals()} for side in sides]
        rows = []
        for name in names:
            lines = [totals.get(name) for totals in found]
            first = next(line for line in lines if line is not None)
            cells = [cell for line in lines for cell in (written(line, "b"), quotient(line.ratio if line else None))]
            rows.append((name, written(first, "a"), *cells))
        columns = [cell for name in others for cell in (recordings[name].header.execution, "ratio")]
        notes = [f"- `{name}`: {note}" for name in others for note in recordings[name].header.notes
                 if note.text.startswith(("kernels are", "torch.compile", "inside a CUDA graph", "graph break", "some"))]  # fmt: skip
        parts += [f"`{base}`:", table(("whole step", "eager", *columns), rows), "\n".join(notes),
                  code(f"rooflight compare recorded:h200/{base} recorded:h200/{name}" for name in others)]  # fmt: skip
    if not parts:
        return []
    return ["## Eager, compiled, captured", *(part for part in parts if part)]


def written(line: Any, side: str) -> str:
    if line is None or (value := getattr(line, side)) is None:
        return "–"
    return {"second": seconds, "byte": whole_bytes}.get(line.unit, formatting.count)(value)


def many_ops(result: Any) -> list[str]:
    if result is None:
        return []
    ops, step = result["fp32_flops_of_ops"], result["fp32_flops_of_step"]
    moved = result["dram_bytes_of_ops"] / result["dram_bytes_of_step"] - 1
    return [
        "## A step of very many ops",
        code(["python benchmarks/h200/many_ops.py OUT.json"]),
        f"{result['ops']:,} ops, {result['ops_counted']:,} of them with counters, in {result['seconds']:.0f} s for "
        f"everything. fp32 FLOPs of the ops {ops:,}, of the step {step:,}, by the program {result['useful']:,} (`x + 1` "
        "runs as a fused multiply-add, two FLOPs). So many ops are counted window by window, each in its own repeats of the "
        f"step. The tensor stays in the L2 cache: all {result['ops']:,} ops together move "
        f"{whole_bytes(result['dram_bytes_of_step'])} to and from DRAM, by their own ranges {signed_percent(moved)}.",
        "\n".join(f"- {note}" for note in result["notes"]),
    ]


def gpu_tests(result: Any) -> list[str]:
    if result is None:
        return []
    outcomes = [row["outcome"] for row in result["tests"]]
    told = [f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped") if kind in outcomes]
    failed = [f"- failed: `{row['name']}`" for row in result["tests"] if row["outcome"] == "failed"]
    return ["## Tests that need a GPU", code([result["command"]]), f"{', '.join(told)}.", *(["\n".join(failed)] if failed else [])]  # fmt: skip


def kept_tests(junit: Path) -> dict[str, Any]:
    """Names and outcomes, without what the file says of the machine."""
    rows = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        rows.append({"name": f"{case.get('classname', '')}::{case.get('name', '')}", "outcome": outcome})
    return {"command": "pytest tests/gpu", "tests": rows}
