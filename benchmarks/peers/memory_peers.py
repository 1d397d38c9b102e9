"""The section "Peak memory" of docs/benchmarks.md: what tools say of the measured steps, and how long they take."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_rows import Measured, Outcome
from predict_rows import Spread

from peers.cases import CASES, Case
from peers.forked import asked, installed, prepare
from peers.memory_tools import MEMORY_TOOLS
from peers.sections import MEMORY
from peers.tables import Goal, Run, goal, megabytes, seconds, table, times
from peers.tools import TOOLS

LIMIT_S = 20.0
"""For one tool on one row."""
LLAMA = CASES["llama-step"]
LLAMA_LIMIT_S = 400.0
LLAMA_TOOLS = {"rooflight": (MEMORY_TOOLS["rooflight"], 3), "mem-tracker": (TOOLS["mem-tracker"], 1)}
"""And how often each is asked."""


@dataclass(frozen=True)
class Peers:
    """What came out of one run of all."""

    conditions: str
    rows: dict[str, dict[str, Run]]
    """By tool, then by the name of the row."""
    llama: dict[str, Run]
    """By tool."""


def measure(rows: Sequence[Measured]) -> Peers:
    cases = [case_of(row) for row in rows]
    stated = conditions()
    prepare([*cases, LLAMA])
    found: dict[str, dict[str, Run]] = {key: {} for key in MEMORY_TOOLS}
    for row, case in zip(rows, cases, strict=True):
        for key, tool in MEMORY_TOOLS.items():
            found[key][row.name] = run = asked(tool, case, limit_s=LIMIT_S)
            error = "" if run.peak_bytes is None else f", {run.peak_bytes / row.allocated - 1:+.1%}"
            print(f"{row.name}: {key}: {run.in_words()}{error}", file=sys.stderr, flush=True)
    llama = {key: asked(tool, LLAMA, limit_s=LLAMA_LIMIT_S, repeats=repeats)
             for key, (tool, repeats) in LLAMA_TOOLS.items()}  # fmt: skip
    return Peers(stated, found, llama)


def case_of(row: Measured) -> Case:
    options = {"batch": row.batch, "seq": row.options["seq"], "dtype": row.dtype}
    return Case(row.name, row.name, "step", row.model, options, optimizer=row.options["optimizer"])


def conditions() -> str:
    packages = dict.fromkeys(tool.package for tool in MEMORY_TOOLS.values())
    versions = ", ".join(f"{package} {installed(package) or '(not installed)'}" for package in packages)
    load = (
        f"; load average before the run, from other work, {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    )
    return f"{versions}; {os.cpu_count()} CPU cores, no GPU{load}."


def saved(found: Peers) -> str:
    return json.dumps(dataclasses.asdict(found), indent=1) + "\n"


def loaded(path: Path) -> Peers:
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = {tool: {name: Run(**run) for name, run in runs.items()} for tool, runs in kept["rows"].items()}
    return Peers(kept["conditions"], rows, {tool: Run(**run) for tool, run in kept["llama"].items()})


def with_predictions(found: Peers, predicted: Sequence[Outcome]) -> Peers:
    """What rooflight says now in the place of what it said then: the times may be kept ones."""
    ours = {row.name: dataclasses.replace(found.rows["rooflight"][row.name], peak_bytes=row.memory.peak_allocated_bytes)
            for row in predicted}  # fmt: skip
    return dataclasses.replace(found, rows={**found.rows, "rooflight": ours})


# --- the section ---

HOW = """\
The allocated peak of the {count} steps of [memory-errors.md](memory-errors.md), measured on an H200, and what tools say \
of it without one, each as its documentation does it, on meta tensors. Made by `python benchmarks/memory.py --peers \
--write`. {conditions} Every figure is from a process of its own that has everything imported and has warmed up on a \
small model; the tools take turns at every row, asked once, for at most {limit:.0f} s. rooflight's time is that of \
trace and memory; `× time` is the tool's time over rooflight's, summed over the rows that both have an answer for. \
Errors are absolute and relative to what was measured."""

WHAT = """\
- **torchinfo** prints an `Estimated Total Size`: inputs, parameters, and the outputs of modules with parameters, twice, \
whether for inference or for training. It knows no optimizer, and nothing that is freed.
- **accelerate estimate-memory** multiplies the size of the weights: once for inference, four times for training with Adam \
(in half precision twice, of their size in fp32, in which it takes them to be kept). It is given the model instead of a \
name on the Hub; inputs, batch and activations do not enter.
- **MemTracker** (`torch.distributed._tools`) follows the tensors of a step as it runs: here two training steps, since the \
optimizer's state is made in the first, of which only the first counts as its time. It sees neither workspaces of \
cuBLAS and cuDNN nor what kernels borrow, and on meta tensors attention goes through full matrices; in the last row \
attention and dropout are as rooflight's stand-ins for CUDA have them."""

SPEED = """\
{title}: a whole training step, the peak of its memory. rooflight {ours}, {added} of added memory; MemTracker, one step on \
meta tensors, {theirs}."""


def section(found: Peers, rows: Sequence[Measured]) -> str:
    sections = [
        MEMORY,
        HOW.format(count=len(rows), conditions=found.conditions, limit=LIMIT_S),
        _table(found, rows),
        WHAT,
        *_failures(found),
        *_llama(found.llama),
    ]
    return "\n\n".join(sections)


def _table(found: Peers, rows: Sequence[Measured]) -> str:
    lines = []
    for key, tool in MEMORY_TOOLS.items():
        runs, ours = found.rows[key], found.rows["rooflight"]
        cells = [tool.title, str(sum(not run.failed for run in runs.values()))]
        for step in ("infer", "train"):
            cells += _spread(runs, [row for row in rows if row.step == step])
        both = [name for name, run in runs.items() if not run.failed and not ours[name].failed]
        spent, own = (Run(time_s=sum(one[name].time_s for name in both)) for one in (runs, ours))
        lines.append([*cells, seconds(spent.time_s), times(spent, own) if both else ""])
    heads = (
        "tool",
        "rows",
        "inference: median",
        "p90",
        "max",
        "training: median",
        "p90",
        "max",
        "time of all",
        "× time",
    )
    return table(heads, lines, numbers_from=1)


def _spread(runs: dict[str, Run], rows: Sequence[Measured]) -> list[str]:
    peaks = ((runs[row.name].peak_bytes, row.allocated) for row in rows)
    spread = Spread.of(peak / measured - 1 for peak, measured in peaks if peak is not None)
    if spread is None:
        return ["–"] * 3
    return [f"{100 * value:.1f}%" for value in (spread.median, spread.p90, spread.greatest)]


def _failures(found: Peers) -> list[str]:
    """Which rows a tool has no answer for, by reason."""
    lines = []
    for key, runs in found.rows.items():
        reasons: dict[str, list[str]] = {}
        for name, run in runs.items():
            if run.failed:
                reasons.setdefault(run.failed, []).append(name)
        lines += [f"- {MEMORY_TOOLS[key].title} on {', '.join(names)}: `{why}`" for why, names in reasons.items()]
    return ["Without an answer:", "\n".join(lines)] if lines else []


def _llama(runs: dict[str, Run]) -> list[str]:
    ours, theirs = runs["rooflight"], runs["mem-tracker"]
    if ours.failed:
        return [f"{LLAMA.title}: rooflight fails: `{ours.failed}`"]
    said = SPEED.format(title=LLAMA.title, ours=seconds(ours.time_s), added=megabytes(ours.added_bytes),
                        theirs=f"fails: `{theirs.failed}`" if theirs.failed else seconds(theirs.time_s))  # fmt: skip
    goals: list[Goal] = [
        goal("Llama 3 70B, peak of a training step: under 30 s", seconds(ours.time_s), reached=ours.time_s < 30),
        goal("the same: under 1 GB of added memory", megabytes(ours.added_bytes), reached=ours.added_bytes < 1e9),
    ]
    if not theirs.failed:
        ratio = ours.time_s / theirs.time_s
        goals.append(goal("the same: at most 0.1 × MemTracker's time", f"{ratio:.3f} ×", reached=ratio <= 0.1))
    return [said, table(("goal", "measured", ""), goals)]
