"""What is inferred without counters: against those of recorded steps that have them, and never in their place."""

from __future__ import annotations

import importlib
import math

import pytest
from msgspec.structs import replace

from rooflight import profiles
from rooflight.analysis.inferred_counts import infer, inferred_hfu, inferred_step
from rooflight.analysis.inferred_errors import INFERRED_ERRORS
from rooflight.files import load
from rooflight.ledger import Ledger
from rooflight.metrics import COUNTED, EXECUTED_FLOPS
from rooflight.reporting.sections.inferred_text import inferred_data, inferred_line, inferred_notes
from rooflight.reporting.sections.ledger_documents import ledger_document, measure_document
from rooflight.summary.facts import useful_flops_of
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import executed, utilisation
from tests.fixtures.paths import ROOT

RESNET = "recorded:h200/resnet50-infer-bf16"


inferred_page = importlib.import_module("inferred")


@pytest.fixture(scope="module")
def counted() -> Ledger:
    return load(RESNET)


@pytest.fixture(scope="module")
def stripped(counted: Ledger) -> Ledger:
    found: Ledger = inferred_page.without_counters(counted)
    return found


def test_nothing_counted_is_left_to_infer_from(stripped: Ledger) -> None:
    measured = Measured(stripped)
    assert not COUNTED & (measured.known | measured.step.keys())
    assert all(not COUNTED & kernel.quantities.keys() for kernel in stripped.kernels)


@pytest.mark.parametrize("name", ["resnet50-infer-bf16", "gpt2-infer-fp32", "mnist-cnn-train-tf32"])
def test_inferred_flops_are_those_of_the_counters(name: str) -> None:
    found = inferred_page.judged(name, load(f"recorded:h200/{name}"))
    assert found is not None and found.flops is not None
    assert abs(found.flops) < 0.01 and found.untold == 0


def test_units_and_precisions_are_told(counted: Ledger, stripped: Ledger) -> None:
    of_counters = executed(Measured(counted))
    sums = infer(stripped)
    assert of_counters is not None and sums is not None
    assert sums.flops["tensor_flops_bf16"] == pytest.approx(of_counters.values["tensor_flops_bf16"], rel=0.001)
    assert set(sums.flops) <= set(EXECUTED_FLOPS)


def test_hfu_is_near_that_of_the_counters(counted: Ledger, stripped: Ledger) -> None:
    of_counters, sums = utilisation(Measured(counted)), infer(stripped)
    assert of_counters is not None and sums is not None
    assert inferred_hfu(Measured(stripped), sums) == pytest.approx(of_counters.hfu, rel=0.02)


def test_a_step_with_counters_has_nothing_inferred(counted: Ledger) -> None:
    measured = Measured(counted)
    assert inferred_step(measured) is None
    assert inferred_line(measured) == "" and inferred_notes(measured) == [] and inferred_data(measured) is None


def test_what_is_inferred_is_no_measured_value(stripped: Ledger) -> None:
    """It is in none of the sums that tables, totals and claims are made of."""
    measured = Measured(stripped)
    assert inferred_step(measured) is not None
    assert executed(measured) is None and measured.total.executed_flops is None and measured.total.dram_bytes is None
    used = utilisation(measured)
    assert used is not None and used.hfu is None


def test_every_value_says_that_it_is_inferred(stripped: Ledger) -> None:
    sums = infer(stripped)
    assert sums is not None
    values = [value for row in sums.rows for value in row.values().values()]
    assert values and all(value.origin.startswith("inferred: ") for value in values)
    document = measure_document(stripped)
    headings = [column.name for column in document.rows().columns]
    assert {"executed, inferred", "DRAM, inferred"} <= set(headings)
    assert not {"tensor", "CUDA core", "DRAM read", "exec/useful"} & set(headings)
    assert any(line.startswith("inferred, not counted: executed ") for line in document.lines)
    assert INFERRED_ERRORS.text in " ".join(document.notes)


def test_rows_add_up_to_the_sum(stripped: Ledger) -> None:
    sums = infer(stripped)
    assert sums is not None
    told = [row.executed for row in sums.rows if row.executed is not None]
    assert math.fsum(told) == pytest.approx(sums.executed)
    assert sums.of(range(len(stripped.ops)), lambda row: row.executed) == pytest.approx(sums.executed)


def test_names_that_say_nothing_give_nothing(stripped: Ledger) -> None:
    """The op is left out, and the sum says how much of the work it does not cover."""
    whole = infer(stripped)
    first = next(kernel for kernel in stripped.kernels if "xmma" in kernel.name or "cutlass" in kernel.name)
    kernels = tuple(replace(kernel, name="secret") if kernel is first else kernel for kernel in stripped.kernels)
    sums = infer(replace(stripped, kernels=kernels))
    assert whole is not None and sums is not None
    assert stripped.ops[first.ops[0]] in sums.untold and len(sums.untold) == len(whole.untold) + 1
    assert sums.covered < whole.covered == 1 and sums.executed < whole.executed
    assert "at least " in inferred_line(Measured(replace(stripped, kernels=kernels)))


def test_bytes_of_some_ops_are_not_shown_as_those_of_the_step() -> None:
    """Most ops of a compiled step share their kernels."""
    found = inferred_page.without_counters(load("recorded:h200/resnet50-train-fp32-compiled"))
    sums = infer(found)
    assert sums is not None and sums.bytes_covered < 0.5 and sums.dram_bytes is None
    assert "DRAM" not in inferred_line(Measured(found))
    assert any(note.startswith("DRAM bytes are not inferred") for note in inferred_notes(Measured(found)))


def test_a_sum_that_leaves_ops_out_is_a_least_one() -> None:
    """Also where none of them has matrix work."""
    path = (
        ROOT
        / "benchmarks"
        / "h200"
        / "results"
        / "steps"
        / "first"
        / "torchvision-mobilenet_v3_large-train-bf16.json.gz"
    )
    found = inferred_page.without_counters(load(path))
    sums = infer(found)
    assert sums is not None and sums.covered == 1 and sums.untold
    assert "executed at least " in inferred_line(Measured(found))


def test_without_kernels_nothing_is_inferred(stripped: Ledger) -> None:
    assert infer(replace(stripped, kernels=())) is None


def test_on_another_gpu_the_notes_say_where_arithmetic_was_counted(stripped: Ledger) -> None:
    sums = infer(replace(stripped, header=replace(stripped.header, device="NVIDIA A100-SXM4-80GB")))
    assert sums is not None and sums.like == "h200"


@pytest.mark.slow
def test_the_page_and_the_package_say_what_the_script_finds() -> None:
    """`python benchmarks/inferred.py --write` puts it there."""
    (built_in, others), of_singles = inferred_page.steps([]), inferred_page.singles()
    assert inferred_page.text(built_in, others, of_singles) in inferred_page.PAGE.read_text("utf-8")
    assert inferred_page.figures(others) == INFERRED_ERRORS


def test_an_imported_trace_with_shapes_tells_what_its_kernels_executed() -> None:
    """Two linear layers, a convolution and others, trained on an H200 in fp32."""
    ledger = profiles.read(ROOT / "tests" / "data" / "profiled" / "h200-small-fp32.json.gz")
    sums = infer(ledger)
    assert sums is not None and ledger.header.traced_on == "import"
    useful = sum(useful_flops_of(op) for op in ledger.ops)
    assert sums.executed > useful * sums.covered > 0
    assert sums.dram_bytes is None  # which op reads what another wrote is not told
    assert any(line.startswith("inferred, not counted") for line in ledger_document(ledger).lines)


@pytest.mark.parametrize("device", ["AMD Instinct MI300X", "AMD Instinct MI999"])
def test_of_other_makers_gpus_nothing_is_inferred(stripped: Ledger, device: str) -> None:
    assert infer(replace(stripped, header=replace(stripped.header, device=device))) is None
