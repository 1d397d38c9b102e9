"""Every number of kind `estimate` that the founding documents state or need, reproduced through the public API.

tests/data/documents.json holds what was stated and what is right. Each row is answered by the first rule whose pattern
fits its subject and quantity; a row without a rule, or a rule that answers no row, fails.
"""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

import rooflight
from rooflight import summary
from rooflight.ledger import Ledger, Module, total
from tests.fixtures.paths import DATA

ROWS = [
    row
    for row in json.loads((DATA / "documents.json").read_text())
    if row["kind"] == "estimate" and row["correct"] is not None
]
NAMES = {"mnist32-64": "mnist-cnn", "mnist10-20": "mnist-cnn-5x5", "wide_resnet50_2": "wide-resnet50-2"}


@cache
def ledger(name: str, batch: int = 1, channels: str = "") -> Ledger:
    overrides = {"channels": channels} if channels else {}
    return rooflight.estimate(NAMES.get(name, name), batch=batch, overrides=overrides)


def module(book: Ledger, path: str) -> Module:
    return next(m for m in book.modules if m.path == path)


def inside(book: Ledger, path: str):
    return total(op for op in book.ops if op.module == path)


def elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def layer(book: Ledger, label: str) -> Module:
    """`Conv2d-4`: the fourth leaf module, counted as summary tools do."""
    kind, _, number = label.partition("-")
    parents = {m.path.rpartition(".")[0] for m in book.modules if m.path}
    found = [m for m in book.modules if m.path and m.path not in parents][int(number) - 1]
    assert found.type == kind
    return found


def share_of_convolutions(book: Ledger) -> float:
    convolutions = next(row for row in summary.rows(book, "type") if row.name == "Conv2d")
    return 100 * convolutions.totals.macs / total(book.ops).macs


def convolution_output(book: Ledger, path: str) -> tuple[int, ...]:
    return module(book, path).outputs[0]


def summary_total(book: Ledger, outputs: int) -> int:
    sizes = summary.sizes(book)
    return sizes.input_bytes + sizes.param_bytes + 2 * outputs


def pool_output(book: Ledger) -> tuple[int, ...]:
    return next(op.outputs[0].shape for op in book.ops if op.packet == "aten::max_pool2d_with_indices")


MNIST = "mnist-cnn"
RULES = [
    # (subject, quantity, answer from the match)
    (r"mnist32-64 conv2 b(\d+)", "conv2 FLOP.*", lambda m: inside(ledger(MNIST, int(m[1])), "conv2").flops),
    (r"mnist32-64 conv2 b(\d+)", "conv2 MAC", lambda m: inside(ledger(MNIST, int(m[1])), "conv2").macs),
    (r"mnist32-64 conv2 b(\d+)", "conv2 bias adds", lambda m: elements(convolution_output(ledger(MNIST, int(m[1])), "conv2"))),
    (
        r"mnist32-64 conv2 b(\d+)", "conv2 output . parameter bytes",
        lambda m: 4 * elements(convolution_output(ledger(MNIST, int(m[1])), "conv2")) + module(ledger(MNIST), "conv2").param_bytes,
    ),
    (r"mnist32-64 conv2 b(\d+)", "conv2 input bytes", lambda m: 4 * elements(module(ledger(MNIST, int(m[1])), "conv2").inputs[0])),
    (r"(mnist32-64|mnist10-20) total", "parameters", lambda m: summary.params(ledger(m[1]))),
    (r"(mnist32-64|mnist10-20) (\w+)", "parameters", lambda m: module(ledger(m[1]), m[2]).params),
    (r"mnist32-64", "total mult-adds", lambda m: total(ledger(MNIST).ops).macs),
    (r"mnist10-20", "MAC per image", lambda m: total(ledger("mnist-cnn-5x5").ops).macs),
    (r"mnist32-64", "forward/backward size, Fig 4", lambda m: 2 * summary.sizes(ledger(MNIST)).parameterised_output_bytes),
    (r"mnist32-64", "forward/backward size, step 1", lambda m: summary.sizes(ledger(MNIST)).forward_backward_bytes),
    (r"mnist10-20", "forward/backward size", lambda m: summary.sizes(ledger("mnist-cnn-5x5")).forward_backward_bytes),
    (r"(mnist32-64|mnist10-20)", "params size", lambda m: summary.sizes(ledger(m[1])).param_bytes),
    (r"(mnist32-64|mnist10-20)", "input size", lambda m: summary.sizes(ledger(m[1])).input_bytes),
    (r"mnist32-64", "estimated total size Fig 4",
     lambda m: summary_total(ledger(MNIST), summary.sizes(ledger(MNIST)).parameterised_output_bytes)),
    (r"mnist32-64", "estimated total size step 1",
     lambda m: summary_total(ledger(MNIST), summary.sizes(ledger(MNIST)).leaf_output_bytes)),
    (r"mnist10-20", "estimated total",
     lambda m: summary_total(ledger("mnist-cnn-5x5"), summary.sizes(ledger("mnist-cnn-5x5")).leaf_output_bytes)),
    (r"mnist shapes", r"(conv\d) output", lambda m: convolution_output(ledger(MNIST), m[1])[-1]),
    (r"mnist shapes", "pool output", lambda m: pool_output(ledger(MNIST))[-1]),
    (r"mnist shapes", "flattened features", lambda m: module(ledger(MNIST), "fc1").inputs[0][-1]),
    (r"mnist shapes", "modified conv1 output channels x26x26",
     lambda m: elements(convolution_output(ledger(MNIST, 1, "20,40"), "conv1"))),
    (r"mnist shapes", "modified conv2 output elements",
     lambda m: elements(convolution_output(ledger(MNIST, 1, "20,40"), "conv2"))),
    (r"mnist shapes", "modified fc1 in_features", lambda m: module(ledger(MNIST, 1, "20,40"), "fc1").inputs[0][-1]),
    (r"mnist20-40", "modified net parameters", lambda m: summary.params(ledger(MNIST, 1, "20,40"))),
    (r"mnist20-40 conv2 b1", "modified conv2 FLOP", lambda m: inside(ledger(MNIST, 1, "20,40"), "conv2").flops),
    (r"mnist10-20", r"(conv\d) out", lambda m: convolution_output(ledger("mnist-cnn-5x5"), m[1])[-1]),
    (r"mnist10-20", "fc1 in", lambda m: module(ledger("mnist-cnn-5x5"), "fc1").inputs[0][-1]),
    (r"wide_resnet50_2", "model bytes",
     lambda m: summary.param_bytes(ledger("wide_resnet50_2")) + summary.buffer_bytes(ledger("wide_resnet50_2"))),
    # Two GPUs hold two copies of one set of parameters.
    (r"(resnet\d+) \d GPU", "parameters", lambda m: summary.params(ledger(m[1]))),
    (r"(resnet\d+)(?: (\d) GPU)?", "parameter bytes", lambda m: int(m[2] or 1) * summary.param_bytes(ledger(m[1]))),
    (r"(resnet\d+)", "theoretical FLOP", lambda m: total(ledger(m[1]).ops).flops),
    (r"(vgg\d+) (\w+-\d+)", "FLOP per image", lambda m: inside(ledger(m[1]), layer(ledger(m[1]), m[2]).path).flops),
    (r"(vgg\d+) (\w+-\d+)", r"parameters \(Fig 2\)", lambda m: layer(ledger(m[1]), m[2]).params),
    (r"(vgg\d+) (\w+-\d+)", "output image size", lambda m: layer(ledger(m[1]), m[2]).outputs[0][-1]),
    (r"(vgg\d+)", "total parameters", lambda m: summary.params(ledger(m[1]))),
    (r"(vgg\d+)", r"total FLOP batch (16)", lambda m: total(ledger(m[1], 16).ops).flops),
    # The document's own total counts a multiply-add once.
    (r"(vgg11)", "rounded total", lambda m: total(ledger(m[1], 16).ops).macs),
    (r"(vgg\d+)", "conv layers", lambda m: sum(row.type == "Conv2d" for row in ledger(m[1]).modules)),
    (r"vgg16 (features|classifier)_(\d+)", "ops",
     lambda m: (lambda sums: sums.flops or sums.other_flops)(inside(ledger("vgg16"), f"{m[1]}.{m[2]}"))),
    (r"vgg16 avgpool", "ops", lambda m: inside(ledger("vgg16"), "avgpool").other_flops),
    (r"vgg16 \(labelled VGG19\)", "total ops", lambda m: total(ledger("vgg16").ops).flops),
    (r"vgg16 \(labelled VGG19\)", "conv ops",
     lambda m: next(row for row in summary.rows(ledger("vgg16"), "type") if row.name == "Conv2d").totals.flops),
    (r"VGG19 asked, VGG16 computed", "conv fraction %", lambda m: share_of_convolutions(ledger("vgg19"))),
    (r"VGG16", "conv share quoted from Lu et al.", lambda m: share_of_convolutions(ledger("vgg16"))),
    (r"(VGG16|GoogLeNet|ResNet50)", r'total "FLOPs" \(Lu et al\.\)', lambda m: total(ledger(m[1].lower()).ops).macs),
]  # fmt: skip


def rule_for(row):
    for subject, quantity, answer in RULES:
        if (found := re.fullmatch(subject, row["subject"])) and (named := re.fullmatch(quantity, row["quantity"])):
            return (
                subject + " / " + quantity,
                answer,
                named if "(" in quantity and named.groups() and not found.groups() else found,
            )
    return None


@pytest.mark.parametrize("row", ROWS, ids=[f"{n}-{row['subject']}-{row['quantity']}" for n, row in enumerate(ROWS)])
def test_documents_number(row):
    found = rule_for(row)
    assert found is not None, "no rule answers this row"
    _, answer, match = found
    if row["unit"] == "percent":
        assert answer(match) == pytest.approx(row["correct"], rel=1e-12)
    else:
        assert answer(match) == row["correct"]


def test_every_rule_answers_a_row_and_nothing_is_lost():
    used = {rule_for(row)[0] for row in ROWS}
    assert used == {subject + " / " + quantity for subject, quantity, _ in RULES}
    # 209 estimates, 10 of them Big-O classes and orders without a number.
    assert len(ROWS) == 199
