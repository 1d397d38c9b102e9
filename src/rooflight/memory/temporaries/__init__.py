"""What torch's CUDA kernels borrow inside an op, from its shapes: memory that is taken and given back before it ends.

Read from torch 2.11 and cuDNN 9.19 on an H200, whose every allocation inside some thousand calls the tests compare.
Convolutions are described elsewhere; matrix products borrow nothing per call. `benchmarks/h200/temporaries.py` records.
"""

from __future__ import annotations

from rooflight.memory.temporaries import (  # noqa: F401  (they register)
    attention,
    fused_layers,
    indices,
    normalisations,
    recurrent,
    reductions,
    sorting,
)
from rooflight.memory.temporaries.registry import moments, result_bytes

__all__ = ["moments", "result_bytes"]
