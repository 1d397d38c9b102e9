"""What holds for every product with a sparse matrix: its work goes by its nonzeros, and never by its shape."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight.errors import TraceFailed
from rooflight.ledger import Ledger, Op

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
Product = Callable[[Tensor, Tensor, Tensor], Tensor]
PRODUCTS: dict[str, Product] = {
    "sparse.mm": lambda a, b, c: torch.sparse.mm(a, b),
    "@": lambda a, b, c: a @ b,
    "mm": lambda a, b, c: torch.mm(a, b),
    "addmm": lambda a, b, c: torch.addmm(c, a, b),
}


def matrix(rows: int, columns: int, nonzeros: int, layout: str) -> Tensor:
    places = torch.tensor(random.Random(rows).sample(range(rows * columns), nonzeros))
    indices = torch.stack([places // columns, places % columns])
    made = torch.sparse_coo_tensor(indices, torch.ones(nonzeros), (rows, columns)).coalesce()
    return made if layout == "coo" else made.to_sparse_csr().clone()


def products(ledger: Ledger) -> list[Op]:
    return [op for op in ledger.ops if op.cost is None or op.cost.flops]


def work(op: Op) -> tuple[int | None, int | None, int | None]:
    assert op.cost is not None
    return op.cost.flops, op.cost.bytes_read, op.cost.bytes_written


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_sparse_product_counts_its_nonzeros(product: str, layout: str) -> None:
    chance = random.Random(f"{product} {layout}")
    rows, columns, width = (chance.randint(2, 40) for _ in range(3))
    nonzeros = chance.randint(1, rows * columns)
    left, right = matrix(rows, columns, nonzeros, layout), torch.randn(columns, width)
    added, call = torch.randn(rows, width), PRODUCTS[product]
    # Values in fp32; two indices of int64 for each, or one with the bounds of the rows. A row of `right` is read if an
    # index names it: no more rows than there are, nor than there are nonzeros.
    indices = 2 * nonzeros if layout == "coo" else nonzeros + rows + 1
    read = 4 * nonzeros + 8 * indices + 4 * min(nonzeros, columns) * width
    if product == "addmm":
        read += 4 * rows * width
    expected = 2 * nonzeros * width, read, 4 * rows * width
    for real in (False, True):
        (op,) = products(rooflight.estimate(lambda: call(left, right, added), real_data=real))
        assert work(op) == expected
    # Of a dense factor before a sparse one every row meets a nonzero in one place.
    (op,) = products(rooflight.estimate(lambda: torch.ones(3, rows) @ left))
    assert op.cost is not None
    assert op.cost.flops == 2 * nonzeros * 3


def held_bytes(ledger: Ledger) -> float:
    (found,) = (one for one in ledger.measurements if "allocated_before_bytes" in one.quantities)
    return found.quantities["allocated_before_bytes"].value


class Graph(nn.Module):
    """Two layers that pass messages along edges."""

    def __init__(self, edges: Tensor | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.register_buffer("edges", edges)

    def forward(self, x: Tensor, edges: Tensor | None = None) -> Tensor:
        held = self.edges if edges is None else edges
        assert isinstance(held, Tensor)
        return torch.sparse.mm(held, self.second(torch.relu(held @ self.first(x))))


NODES, EDGES = 30, 50
FORWARD = 2 * EDGES * 8 + 2 * EDGES * 4
LINEAR = 2 * NODES * 12 * 8 + 2 * NODES * 8 * 4


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_graph_network_is_counted_by_its_edges(layout: str) -> None:
    edges, x = matrix(NODES, NODES, EDGES, layout), torch.randn(NODES, 12)
    for ledger in (rooflight.estimate(Graph(), x, edges), rooflight.estimate(Graph(edges), x)):
        assert sum(op.cost.flops or 0 for op in products(ledger) if op.cost) == FORWARD + LINEAR
    indices = 2 * EDGES if layout == "coo" else EDGES + NODES + 1
    assert ledger.modules[0].buffer_bytes == 4 * EDGES + 8 * indices
    measured = {sparse: rooflight.measure(Graph(matrix(NODES, NODES, sparse, layout)), x) for sparse in (EDGES, 900)}
    before, more = (held_bytes(of) for of in measured.values())
    assert more - before == (900 - EDGES) * (20 if layout == "coo" else 12)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_graph_network_trains_on_its_edges_wherever_it_holds_them(layout: str) -> None:
    """The gradient of B in A @ B is that of the result times A's transpose: as many FLOPs again. Of the first linear
    layer there is only the gradient of the weight."""
    edges, x = matrix(NODES, NODES, EDGES, layout), torch.randn(NODES, 12)
    backward = LINEAR + 2 * NODES * 8 * 4
    model = Graph(edges)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    for ledger in (
        rooflight.estimate(Graph(), x, edges, step="train"),
        rooflight.estimate(model, x, step="train"),
        rooflight.estimate(step),
        rooflight.measure(step, repeat=1),
    ):
        assert sum(op.cost.flops or 0 for op in products(ledger) if op.cost) == 2 * FORWARD + LINEAR + backward
        sparse = [op for op in products(ledger) if op.name.startswith("sparse::")]
        assert [(op.phase, op.cost and op.cost.flops) for op in sparse] == [
            ("forward", 2 * EDGES * 8),
            ("forward", 2 * EDGES * 4),
            ("backward", 2 * EDGES * 4),
            ("backward", 2 * EDGES * 8),
        ]
        held = {storage.id: storage.nbytes for storage in ledger.storages}
        parts = {tensor.storage for op in sparse for tensor in op.tensors("self") or op.tensors("mat1")}
        assert sum(held[part] for part in parts) >= 4 * EDGES + 8 * EDGES


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.to_dense() @ torch.ones(30, 4),
        lambda a: torch.sparse.mm(a, a.t()),
        lambda a: (a * 2) @ torch.ones(30, 4),
    ],
)
def test_what_depends_on_the_places_of_nonzeros_is_refused_or_not_counted(call: Callable[[Tensor], Tensor]) -> None:
    sparse = matrix(20, 30, 50, "coo")
    with pytest.raises(TraceFailed, match=r"test_sparse.py:\d+: aten::\w+.* a sparse tensor.*real_data=True") as failed:
        rooflight.estimate(lambda: call(sparse))
    assert "\n" not in str(failed.value)
    ledger = rooflight.estimate(lambda: call(sparse), real_data=True)
    assert any(op.cost is None and op.name.startswith(("sparse::", "sparse_sparse::")) for op in ledger.ops)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_cast_sparse_matrix_is_refused_and_never_dense(layout: str) -> None:
    """A second try of the trace, on other tensors, must not give what the first refused."""
    with pytest.raises(TraceFailed, match=r"aten::_to_copy .* a sparse tensor"):
        rooflight.estimate(Graph(), torch.randn(NODES, 12), matrix(NODES, NODES, EDGES, layout), autocast="bf16")


def test_a_matrix_that_the_step_makes_of_its_parts_keeps_their_number() -> None:
    indices, values, right = matrix(20, 30, 50, "coo").indices(), torch.ones(50), torch.ones(30, 16)
    (op,) = products(rooflight.estimate(lambda: torch.sparse_coo_tensor(indices, values, (20, 30)) @ right))
    assert op.cost is not None
    assert op.cost.flops == 1600


def test_a_result_that_is_given_is_written_once() -> None:
    sparse, right, out = matrix(20, 30, 50, "coo"), torch.ones(30, 16), torch.empty(20, 16)
    with pytest.raises(TraceFailed, match=r"aten::mm.out .* a sparse tensor"):
        rooflight.estimate(lambda: torch.mm(sparse, right, out=out))
    (op,) = products(rooflight.estimate(lambda: torch.mm(sparse, right, out=out), real_data=True))
    (plain,) = products(rooflight.estimate(lambda: torch.mm(sparse, right), real_data=True))
    assert op.cost is not None and plain.cost is not None
    assert (op.cost.bytes_read, op.cost.bytes_written) == (plain.cost.bytes_read, plain.cost.bytes_written)


def test_the_time_of_a_sparse_product_is_a_guess() -> None:
    """Products that were not timed make a step's tier `guessed`."""
    sparse, right = matrix(20, 30, 50, "coo"), torch.ones(30, 16)
    ledger = rooflight.estimate(lambda: torch.sparse.mm(sparse, right))
    (prediction,) = rooflight.predict(ledger, on="h200").predictions
    assert prediction.tier == "guessed"
