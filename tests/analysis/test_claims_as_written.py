"""How people write tables: names with units, numbers with powers and errors, files with remarks; what is not read is
named."""

from __future__ import annotations

import pytest

import rooflight
from rooflight import summary
from rooflight.analysis.claims import CheckedTable, check, parse_claims
from rooflight.analysis.claims.quantity_names import UnknownQuantity, named
from rooflight.reporting.sections.claims_tables import claims_data, claims_document
from tests.fixtures.recordings import recording

RUN = "h200/resnet50-infer-fp32"


def judged(text: str, model: str = "") -> CheckedTable:
    ledger = rooflight.estimate(model, batch=1) if model else recording(RUN)
    return check(ledger, parse_claims(text.encode(), "t.csv"))


@pytest.mark.parametrize(
    ("text", "name", "unit", "per_sample"),
    [
        ("img/s", "throughput", "", False), ("imgs/sec", "throughput", "", False), ("GB/s", "traffic", "GB/s", False),
        ("Param #", "params", "", False), ("Params (MB)", "param_bytes", "MB", False), ("DRAM GB", "dram_bytes", "GB", False),
        ("Peak mem (MiB)", "peak_allocated_bytes", "MiB", False), ("% of total", "share", "%", False),
        ("Peak TFLOPS (fp32)", "peak", "TFLOPS", False), ("VRAM (GB)", "memory", "GB", False), ("ms/img", "time", "ms", True),
        ("GFLOPs per image", "flops", "G", True), ("step_time_ms", "time", "ms", False), ("MFU", "mfu", "", False),
    ],
)  # fmt: skip
def test_names(text: str, name: str, unit: str, per_sample: bool) -> None:
    found = named(text)
    assert (found.quantity.name, found.unit, found.per_sample) == (name, unit, per_sample)


@pytest.mark.parametrize("text", ["FLOPs per token", "idle", "vocab size", "Non-trainable params", "Top-1"])
def test_what_is_no_quantity_is_not_taken_for_another(text: str) -> None:
    with pytest.raises(UnknownQuantity) as found:
        named(text)
    assert "did you mean" not in str(found.value)


def test_a_column_that_is_not_read_is_named() -> None:
    table = judged("layer,wall time (ms),Top-1,energy (J)\ntotal,5.27,76.1,3\n")
    assert table.unread_columns == ["top-1", "energy (j)"]
    assert claims_data(table)["unread_columns"] == table.unread_columns
    assert "not read: the columns top-1, energy (j)" in claims_document(table).notes


def test_a_table_of_models_is_of_totals_and_may_leave_cells_open() -> None:
    table = judged(
        "Model,Params (M),GMACs,Latency (ms)\nresnet18,11.69,1.81,n/a\nresnet50,25.56,4.09,TBD\n", "resnet18"
    )
    assert [row.verdict for row in table.rows] == ["right"] * 4


def test_a_row_twice_counts_once() -> None:
    table = judged("layer,params\nconv1,9408\nconv1,9408\n", "resnet18")
    assert [row.verdict for row in table.rows] == ["right", "unknown"] and table.passes
    assert "row 2 of the file once more" in table.rows[1].reason


@pytest.mark.parametrize("above", ["# my table\n", "sep=,\n"])
def test_remarks_above_the_header(above: str) -> None:
    assert [row.verdict for row in judged(f"{above}layer,params\ntotal,11689512\n", "resnet18").rows] == ["right"]


def test_semicolons_are_there_because_the_comma_is_taken() -> None:
    assert [row.verdict for row in judged("layer;wall time (ms)\ntotal;5,274\n").rows] == ["right"]


def test_a_value_inside_the_spread_says_so() -> None:
    (row,) = judged("layer,quantity,value\ntotal,wall time,4.80 ms\n").rows
    assert row.verdict == "right" and row.reason.startswith("inside the spread of the measurement")


def test_a_speed_that_is_neither_work_nor_known_is_not_wrong() -> None:
    (row,) = judged("layer,TFLOPS\ntotal,24.8\n", "resnet50").rows
    assert row.verdict == "unknown"


@pytest.mark.parametrize(("model", "mebibytes"), [("resnet18", 62.79), ("resnet50", 286.56), ("vgg16", 218.78)])
def test_what_torchsummary_prints(model: str, mebibytes: float) -> None:
    """Forward/backward pass size (MB) as torchsummary 1.5 prints it."""
    hooked = summary.sizes(rooflight.estimate(model, batch=1)).hooked_output_bytes
    assert round(2 * hooked / 2**20, 2) == mebibytes
