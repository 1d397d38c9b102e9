"""Cells that no machine can have, as bf16 on a V100: never worked on, said once, and left out of claims."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from rooflight.errors import BadInput
from rooflight.reporting.sections.study_claims import gap_table, telling
from rooflight.reporting.sections.study_document import study_document
from rooflight.study.api import prepare
from rooflight.study.cell import State, StudyCell, StudyRow
from rooflight.study.hypotheses import claims
from rooflight.study.launch import outline, units_of
from rooflight.study.plan import plan_of
from rooflight.study.work import run_side
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import ROOT


def test_a_precision_that_the_device_lacks() -> None:
    assert StudyCell(model="m", dtype="bf16", on="v100-sxm2-16").impossible.startswith("no bf16 on NVIDIA")
    assert StudyCell(model="m", autocast="bf16", on="k80").impossible
    for on in ("h200", "here", "cpu", None):
        assert not StudyCell(model="m", dtype="bf16", on=on).impossible
    assert not StudyCell(model="m", dtype="fp16", on="v100-sxm2-16").impossible


def test_a_device_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    """The file of a GPU without bf16 becomes that of one with it, under the same name."""
    file, cell = tmp_path / "card.toml", StudyCell(model="m", dtype="bf16", on=str(tmp_path / "card.toml"))
    for name, impossible in (("k80", True), ("h200", False)):
        file.write_text(
            (ROOT / "src/rooflight/hardware/specs" / f"{name}.toml")
            .read_text()
            .replace(f'name = "{name}"', 'name = "card"')
        )
        os.utime(file, ns=(0, len(name)))  # two writes may fall into one tick of the file system's clock
        assert bool(cell.impossible) == impossible


def test_it_is_left_out_and_said_once(tmp_path: Path) -> None:
    axes = {"batch": [1, 8], "dtype": ["fp32", "bf16"], "on": ["v100-sxm2-16", "h200"], "measure": True}
    with prepare("mnist-cnn", tmp_path / "s", axes) as store:
        of_v100 = {cell.id for cell in store.cells if cell.impossible}
        assert len(of_v100) == 2
        assert not of_v100 & {cell.id for cell in store.waiting()}  # what is waiting is what Slurm is given
        units = units_of(store, store.cells, ("estimated", "predicted", "measured"))
        assert not of_v100 & {cell.id for unit in units for cell in unit.cells}
        assert "2 of them impossible, and left out: no bf16 on NVIDIA Tesla V100 SXM2 16 GB" in outline(store)
        run_side(store, store.cells[:1], "estimated")
        rows = store.rows
    assert {row.cell.id for row in rows if row.state == "impossible"} == of_v100
    document = study_document(rows, store.plan)
    said = [line for line in note_texts(document.notes) if "impossible" in line]
    assert said == ["impossible: no bf16 on NVIDIA Tesla V100 SXM2 16 GB (2 cells are left out, of claims too)"]


def test_a_claim_is_not_about_it(tmp_path: Path) -> None:
    """Held by the cells that can be; the others are no missing value."""
    axes = {"batch": 1, "dtype": ["fp32", "bf16"], "on": ["v100-sxm2-16", "h200"]}
    with prepare("mnist-cnn", tmp_path / "s", axes) as store:
        for side in ("estimated", "predicted"):
            for cell in store.cells:
                if not cell.impossible:
                    run_side(store, [cell], side)
        (judged,) = claims(["time.predicted > 1 us"], store.rows)
    assert judged.verdict == "held" and len(judged.points) == 3 and judged.missing == ()


def test_a_study_of_nothing_else_is_a_slip() -> None:
    with pytest.raises(BadInput, match="no bf16 on NVIDIA"):
        plan_of({"grid": {"model": "mnist-cnn", "dtype": "bf16", "on": "v100-sxm2-16"}}, "the study")


def test_what_is_left_out_of_a_claim_is_said() -> None:
    def row(dtype: Literal["fp32", "bf16"], on: str, time_s: float | None) -> StudyRow:
        values: dict[str, int | float] = {} if time_s is None else {"time.predicted": time_s}
        state: State = "impossible" if time_s is None else "done"
        return StudyRow(cell=StudyCell(model="m", dtype=dtype, on=on), state=state, values=values)

    rows = [row("fp32", "v100-sxm2-16", 3e-3), row("bf16", "v100-sxm2-16", None),
            row("fp32", "h200", 2e-3), row("bf16", "h200", 1e-3)]  # fmt: skip
    pairs, fastest, none = claims(
        [
            "time(dtype=bf16) < time(dtype=fp32)",
            "min(time over dtype) < 4 ms",
            "time(dtype=bf16, on=v100-sxm2-16) < 1 s",
        ],
        rows,
    )
    assert (pairs.verdict, len(pairs.points), len(pairs.left_out), pairs.missing) == ("held", 1, 1, ())
    # A fold is over the cells that can be.
    assert (fastest.verdict, len(fastest.points)) == ("held", 2)
    assert [gap.cell for gap in fastest.left_out] == [rows[1].cell.id]
    assert {point.telling.left for point in fastest.points} == {3e-3, 1e-3}
    assert none.verdict == "not measured"
    assert none.reason == "impossible at every place: no bf16 on NVIDIA Tesla V100 SXM2 16 GB"
    assert telling(none)[0].full == none.reason
    said = [str(line[3]) for line in gap_table([pairs, none]).rows]
    assert said == ["no bf16 on NVIDIA Tesla V100 SXM2 16 GB (left out)", none.reason]
