"""Twenty training steps that are not rooflight's to compose, looked at by rooflight and by torch's own tools.

    python benchmarks/foreign_steps.py OUT.json [NAME ...]          on this machine's CPU, small
    python benchmarks/foreign_steps.py OUT.json --gpu [NAME ...]    on a GPU, sizes of a few ms to 100 ms a step
    python benchmarks/foreign_steps.py OUT.json --large NAME ...    those sizes on the CPU: only how long counting takes
    python benchmarks/foreign_steps.py --write                      puts results/foreign_steps.json (CPU) and
                                                                    h200/results/foreign_steps.json into docs/any-step.md

Each step is made and looked at in a process of its own; what failed, or took too long, is a row all the same. What is
there is written after every step. On a GPU it takes less than seven minutes. The libraries (peft, diffusers, accelerate, lightning, timm, transformers) must
be installed for the steps that use them.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill
from typing import Any

from time_errors import error_figures

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "any-step.md"
RESULTS = {
    "cpu": HERE / "results" / "foreign_steps.json",
    "large": HERE / "results" / "foreign_steps_large.json",
    "cuda": HERE / "h200" / "results" / "foreign_steps.json",
}
PROCESSES = {"DDP, 2 processes": 2}
"""Only on the CPU: two processes need two GPUs."""
ALL_S = {"cpu": 3600, "large": 3600, "cuda": 400}
"""For all steps together."""
AT_ONCE = {"cpu": 1, "large": 1, "cuda": 4}
MARKED = re.compile(r"(<!-- (?P<name>\w+): written by benchmarks/foreign_steps.py -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def looked_at(name: str, device: str, limit_s: float) -> Row:
    """The row of one step, which a process of its own looks at."""
    if limit_s <= 0:
        return {"name": name, "device": device, "failed": "no time was left"}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", "foreign.looking", name, device, str(out)]
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        world = PROCESSES.get(name, 1)
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(world)} if world > 1 else {}
        runs = [
            subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": path, **group, **({"RANK": str(rank)} if group else {})},
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            said = runs[0].communicate(timeout=limit_s)[1]
        except subprocess.TimeoutExpired:
            return {"name": name, "device": device, "failed": f"not done after {limit_s:.0f} s"}
        finally:
            for run in runs:
                run.kill()
                run.wait()
        if out.exists():
            return json.loads(out.read_text())
        return {"name": name, "device": device, "failed": (said.strip().splitlines() or ["no word"])[-1][:300]}


def run_all(out: Path, device: str, names: list[str]) -> None:
    """On a GPU several at a time, of which one has the GPU: the others estimate and predict."""
    sys.path.insert(0, str(HERE))
    from foreign.looking import STEPS

    rows: dict[str, Row] = {row["name"]: row for row in json.loads(out.read_text())} if out.exists() else {}
    wanted = [one for one in STEPS if not names or any(word.lower() in one.lower() for word in names)]
    wanted = [one for one in wanted if device == "cpu" or one not in PROCESSES]
    line = large_line if device == "large" else line_of
    ends = time.monotonic() + ALL_S[device]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE[device]) as pool:
        os.environ["GPU_LOCK"] = str(Path(folder) / "lock")
        for row in pool.map(lambda name: looked_at(name, device, ends - time.monotonic()), wanted):
            rows[row["name"]] = row
            print(" | ".join(line(row)), flush=True)
            out.write_text(json.dumps([*rows.values()], indent=1) + "\n")


def line_of(row: Row) -> list[str]:
    """Name, FLOPs, against FlopCounterMode, left as it was, times of the tools, rows, time and memory."""
    if "failed" in row:
        return [row["name"], row["failed"]]
    return [row["name"], *cpu_cells(row), *(gpu_cells(row) if row["device"] == "cuda" else ())]


def large_line(row: Row) -> list[str]:
    if "failed" in row or not isinstance(row["flop_counter"], dict):
        return [row["name"], row.get("failed", "FlopCounterMode fails")]
    estimated, counted = row["estimated"], row["flop_counter"]
    faster = f"{counted['time_s'] / estimated['time_s']:.1f} times"
    times = [_seconds(one) for one in (estimated["first_s"], estimated["time_s"], counted["time_s"])]
    return [row["name"], _si(estimated["flops"]), *times, faster]


def cpu_cells(row: Row) -> list[str]:
    estimated, counted, measured = (row.get(key) for key in ("estimated", "flop_counter", "measured"))
    if not isinstance(estimated, dict):
        return [str(estimated)]
    cells = [_si(estimated["flops"]), _against(row, counted), _left(row)]
    cells.append(_seconds(estimated["first_s"]) if "first_s" in estimated else "-")
    cells += [
        _seconds(one["time_s"]) if isinstance(one, dict) else "fails"
        for one in (estimated, counted, row["mem_tracker"])
    ]
    if not isinstance(measured, dict):
        return [*cells, str(measured)]
    same = "the same" if not measured["other_rows"] else f"{measured['other_rows']} other"
    return [*cells, f"{estimated['ops']:,}", same, _share(measured)]


def _left(row: Row) -> str:
    return "yes" if not row["changed"] else f"{len(row['changed'])} changed"


def _share(measured: Row) -> str:
    """Of the ops in the step: on a GPU of its kernels in the time that it was busy."""
    whole = measured["busy_s"] or measured["wall_s"]
    return f"{measured['ops_s'] / whole:.0%}" if measured["ops_s"] and whole else "-"


def _against(row: Row, counted: Any) -> str:
    if not isinstance(counted, dict):
        return str(counted)
    if not row["differences"]:
        return "equal"
    return "; ".join(
        f"{_short(name)} {_si(ours)}, there {_si(theirs)}" for name, (ours, theirs) in row["differences"].items()
    )


def gpu_cells(row: Row) -> list[str]:
    predicted, measured = row.get("predicted"), row.get("measured")
    if not isinstance(predicted, dict) or not isinstance(measured, dict):
        return [str(predicted), str(measured)]
    tracked = row["mem_tracker"]["peak_bytes"] if isinstance(row["mem_tracker"], dict) else None
    executed = measured["executed_flops"]
    return [
        _off(predicted["step_s"], measured["wall_s"], _seconds), _off(predicted["busy_s"], measured["busy_s"], _seconds),
        _off(predicted["peak_bytes"], measured["peak_bytes"], _megabytes), _off(tracked, measured["peak_bytes"], _megabytes),
        _share(measured), "-" if executed is None else _si(executed),
    ]  # fmt: skip


def _off(said: float | None, real: float | None, write: Callable[[float], str]) -> str:
    if said is None or not real:
        return f"{'fails' if said is None else write(said)} / {write(real) if real else '-'}"
    return f"{write(said)} / {write(real)} ({said / real - 1:+.0%})"


def _short(name: str) -> str:
    return name.removeprefix("aten::").removeprefix("_scaled_dot_product_")


def _si(number: float) -> str:
    for factor, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= factor:
            return f"{number / factor:.4g}{letter}"
    return f"{number:.4g}"


def _seconds(time_s: float) -> str:
    return f"{time_s:.2f} s" if time_s >= 1 else f"{1e3 * time_s:.3g} ms"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


CPU_TITLES = ["step", "FLOPs", "FlopCounterMode", "left as it was", "first estimate", "again", "FlopCounterMode takes", "MemTracker takes",
              "rows", "of the real run", "ops / step"]  # fmt: skip
LARGE_TITLES = ["step", "FLOPs", "first estimate", "again", "FlopCounterMode", "it takes longer by"]
GPU_TITLES = ["step", "FLOPs", "FlopCounterMode", "left as it was", "step: predicted / measured", "GPU-busy", "peak memory",
              "MemTracker's peak", "ops / GPU-busy", "executed FLOPs"]  # fmt: skip


def table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *(row + [""] * (len(titles) - len(row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def overheads(rows: list[Row]) -> str:
    """How long everybody took, in the median."""
    done = [row for row in rows if "failed" not in row]

    def took(key: str) -> str:
        times = [row[key]["time_s"] for row in done if isinstance(row[key], dict)]
        fails = f" (and fails on {len(done) - len(times)})" if len(times) < len(done) else ""
        return f"{_seconds(statistics.median(times))}{fails}"

    an_op = statistics.median(row["estimated"]["time_s"] / row["estimated"]["ops"] for row in done)
    said = (
        f"In the median of these {len(done)} small steps the plain step takes "
        f"{_seconds(statistics.median(row['plain_s'] for row in done))}, FlopCounterMode {took('flop_counter')}, MemTracker "
        f"{took('mem_tracker')}, and the estimate {took('estimated')}, {_seconds(an_op)} an op, after a first one of "
        f"{_seconds(statistics.median(row['estimated']['first_s'] for row in done))}: it writes down every op with its "
        "costs, and once more where optimizers have no state yet. It takes as long however large the tensors are; the others "
        "take at least the time of the step."
    )
    return fill(said, 120) + "\n"


def _gpu_line(row: Row) -> list[str]:
    if "failed" in row:
        return [row["name"], row["failed"]]
    return [row["name"], *cpu_cells(row)[:3], *gpu_cells(row)]


def write_page() -> None:
    tables: dict[str, str] = {}
    for device, file in RESULTS.items():
        rows = json.loads(file.read_text()) if file.exists() else []
        if device == "cpu" and rows:
            tables["cpu"] = table(CPU_TITLES, [line_of(row) for row in rows])
            tables["overheads"] = overheads(rows)
        elif device == "large" and rows:
            tables["large"] = table(LARGE_TITLES, [large_line(row) for row in rows])
        elif rows:
            tables["cuda"] = table(GPU_TITLES, [_gpu_line(row) for row in rows])
    page = MARKED.sub(
        lambda found: found[1] + tables.get(found["name"], "Not measured yet.\n") + found[3], PAGE.read_text()
    )
    PAGE.write_text(page)


def figures() -> dict[str, float]:
    """Return how far the steps' predictions were off on the GPU, as they were recorded there."""
    rows = [row for row in json.loads(RESULTS["cuda"].read_text()) if isinstance(row.get("measured"), dict)]
    judged = {"step": ("step_s", "wall_s"), "busy": ("busy_s", "busy_s"), "peak": ("peak_bytes", "peak_bytes")}
    found: dict[str, float] = {
        "measured": len(rows),
        "as_many_FLOPs_as_FlopCounterMode": sum(row.get("differences") == {} for row in rows),
        "left_as_it_was": sum(not row["changed"] for row in rows),
    }
    for name, (said, real) in judged.items():
        errors = [row["predicted"][said] / row["measured"][real] - 1 for row in rows]
        found |= error_figures(name, errors, "median", "p90")
    return found


def main(words: list[str]) -> None:
    if words == ["--write"]:
        write_page()
        return
    names = [word for word in words if word not in ("--gpu", "--large")]
    if not names:
        sys.exit(__doc__)
    run_all(Path(names[0]), "cuda" if "--gpu" in words else "large" if "--large" in words else "cpu", names[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
