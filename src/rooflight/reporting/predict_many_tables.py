"""A run on many GPUs as tables: where its time goes, what travels, what each GPU holds, and how it scales."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight import units
from rooflight.prediction.result import Many, Prediction, ScalingPoint
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table
from rooflight.units import quotient


def time_table(one: Prediction, many: Many, of: str) -> Table:
    """What the step's time is made of."""
    rows = [("computing", many.compute_s), ("communication that nothing hides", many.exposed_s)]
    if many.pipeline > 1:
        rows.append(("pipeline bubble", many.bubble_s))
    rows.append(("step", one.time_s))
    cells = tuple((name, time_s, time_s / one.time_s) for name, time_s in rows)
    columns = (Column("of one GPU", right=False), column("time_s", heading="time"), column("share"))
    return Table(f"where the time goes{of}", columns, cells, emphasised=frozenset({len(cells) - 1}))


def traffic_table(many: Many) -> Table:
    columns = (
        Column("what one GPU sends", right=False), Column("messages", units.exact),
        column("bytes"), column("time_s", heading="time"), Column("how", right=False, optional=1),
    )  # fmt: skip
    rows = tuple((row.what, row.calls, row.bytes, row.time_s, row.how) for row in many.traffic)
    return Table("", columns, rows)


def memory_table(many: Many) -> Table:
    rows = (
        ("parameters", many.parameter_bytes), ("gradients", many.gradient_bytes),
        ("optimizer state", many.optimizer_bytes), ("together", many.state_bytes),
    )  # fmt: skip
    one = "kept by one GPU" if many.pipeline == 1 else "kept by one GPU of the stage with most of it"
    columns = (Column(one, right=False), column("bytes"))
    return Table("", columns, rows, emphasised=frozenset({3}))


def scaling_table(kind: str, points: Sequence[ScalingPoint]) -> Table:
    """One curve. PALEO's speed-ups stand beside."""
    columns = (
        column("gpus"), column("batch_each", optional=3),
        column("global_batch", optional=1),
        column("time_s"), column("exposed_s", optional=2),
        column("samples_per_s"), column("speedup", raw="speed-up"),
        column("efficiency"), column("fit"), Column("PALEO tree", quotient, optional=4),
        Column("butterfly", quotient, optional=6), Column("one-to-all", quotient, optional=5),
    )  # fmt: skip
    rows = tuple(
        (point.gpus, point.batch, point.global_batch, point.time_s, point.exposed_s, point.throughput, point.speedup,
         point.efficiency, point.fit, *(point.paleo_speedup.get(name) for name in ("tree", "butterfly", "one-to-all")))
        for point in points
    )  # fmt: skip
    titles = {"weak": "weak scaling: every replica keeps its batch",
              "strong": "strong scaling: the global batch is divided"}  # fmt: skip
    return Table(titles[kind], columns, rows)


def tables(one: Prediction, of: str) -> list[Table]:
    """All of them, those without rows left out; `of` which, where there are several predictions."""
    many = one.many
    if many is None:
        return []
    found = [time_table(one, many, of), traffic_table(many), memory_table(many), scaling_table("weak", many.weak),
             scaling_table("strong", many.strong)]  # fmt: skip
    return [table for table in found if table.rows]
