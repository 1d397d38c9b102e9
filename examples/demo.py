"""ResNet-50 training: estimated, measured on this machine, predicted on three GPUs, explained, reported.

    python examples/demo.py [FOLDER]        (make demo: into demo/)

Writes FOLDER/report.html, one page that needs no network, and FOLDER/measured.json.gz, which it was made from. Where
there is no GPU, the step runs on the CPU; why its numbers differ from the formula is then shown on a recorded H200.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import rooflight
from rooflight.analysis.comparison.why import Why
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.ledger import Ledger, total
from rooflight.prediction.result import Predictions
from rooflight.reporting.report.ledger_report import STEPS
from rooflight.reporting.sections.measure_text import doubt
from rooflight.summary.measured import Measured

MODEL, BATCH, DEVICES = "resnet50", 4, ["h200", "a100", "v100"]
RECORDED = "recorded:h200/resnet50-train-fp32"
console = Console()


@contextmanager
def bars() -> Iterator[Progress]:
    """On the error output, so that the result can be piped; without a terminal there are none."""
    columns = (TextColumn("{task.description}"), BarColumn(28), TextColumn("{task.fields[doing]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as shown:
        yield shown


@contextmanager
def stage(shown: Progress, name: str, total: float | None = 1) -> Iterator[TaskID]:
    task = shown.add_task(f"{name:30}", total=total, doing="")
    yield task
    shown.update(task, total=1, completed=1, doing="")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with bars() as shown:
        with stage(shown, "estimate by formula", None):
            estimate = rooflight.estimate(MODEL, batch=BATCH, step="train")
        with stage(shown, "measure on this machine") as task:

            def measuring(doing: str, done: float, whole: float) -> None:
                shown.update(task, total=whole, completed=done, doing=doing)

            measured = rooflight.measure(MODEL, batch=BATCH, step="train", repeat=3, progress=measuring)
            rooflight.save(measured, folder / "measured.json.gz", force=True)
        with stage(shown, "predict on H200, A100, V100", None):
            predicted = rooflight.predict(MODEL, on=DEVICES, batch=BATCH, step="train", find_savings=False)
        with stage(shown, "explain a recorded H200 step", None):
            compared = rooflight.compare(RECORDED)
            causes = {why.quantity: why for why in compared.whys}
        with stage(shown, "write the report", STEPS) as task:
            from rooflight.reporting.report.api import named_report
            from rooflight.reporting.writers import write

            def reporting(doing: str) -> None:
                shown.update(task, advance=1, doing=doing)

            path = folder / "measured.json.gz"
            report = named_report([measured], [str(path)], on=DEVICES, say=reporting)
            (folder / "report.html").write_bytes(write(report, "html"))
    show(estimate, measured, predicted, causes, folder, time.monotonic() - began)


def show(
    estimate: Ledger, measured: Ledger, predicted: Predictions, causes: dict[str, Why], folder: Path, took_s: float
) -> None:
    """What came out, on one screen."""
    sums = total(estimate.ops)
    wall = next(row.quantities["wall_time_s"].value for row in measured.measurements if row.scope == "step")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    table.add_row("by formula", f"{whole_count(sums.flops)} FLOPs, {whole_bytes(sums.bytes)} moved at least, "
                                f"{len(estimate.ops):,} ops")  # fmt: skip
    table.add_row("measured here", f"{seconds(wall)} a step on {measured.header.device}: "
                                   f"{whole_count(sums.flops / wall)}FLOP/s")  # fmt: skip
    if doubtful := doubt(Measured(measured)):
        table.add_row("", f"[bold]{doubtful}[/bold]")
    for one in predicted:
        fits = "fits" if one.memory is not None and one.memory.fits else "does not fit"
        table.add_row(f"predicted on {one.device}", f"{seconds(one.time_s)} a step, {one.bound}-bound, {fits}")
    why = causes["FLOPs"]
    largest = max(why.causes, key=lambda cause: abs(cause.b or 0))
    gap = (why.measured.b or 0) / (why.asked.b or 1) - 1
    left = ", ".join(f"{one.quantity} {abs(one.part(one.unexplained) or 0):.2%}" for one in causes.values())
    table.add_row("why counters see more", f"on a recorded H200 (batch 16) {gap:.1%} more FLOPs than the formula: "
                                           f"{largest.name} {(largest.b or 0) / (why.asked.b or 1):.1%}")  # fmt: skip
    table.add_row("left unexplained there", left)
    console.print(Panel(table, title=f"{MODEL}, training, batch {BATCH}", title_align="left", expand=False))
    size = (folder / "report.html").stat().st_size
    done = Text.assemble(
        "open ", (str(folder / "report.html"), "bold"), f"  ({whole_bytes(size)}, made in {took_s:.0f} s)"
    )
    console.print(done)
    program = "rooflight" if shutil.which("rooflight") else str(Path(sys.executable).with_name("rooflight"))
    program = program.removeprefix(f"{Path.cwd()}/")
    for what, line in (
        ("another model", "rooflight estimate gpt2 --seq 1024 --step train"),
        ("other GPUs", "rooflight predict gpt2 --on h200,l4 --seq 1024 --batch 1,8 --step train"),
        ("a real H200", f"rooflight report {RECORDED} -o h200.html"),
    ):
        console.print(Text.assemble((f"{what:14}", "dim"), line.replace("rooflight", program, 1)), soft_wrap=True)


if __name__ == "__main__":
    main()
