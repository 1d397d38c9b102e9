"""Measurements that come with rooflight: found by name, and every one of them can be shown and compared."""

from __future__ import annotations

import msgspec
import pytest

import rooflight
from rooflight import recordings
from rooflight.analysis.comparison.sides import Comparison
from rooflight.errors import BadFile
from rooflight.reporting.sections.ledger_data import ledger_data
from rooflight.reporting.sections.ledger_documents import measure_document
from rooflight.reporting.sections.measure_tables import operator_memory_table
from rooflight.reporting.writers.terminal import narrowed
from rooflight.summary.facts import op_values
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_step import rates, self_check, time_parts, utilisation
from tests.fixtures.measured_ledgers import toy
from tests.fixtures.recordings import recording


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "h200").mkdir()
    for name in ("toy-train-b8", "toy-infer-b8"):
        rooflight.save(toy(), tmp_path / "h200" / f"{name}.json.gz")
    (tmp_path / "README.md").write_text("no recording")
    monkeypatch.setattr(recordings, "_FOLDER", tmp_path)
    return tmp_path


def test_names_are_those_of_the_files(folder):
    assert recordings.names() == ["h200/toy-infer-b8", "h200/toy-train-b8"]
    assert recordings.path("h200/toy-train-b8") == folder / "h200" / "toy-train-b8.json.gz"
    assert recordings.path("recorded:h200/toy-train-b8.json.gz") == folder / "h200" / "toy-train-b8.json.gz"


def test_a_recording_is_read_wherever_a_ledger_is(folder, run):
    found, own = rooflight.load("recorded:h200/toy-train-b8"), toy()
    assert found.header.recording == "h200/toy-train-b8"
    assert msgspec.structs.replace(found, header=msgspec.structs.replace(found.header, recording="")) == own
    _, out, _ = run("report", "recorded:h200/toy-train-b8")
    assert "host-bound" in out


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
    monkeypatch.setattr(recordings, "_FOLDER", tmp_path)
    with pytest.raises(BadFile, match="none came with this installation"):
        recordings.path("h200/anything")


SHIPPED = recordings.names()


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recording_can_be_shown(name):
    ledger = recording(name)
    assert is_measured(ledger) and ledger.header.device
    made = ledger_data(ledger)
    assert made["totals"]["measured"]["step"]["wall_time_s"]["value"] > 0
    for width in (80, 120, 160):
        page = measure_document(ledger, memory=True)
        table = narrowed(page.tables[0], width)
        texts = [[column.name for column in table.columns], *table.written()]
        widths = [max(len(row[i]) for row in texts) for i in range(len(table.columns))]
        assert sum((w if c.right else min(w, 20)) + 3 for w, c in zip(widths, table.columns, strict=True)) <= width
    assert {line.ratio for line in Comparison(ledger, ledger).totals()} <= {1.0, None}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_ops_of_every_eager_recording_sum_to_its_step(name):
    """Tensor FLOPs agree to the last digit. Bytes need not: what an op leaves in the L2 cache is written later."""
    ledger = recording(name)
    if ledger.header.execution != "eager":
        pytest.skip("a compiled or captured step has no counters for single ops")
    checks = {check.name: check for check in self_check(Measured(ledger))}
    for check in checks.values():
        if check.name.startswith("tensor_flops"):
            assert check.difference == 0, check


@pytest.mark.parametrize("name", SHIPPED)
def test_the_growth_of_every_step_is_what_is_left_of_it(name):
    """From the first op to the last; no stretch of the step grows by more than its highest point is above the lowest."""
    ledger = recording(name)
    measured = Measured(ledger)
    found = [values for values in op_values(ledger) if "allocated_bytes" in values]
    if not found:
        pytest.skip("a captured step has no ops that the allocator was asked about")
    first, last = found[0], found[-1]
    before = first["allocated_bytes"].value - first["growth_bytes"].value
    assert measured.total.get("growth_bytes") == last["allocated_bytes"].value - before
    assert measured.total.get("growth_bytes") < measured.step["peak_allocated_bytes"].value


@pytest.mark.parametrize("name", SHIPPED)
def test_hfu_of_every_recording_is_made_of_its_units(name):
    measured = Measured(recording(name))
    used = utilisation(measured)
    if used.hfu is None:
        assert measured.ledger.header.execution != "eager"
        return
    wall = measured.step["wall_time_s"].value
    by_one_roof = sum(measured.step[unit].value for unit in used.roofs) / wall
    least, most = (pick(roof.flops_per_s for roof in used.roofs.values()) for pick in (min, max))
    assert 0.999999 * by_one_roof / most <= used.hfu <= 1.000001 * by_one_roof / least
    assert used.mfu_causal is None or used.mfu_causal < used.mfu


@pytest.mark.parametrize(
    "name", [name for name in SHIPPED if "-train-" in name and not name.endswith(("-compiled", "-graph"))]
)
def test_two_ranks_of_a_recording_of_which_one_was_counted(name):
    """The step of rank 1 has no counters: rates of what was counted are those of rank 0 alone."""
    ledger = recording(name)
    stripped = tuple(
        msgspec.structs.replace(
            row, quantities={n: v for n, v in row.quantities.items() if "flops" not in n and "dram" not in n}
        )
        for row in ledger.measurements
    )
    first = msgspec.structs.replace(ledger, header=msgspec.structs.replace(ledger.header, world=2))
    second = msgspec.structs.replace(
        ledger, header=msgspec.structs.replace(ledger.header, rank=1, world=2), measurements=stripped
    )
    alone, both = Measured(ledger), Measured(rooflight.join([first, second]))
    one, two = rates(alone), rates(both)
    assert two.executed_flops_per_s == one.executed_flops_per_s and two.dram_bytes_per_s == one.dram_bytes_per_s
    assert two.useful_flops_per_s == pytest.approx(2 * one.useful_flops_per_s, rel=1e-12)
    assert utilisation(both).hfu == utilisation(alone).hfu
    assert utilisation(both).mfu == pytest.approx(utilisation(alone).mfu, rel=1e-12)
    assert both.total.executed_flops_per_s == pytest.approx(alone.total.executed_flops_per_s or 0, rel=1e-9)
    assert both.total.get("growth_bytes") == 2 * alone.total.get("growth_bytes")
    assert len(time_parts(both)) == 6


def test_the_memory_of_a_recorded_inference():
    measured = Measured(recording("h200/resnet50-infer-bf16"))
    assert measured.total.get("growth_bytes") == 97_792
    table = operator_memory_table(measured, "module")
    row = next(row for row in table.rows if row[0] == "layer1")
    assert row[3] == 0  # a container without ops of its own


def test_the_second_convolution_of_mnist_executes_what_it_must():
    """2 x 9 x 32 x 64 x 24² x 64 FLOPs on tensor cores where TF32 is on, none where it is off."""
    ledgers = [recording(name) for name in SHIPPED if "mnist" in name]
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
