"""Causes are told only as far as the measurement does not refute them: they never take what nothing executed."""

from __future__ import annotations

import math
import random

import pytest

from rooflight.analysis.cause import Cause, Explained
from rooflight.ledger import Op
from rooflight.metrics import Number
from tests.fixtures.explained_ledgers import CELLS, OTHER_MODELS, RECORDINGS, flops, time, traffic

OP = Op(index=0, phase="forward", module="", call=0, name="aten::mm", ordinal=0)
EXPLAIN = {"FLOPs": flops, "DRAM bytes": traffic, "time": time}


def explained(asked: Number, measured: Number, *amounts: float, most_over: float = math.inf) -> Explained:
    causes = tuple(Cause(f"cause {place}", amount, "a kernel's name") for place, amount in enumerate(amounts))
    return Explained(OP, asked, measured, causes, most_over)


@pytest.mark.parametrize(("row", "unexplained"), [
    (explained(100, 150, 30, 15), 5),
    (explained(100, 150, 95), -45),  # less is open than without the cause
    (explained(100, 150, 101), 50),
    (explained(100, 150, 95, most_over=0.02), 50),
    (explained(100, 150, 53, most_over=0.02), -3),  # 2% of 150
    (explained(100, 40, -50), -10),
    (explained(100, 40, -130), -60),
    (explained(100, 100, 1), 0),
    (explained(100, 90, 5), -10),
    (explained(100, 90, 80, -85), -5),
])  # fmt: skip
def test_by_hand(row: Explained, unexplained: float) -> None:
    assert row.unexplained == unexplained
    assert row.causes == (() if row.is_refuted else row.computed)
    assert row.asked + sum(cause.amount for cause in row.causes) + row.unexplained == row.measured


def rows_of(place: str, quantity: str) -> list[Explained]:
    return [row for row in EXPLAIN[quantity](place) if row.asked]


MEASURED = [
    (place, quantity) for place in RECORDINGS for quantity in EXPLAIN
    if quantity == "time" or not place.endswith(("-compiled", "-graph"))
]  # fmt: skip


@pytest.mark.parametrize(("place", "quantity"), MEASURED)
def test_noise_is_unexplained(place: str, quantity: str) -> None:
    """As if every op did what the mathematics asks for, but for 10% of noise: the kernels' names and grids suggest
    causes as before, and the measurement refutes them."""
    draw = random.Random(7)
    rows = [
        Explained(row.op, row.asked, row.asked * (1 + draw.gauss(0, 0.1)), row.computed, row.most_over)
        for row in rows_of(place, quantity)
    ]
    measured = math.fsum(row.measured for row in rows)
    assert all(abs(row.unexplained) <= abs(row.gap) for row in rows)
    claimed = math.fsum(abs(row.gap - row.unexplained) for row in rows)
    assert claimed <= 0.03 * measured
    assert math.fsum(row.unexplained for row in rows) == pytest.approx(
        math.fsum(row.gap for row in rows), abs=0.03 * measured
    )


MOST_OVER = 0.03
"""Of what was measured: causes of a step may exceed its gap by this part."""
MORE_OVER = {
    # Three weights of 38 MB are copied into another order. The product reads about 10 MB of each copy from the L2; the
    # cache model, which gives up what is oldest, has nothing left of its beginning.
    ("DRAM bytes", "paleo-k80/wide-resnet50-2-b1-infer-fp32-h200-8c922fff"): 0.105,
    # Chains of results of 25 MB, half of the L2: the model writes half of each back while the next op runs, the device
    # less.
    ("DRAM bytes", "transformers/gpt2-b4-s1024-infer-bf16-h200-a8898a6b"): 0.064,
    ("DRAM bytes", "recorded:h200/gpt2-infer-bf16"): 0.061,
    ("DRAM bytes", "recorded:h200/distilbert-infer-fp32"): 0.035,
    ("DRAM bytes", "transformers/distilbert-b16-s128-infer-fp32-h200-aece2b5c"): 0.035,
    # Products read 77 MB of rows for each of three columns of tiles: 26 MB less than three times as much reach the
    # DRAM, as the end of one column is in the L2 for the next, or what waits there is written back after the product.
    ("DRAM bytes", "steps/first/torchvision-convnext_tiny-infer-fp32"): 0.044,
    # Of 109 MB 30 reach the DRAM, most of them weights; the model writes back some 0.1 MB while small convolutions run.
    ("DRAM bytes", "paleo-k80/googlenet-b1-infer-fp32-h200-968ac5d8"): 0.032,
    # A few dozen kernels of some µs for one sample, or four. The largest, conv2, takes 10 µs and 12.4 µs by its rate, and
    # the optimizer 25 µs, and 30 µs where its weights are not in the L2.
    ("time", "mnist-conv2/mnist-cnn-b1-infer-fp32-h200-0acaca04"): 0.123,
    ("time", "mnist-conv2/mnist-cnn-b1-train-fp32-h200-5fca2ce6"): 0.062,
    ("time", "mnist-conv2/mnist-cnn-b4-infer-fp32-h200-7ac9c635"): 0.036,
    # Rates are 13% off in the mean, and sixteen convolutions have seven shapes: their errors do not cancel.
    ("time", "vgg-roofline/vgg19-b16-infer-fp32-h200-7e89f8e8"): 0.054,
    ("time", "recorded:h200/vgg19-train-bf16"): 0.037,
}
"""Steps that break the law, with what they break it by, rounded up."""


@pytest.mark.parametrize(("place", "quantity"), [
    *MEASURED,
    *(pytest.param(place, name, marks=pytest.mark.slow) for place in (*CELLS, *OTHER_MODELS) for name in EXPLAIN),
])  # fmt: skip
def test_causes_never_exceed_a_step(place: str, quantity: str) -> None:
    rows = rows_of(place, quantity)
    over = -math.fsum(row.unexplained for row in rows) / math.fsum(row.measured for row in rows)
    exception = MORE_OVER.get((quantity, place))
    assert over <= (exception or MOST_OVER)
    assert exception is None or over > MOST_OVER, "this step is no exception any more"


def test_tiles_that_are_not_those_of_the_kernel() -> None:
    """A fault in reading names, four times as many FLOPs as were counted in every product: nothing of it is told."""
    rows = [row for row in rows_of("recorded:h200/vit-b-16-train-bf16", "FLOPs") if row.computed and row.gap > 0]
    wrong = [
        Explained(row.op, row.asked, row.measured, (Cause("tile padding", 3 * row.measured, "misread"),), row.most_over)
        for row in rows
    ]
    assert len(wrong) > 100 and not any(row.causes for row in wrong)
