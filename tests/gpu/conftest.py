"""These tests need a GPU whose counters may be read; elsewhere they are skipped, and say why."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _counters_can_be_read():
    import torch

    from rooflight.errors import CannotMeasure
    from rooflight.measurement.cupti.ranges import probe

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    torch.zeros(1, device="cuda")
    try:
        probe(torch.cuda.current_device(), deep=True)
    except CannotMeasure as error:
        pytest.skip(f"counters cannot be read here: {error}")
