"""At 80 columns no table of any verb loses a column without a word: what is not shown is named below it."""

from __future__ import annotations

import pytest

import rooflight
from rooflight.analysis.comparison.sides import Comparison
from rooflight.hardware.devices import find, known
from rooflight.reporting.sections import device_tables
from rooflight.reporting.sections.compare_tables import compare_document
from rooflight.reporting.sections.ledger_documents import estimate_document, measure_document
from rooflight.reporting.sections.predict_document import predict_document
from rooflight.reporting.sections.verdict_tables import verdict_document
from rooflight.reporting.writers.terminal import narrowed
from tests.fixtures.narrow_tables import WIDTH, check_narrow, tables_of
from tests.fixtures.recordings import recording


def _estimates():
    ledger = rooflight.estimate("resnet18", batch=2, step="train", input_shape="3x32x32")
    for by in ("module", "type", "op"):
        yield estimate_document(ledger, by=by)


def _measured():
    for name in ("mnist-cnn-train-tf32", "gpt2-infer-bf16-compiled"):
        for by in ("module", "type", "op"):
            yield measure_document(recording(f"h200/{name}"), by=by, memory=True)
        yield verdict_document(recording(f"h200/{name}"))


def _compared():
    before, after = recording("h200/mnist-cnn-infer-fp32"), recording("h200/mnist-cnn-infer-tf32")
    for by in ("module", "op"):
        yield compare_document(Comparison(before, after), by=by)


def _predicted():
    yield predict_document(rooflight.predict("mnist-cnn", on="h200", batch=64, step="train", memory=True))
    yield predict_document(
        rooflight.predict("mnist-cnn", on="h200,a100-sxm-40", batch=[1, 64], max_batch=True), price=2
    )
    yield predict_document(
        rooflight.predict("mnist-cnn", on="h200", batch=64, step="train", gpus=2, parallel="ddp"),
        epochs=2,
        dataset_size=60_000,
    )


MAKERS = {"estimate": _estimates, "measure": _measured, "compare": _compared, "predict": _predicted}


@pytest.mark.parametrize(
    "verb", [*(verb for verb in MAKERS if verb != "predict"), pytest.param("predict", marks=pytest.mark.slow)]
)
def test_every_column_is_shown_or_named(verb):
    for document in MAKERS[verb]():
        for table in tables_of(document):
            check_narrow(table)


def test_tables_of_devices():
    check_narrow(device_tables.devices_table(known()))
    check_narrow(device_tables.device_table(find("k80"))[0])


def test_the_memory_of_ops_fits_80_columns():
    """What document 000's operator table has: growth, outputs and workspace of every aten op."""
    document = measure_document(recording("h200/mnist-cnn-train-tf32"), by="op", memory=True)
    table = next(table for table in tables_of(document) if table.title == "memory by op")
    shown = [column.name for column in narrowed(table, WIDTH).columns]
    assert shown == ["op", "calls", "growth", "allocations", "outputs", "workspace"]
