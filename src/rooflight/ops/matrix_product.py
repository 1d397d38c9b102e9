"""A matrix product, as the matrix kernels of an op see it: `rows x columns` results over a depth.

Rows are pixels or samples, columns are the innermost of the result in memory. Families take their ops apart into these
(`@products`), which is what tells how full the tiles of a kernel are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pass = Literal["product", "forward", "input gradient", "weight gradient"]


@dataclass(frozen=True)
class MatrixProduct:
    """`batch` times rows x columns x depth. A convolution's depth is `taps` times as many channels."""

    does: Pass
    rows: int
    columns: int
    depth: int
    batch: int = 1
    taps: int = 1
    tapped_columns: int = 1
    """Of the columns, as many belong to different taps: a weight's gradient."""
    tapped_rows: int = 1
    """The same of the rows: an input's gradient whose taps are added up afterwards."""
    loaded: int = 1
    """Values of a load of 16 bytes: CUTLASS fills the channels of a tap up to whole ones."""
    grouped: bool = False
    """Of a convolution with groups: `batch` of them, in one kernel."""
    remainders: tuple[tuple[int, int], ...] = ()
    """Of a strided convolution's input gradient: rows and taps of the product for every remainder."""

    @property
    def flops(self) -> int:
        """All positions, those between strides too."""
        return 2 * self.batch * self.rows * self.columns * self.depth * self.taps

    @property
    def useful_flops(self) -> int:
        if not self.remainders:
            return self.flops
        return 2 * self.batch * self.columns * self.depth * sum(rows * taps for rows, taps in self.remainders)
