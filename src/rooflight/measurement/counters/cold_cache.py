"""Begins every counted run with the same L2 cache: one that holds nothing of the step, and nothing yet to be written.

What ran before a range leaves lines in the cache that are written to memory while the range is open, and are counted
there: 10 to 30 MB on an H200, put there by copying values back and by CUPTI's own start.
"""

from __future__ import annotations

import torch

KERNELS = 1
"""What one call launches."""
_TIMES = 4
"""Reading as much as the cache holds would do, if it forgot the oldest first; it does so only about."""


class ColdCache:
    """Memory to read instead of the step's. `filler` is `None` where the step may need all that is left."""

    def __init__(self, device: int) -> None:
        size = _TIMES * torch.cuda.get_device_properties(device).L2_cache_size
        free, _ = torch.cuda.mem_get_info(device)
        self.filler = torch.zeros(size // 4, device=f"cuda:{device}") if free > 2 * size else None

    def __call__(self) -> None:
        if self.filler is not None:
            self.filler.sum()
