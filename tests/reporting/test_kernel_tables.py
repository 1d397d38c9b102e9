"""Estimates in tables of kernels: an op's work stands once, however many kernels the op launches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooflight.errors import BadFile
from rooflight.files import load, save
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger, total
from rooflight.profiles import read
from rooflight.reporting.sections.kernel_groups import By, groups
from rooflight.reporting.sections.kernel_tables import kernel_table, log_data
from rooflight.reporting.table import Table
from tests.fixtures.paths import DATA

LAYOUT = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float const*)"
GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1"
MM_FLOPS = 2 * 64**3
MM_BYTES = 3 * 64 * 64 * 4
WAYS: tuple[By, ...] = ("kernel", "launch", "range")
FOLDERS = ("profiled", "cpu_traces", "rank_traces", "timeline", "vgg_logs")
TRACES = sorted(path for folder in FOLDERS for path in (DATA / folder).glob("*.json.gz"))


def imported(folder: Path, *ops: list[tuple[str, float]]) -> Ledger:
    """A trace of products of 64 x 64 matrices on an H200, each with kernels of a name and microseconds."""
    events: list[dict[str, Any]] = []
    for number, kernels in enumerate(ops):
        where = {"ph": "X", "pid": 1, "tid": 1, "ts": 1000 * number}
        shapes = {"Input type": ["float", "float"], "Input Dims": [[64, 64], [64, 64]], "External id": number}
        events.append({**where, "cat": "cpu_op", "name": "aten::mm", "dur": 900, "args": shapes})
        for place, (name, time_us) in enumerate(kernels):
            work = {"ts": 1000 * number + 100 * place, "dur": time_us, "name": name}
            events.append({**where, **work, "cat": "kernel", "args": {"External id": number, "device": 0}})
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0}
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [device]}))
    return read(path)


def cells(table: Table, raw: str) -> list[Any]:
    (place,) = (place for place, column in enumerate(table.columns) if column.raw == raw)
    return [row[place] for row in table.rows]


def test_an_op_counts_once_on_the_kernel_that_computes(tmp_path: Path) -> None:
    ledger = imported(tmp_path, [(LAYOUT, 30.0), (GEMM, 20.0), (LAYOUT, 5.0)])
    table = kernel_table(ledger)
    assert cells(table, "estimated_flops") == [None, MM_FLOPS, MM_FLOPS]  # the copies, the product, the total
    assert cells(table, "estimated_bytes") == [None, MM_BYTES, MM_BYTES]
    assert cells(table, "estimated_flops_per_s") == [None, pytest.approx(MM_FLOPS / 20e-6), None]
    assert cells(kernel_table(ledger, "launch"), "estimated_flops") == [None, MM_FLOPS, None, MM_FLOPS]
    assert cells(kernel_table(ledger, "range"), "estimated_flops") == [MM_FLOPS, MM_FLOPS]
    assert [row["estimated_flops"] for row in log_data(ledger)["kernels"]] == [None, MM_FLOPS, None]
    save(ledger, tmp_path / "saved.json")
    assert kernel_table(load(tmp_path / "saved.json")).rows == table.rows


def test_a_split_that_no_name_tells_is_unknown(tmp_path: Path) -> None:
    ledger = imported(tmp_path, [("first_half", 30.0), ("second_half", 20.0)], [("alone", 10.0)])
    assert cells(kernel_table(ledger), "estimated_flops") == [None, None, MM_FLOPS, 2 * MM_FLOPS]
    both = imported(tmp_path, [(GEMM, 30.0), (GEMM, 20.0)])
    assert cells(kernel_table(both), "estimated_flops") == [MM_FLOPS, MM_FLOPS]
    assert cells(kernel_table(both, "launch"), "estimated_flops") == [None, None, MM_FLOPS]


def test_no_speed_is_beyond_the_device(tmp_path: Path) -> None:
    """In 1 ns the product would run at 524 TFLOP/s, and the tensor cores of an H200 reach 494.7 in TF32."""
    ledger = imported(tmp_path, [(GEMM, 0.001)])
    table = kernel_table(ledger)
    assert cells(table, "estimated_flops") == [MM_FLOPS, MM_FLOPS]
    assert "estimated_flops_per_s" not in {column.raw for column in table.columns}  # for it says nothing


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_of_every_trace_the_total_is_that_of_its_ops(path: Path) -> None:
    try:
        ledger = read(path)
    except BadFile as no_trace:
        pytest.fail(str(no_trace))
    whole = total(ledger.ops)
    peak = max(figure.value for figure in find("h200").tensor_flops_per_s.values())
    for by in WAYS:
        rows = [group for group in groups(ledger, by) if group.estimate is not None]
        shown = [group.estimate.work_flops for group in rows if group.estimate is not None]
        assert sum(shown) <= whole.work_flops
        table = kernel_table(ledger, by)
        if ledger.ops:
            assert cells(table, "estimated_flops")[-1] == whole.work_flops
            assert cells(table, "estimated_bytes")[-1] == whole.bytes
            speeds = cells(table, "estimated_flops_per_s")
            assert all(speed is None or speed <= peak for speed in speeds)
    if ledger.ops:
        told = [row["estimated_flops"] for row in log_data(ledger)["kernels"]]
        assert sum(flops for flops in told if flops is not None) <= whole.work_flops


def test_the_step_of_a_trace_is_no_larger_than_the_model(tmp_path: Path) -> None:
    """ResNet-50, 16 images: 2 x 4.09 GMAC forward and twice that backward are 388 GFLOP (less the images' gradient),
    and about 1% more outside of matrices; 2.04 TFLOP were told when each kernel counted its op."""
    ledger = read(DATA / "profiled" / "h200-resnet50-fp32.json.gz")
    (flops,) = cells(kernel_table(ledger), "estimated_flops")[-1:]
    assert 385e9 < flops < 395e9
