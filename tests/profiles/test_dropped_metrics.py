"""What stands in a log and not in its ledger is named, with the reason: nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.errors import BadFile
from rooflight.profiles import read
from rooflight.profiles.metrics import not_of_a_launch
from tests.fixtures.import_logs import console, printed, real, table
from tests.fixtures.notes import note_texts
from tests.profiles.test_nvprof import TEXT as NVPROF

FMUL = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
WRONG = FMUL.replace("fmul", "fmuls")
LOG = "mnist_conv2_64_fp32"


def log(*, metric: str, values: dict[int, str], name: str | None = None) -> str:
    """A real raw page in which a metric has other values in some of its rows, and perhaps another name."""
    header, units, *rows = table(real(LOG))
    place = header.index(metric)
    for number, text in values.items():
        rows[number][place] = text
    header[place] = name or metric
    return printed([header, units, *rows])


def notes(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "log.csv").write_text(text)
    return note_texts(read(folder / "log.csv").header.notes)


@pytest.mark.parametrize("page", ["raw", "console"])
def test_a_misspelt_metric_has_its_right_name(page: str, tmp_path: Path) -> None:
    """Mistake 19 of the founding documents: `fmuls`, which ncu answers with n/a in every kernel."""
    kernels = len(table(real(LOG))) - 2
    text = log(metric=FMUL, values=dict.fromkeys(range(kernels), "n/a"), name=WRONG)
    said = notes(tmp_path, text if page == "raw" else console(text))
    where = f"all {kernels:,} kernels" if kernels > 1 else "1 kernel"
    assert (
        f"dropped: {WRONG} is n/a in {where}, because there is no counter of that name: it is {FMUL}; "
        "profile again with it" in said
    )


def test_what_a_chip_does_not_count(tmp_path: Path) -> None:
    kernels = range(len(table(real(LOG))) - 2)
    known = notes(tmp_path, log(metric=FMUL, values=dict.fromkeys(kernels, "n/a")))
    assert any(
        note.startswith(f"dropped: {FMUL} is n/a in ") and "this chip has no such counter" in note for note in known
    )
    unknown = notes(tmp_path, log(metric=FMUL, values=dict.fromkeys(kernels, "n/a"), name="mine__of_another_kind.sum"))
    assert any(
        note.startswith("dropped: mine__of_another_kind.sum is n/a") and "--query-metrics" in note for note in unknown
    )


def test_some_kernels_without_a_value(tmp_path: Path) -> None:
    count = len(table(real("mnist_conv2_64_tf32"))) - 2
    header, units, *rows = table(real("mnist_conv2_64_tf32"))
    rows[0][header.index(FMUL)] = "n/a"
    said = notes(tmp_path, printed([header, units, *rows]))
    assert f"dropped: {FMUL} has no value (n/a) in 1 of {count} kernels, which are without it" in said


def test_words_are_named(tmp_path: Path) -> None:
    said = notes(tmp_path, NVPROF)
    assert "dropped: dram_utilization (Low (1)): not numeric" in said


def test_columns_that_are_not_about_a_launch(tmp_path: Path) -> None:
    (said,) = not_of_a_launch(["device__attribute_a", "launch__x", "dram__bytes_read.avg"])
    assert said.text.startswith("left out: 2 columns about device, launch and profiler, and 1 .avg, .min and .max")
    assert any("columns about device" in note for note in notes(tmp_path, real(LOG)))


def test_ncu_itself_does_not_know_the_name(tmp_path: Path) -> None:
    error = f"==ERROR== Failed to find metric {WRONG}\n"
    assert f"there is no counter {WRONG}: it is {FMUL}" in notes(tmp_path, error + real(LOG))
    (tmp_path / "empty.csv").write_text(f"==PROF== Connected to process 7\n{error}")
    with pytest.raises(BadFile, match=f"it is {FMUL}"):
        read(tmp_path / "empty.csv")
