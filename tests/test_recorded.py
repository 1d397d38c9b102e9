"""Measurements that come with rooflight: found by name, and every one of them can be shown and compared."""

from __future__ import annotations

import sys

import pytest
from measured_ledgers import toy

import rooflight
from rooflight import recorded
from rooflight.commands.main import main
from rooflight.comparison.sides import Comparison
from rooflight.errors import BadFile
from rooflight.measured import Measured, is_measured, op_values
from rooflight.measured_step import self_check
from rooflight.reporting.document import document
from rooflight.reporting.page import measure_page
from rooflight.reporting.table import fitting


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "h200").mkdir()
    for name in ("toy-train-b8", "toy-infer-b8"):
        rooflight.save(toy(), tmp_path / "h200" / f"{name}.json.gz")
    (tmp_path / "README.md").write_text("no recording")
    monkeypatch.setattr(recorded, "_FOLDER", tmp_path)
    return tmp_path


def test_names_are_those_of_the_files(folder):
    assert recorded.names() == ["h200/toy-infer-b8", "h200/toy-train-b8"]
    assert recorded.path("h200/toy-train-b8") == folder / "h200" / "toy-train-b8.json.gz"
    assert recorded.path("recorded:h200/toy-train-b8.json.gz") == folder / "h200" / "toy-train-b8.json.gz"


def test_a_recording_is_read_wherever_a_ledger_is(folder, monkeypatch, capfd):
    assert rooflight.load("recorded:h200/toy-train-b8") == toy()
    monkeypatch.setattr(sys, "argv", ["rooflight", "report", "recorded:h200/toy-train-b8"])
    main()
    assert "host-bound" in capfd.readouterr().out


@pytest.mark.parametrize(("name", "hint"), [
    ("h200/toy-train-b9", "did you mean recorded:h200/toy-train-b8"), ("toy-train", "recorded:h200/toy-train-b8"),
    ("toy", "recorded:h200/toy-infer-b8 or recorded:h200/toy-train-b8"), ("zzz", "rooflight list recordings"),
    ("", "rooflight list recordings"), ("../../secret", "rooflight list recordings"),
])  # fmt: skip
def test_a_wrong_name_is_answered_with_near_ones(folder, name, hint):
    with pytest.raises(BadFile, match="there is no recording") as error:
        rooflight.load(f"recorded:{name}")
    assert hint in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_no_recordings_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "_FOLDER", tmp_path)
    with pytest.raises(BadFile, match="none came with this installation"):
        recorded.path("h200/anything")


SHIPPED = recorded.names()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recording_can_be_shown(name):
    ledger = rooflight.load(f"recorded:{name}")
    assert is_measured(ledger) and ledger.header.device
    made = document(ledger)
    assert made["totals"]["measured"]["step"]["wall_time_s"]["value"] > 0
    for width in (80, 120, 160):
        page = measure_page(ledger, by="module", depth=3, folded=True, memory=True, kernels=10)
        table = fitting(page.tables[0], width)
        texts = [[column.name for column in table.columns], *table.written()]
        widths = [max(len(row[i]) for row in texts) for i in range(len(table.columns))]
        assert sum((w if c.right else min(w, 20)) + 3 for w, c in zip(widths, table.columns, strict=True)) <= width
    assert {line.ratio for line in Comparison(ledger, ledger).totals()} <= {1.0, None}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_ops_of_every_eager_recording_sum_to_its_step(name):
    """Tensor FLOPs agree to the last digit. Bytes need not: what an op leaves in the L2 cache is written later."""
    ledger = rooflight.load(f"recorded:{name}")
    if ledger.header.execution != "eager":
        pytest.skip("a compiled or captured step has no counters for single ops")
    checks = {check.name: check for check in self_check(Measured(ledger))}
    for check in checks.values():
        if check.name.startswith("tensor_flops"):
            assert check.difference == 0, check


def test_the_second_convolution_of_mnist_executes_what_it_must():
    """2 x 9 x 32 x 64 x 24² x 64 FLOPs on tensor cores where TF32 is on, none where it is off."""
    ledgers = [rooflight.load(f"recorded:{name}") for name in SHIPPED if "mnist" in name]
    found = [
        one
        for one in ledgers
        if one.header.batch == 64 and one.header.dtype == "fp32" and one.header.execution == "eager"
    ]
    if not found:
        pytest.skip("no such recording came with this installation")
    for ledger in found:
        conv = next(
            op
            for op in ledger.ops
            if op.module == "conv2" and op.phase == "forward" and op.packet == "aten::convolution"
        )
        counted = op_values(ledger)[conv.index]["tensor_flops_tf32"].value
        assert counted == (1_358_954_496 if ledger.header.math.tf32_conv else 0)
