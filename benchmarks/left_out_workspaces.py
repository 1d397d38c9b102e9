"""How well the recorded workspaces of convolutions tell one another: a fifth is left out, and told from the rest.

usage: left_out_workspaces.py     (needs no GPU; a quarter of a minute)

An error is told in the bytes of the layer's own tensors (input, output and weight together), which is what a workspace
stands beside in memory. `benchmarks/memory.py` writes the same table into docs/memory-errors.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rooflight.hardware.workspaces import FAMILIES, shipped
from rooflight.memory.cudnn_workspaces import ConvolutionWorkspaces
from rooflight.memory.cudnn_workspaces.layers import ConvolutionLayers
from rooflight.ops.kernel_task import CONVOLUTION, Task

PARTS = 5
CLOSE, NEAR = 0.02, 0.10
BYTES = {"tf32": 4, "fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class LeftOut:
    """All layers of one family and precision, each told by a table that it was not in."""

    family: str
    precision: str
    errors: np.ndarray
    grouped: np.ndarray
    """Which of them have groups."""

    def share(self, limit: float, of_grouped: bool = False) -> float:
        errors = self.errors[self.grouped] if of_grouped else self.errors
        return float((errors <= limit).mean())


def left_out(device: str = "h200") -> list[LeftOut]:
    table = shipped(device)
    assert table is not None
    return [some for precision, rows in table.by_precision().items() for some in _of(precision, np.array(rows))]


def _of(precision: str, rows: np.ndarray) -> Iterator[LeftOut]:
    numbers, recorded = rows[:, : len(CONVOLUTION)], rows[:, len(CONVOLUTION) :]
    told = np.full(recorded.shape, -1.0)
    part = np.arange(len(rows)) % PARTS
    for which in range(PARTS):
        table = ConvolutionWorkspaces({precision: rows[part != which].tolist()})
        for way, family in enumerate(FAMILIES):
            asked = np.flatnonzero((part == which) & (recorded[:, way] >= 0))
            told[asked, way] = table.bytes_of_many(Task(family, precision, tuple(numbers[at].tolist())) for at in asked)
    layers = ConvolutionLayers.of(numbers, BYTES[precision])
    for way, family in enumerate(FAMILIES):
        has = recorded[:, way] >= 0
        errors = np.abs(told[has, way] - recorded[has, way]) / layers.tensor_bytes[has]
        yield LeftOut(family, precision, errors, layers.groups[has] > 1)


def figures() -> dict[str, float]:
    """Return the share of layers with a workspace that is off by more than 2%, and by more than 10%."""
    found = {f"{some.family}_{some.precision}": some.errors for some in left_out()}
    found["all"] = np.concatenate(list(found.values()))
    limits = {"close": CLOSE, "near": NEAR}
    return {
        f"{name}_not_{word}": float((errors > limit).mean())
        for name, errors in found.items() for word, limit in limits.items()
    }  # fmt: skip


HEADS = ("convolutions", "n", f"within {CLOSE:.0%}", f"within {NEAR:.0%}", f"with groups: within {CLOSE:.0%}")


def lines(found: list[LeftOut]) -> list[list[str]]:
    every = LeftOut("all", "", np.concatenate([some.errors for some in found]),
                    np.concatenate([some.grouped for some in found]))  # fmt: skip
    return [
        [f"{some.family} {some.precision}".strip(), f"{len(some.errors):,}", f"{some.share(CLOSE):.1%}",
         f"{some.share(NEAR):.1%}", f"{some.share(CLOSE, of_grouped=True):.1%}" if some.grouped.any() else "-"]
        for some in [*found, every]
    ]  # fmt: skip


if __name__ == "__main__":
    for cells in (HEADS, *lines(left_out())):
        print(" | ".join(cells))
