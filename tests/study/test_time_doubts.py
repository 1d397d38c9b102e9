"""Times of a study that should not be relied on: marked in the Pareto front, with what was recorded beside them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rooflight.ledger import Note
from rooflight.reporting.sections.study_trends import front_table
from rooflight.study.cell import StudyCell, StudyRow
from rooflight.study.time_doubts import BUSY, HOST, WIDE_INTERVAL, recorded_time_s, time_doubt
from rooflight.study.trends import fronts
from rooflight.summary.reliability import UNRELIABLE


def row(
    batch: int, time: float, *, bound: str, low: float = 1.0, high: float = 1.5, side: str = "predicted", **more: Any
) -> StudyRow:
    return StudyRow(
        cell=StudyCell(model="mnist-cnn", batch=batch, on="h200", **more),
        state="done",
        values={
            f"time.{side}": time,
            f"memory.{side}": 1e6 * batch,
            "time_low.predicted": low * time,
            "time_high.predicted": high * time,
        },
        facts={f"bound.{side}": bound},
    )


def test_why_a_time_is_in_doubt() -> None:
    assert time_doubt(row(1, 1e-3, bound="compute"), "predicted") == ""
    assert time_doubt(row(1, 1e-3, bound="host"), "predicted") == HOST
    assert time_doubt(row(1, 1e-3, bound="compute", low=0.5, high=1.01), "predicted") == WIDE_INTERVAL
    assert time_doubt(row(1, 1e-3, bound="compute", low=0.5, high=1.0), "predicted") == ""
    measured = row(1, 1e-3, bound="memory", low=0.1, side="measured")
    assert time_doubt(measured, "measured") == ""  # the interval is the prediction's
    noted = StudyRow(
        cell=measured.cell, values=measured.values, notes=(Note(UNRELIABLE, "others kept the cores busy"),)
    )
    assert time_doubt(noted, "measured") == BUSY


def test_the_recording_of_the_very_step() -> None:
    """265 µs on a quiet host; other batches, devices and precisions are other steps."""
    assert recorded_time_s(StudyCell(model="mnist-cnn", batch=64, on="h200")) == pytest.approx(265e-6, rel=0.01)
    assert recorded_time_s(StudyCell(model="mnist-cnn", batch=64, on="h200", tf32=False)) == pytest.approx(
        287e-6, rel=0.01
    )
    step = StudyCell(model="mnist-cnn", batch=64, on="h200")
    for other in (
        replace(step, batch=32),
        replace(step, on="a100"),
        replace(step, dtype="bf16"),
        replace(step, on="here"),
        replace(step, settings={"channels": "16,32"}),
    ):
        assert recorded_time_s(other) is None


def test_the_pareto_front_marks_them_and_says_why() -> None:
    rows = [row(64, 580e-6, bound="host", side="measured"), row(512, 642e-6, bound="compute", side="measured")]
    (front,) = fronts(rows)
    tiny, large = front.points
    assert (tiny.doubt, large.doubt) == (HOST, "")
    assert tiny.recorded_per_sample_s == pytest.approx(265e-6 / 64, rel=0.01)
    table = front_table([front])
    column = [shown.name for shown in table.columns].index("time/sample")
    assert [written[column] for written in table.written()] == ["9.06 µs*", "1.25 µs"]
    assert "recorded" in [shown.name for shown in table.columns]
    assert table.note.startswith("* Host-bound:") and "Recorded:" in table.note
