"""Products in precisions that have no micro-benchmarks: never called calibrated, at the peak of their own unit."""

from __future__ import annotations

from itertools import permutations

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rooflight import predict
from rooflight.errors import BadInput
from rooflight.hardware.calibration import Calibration, shipped
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find, known
from rooflight.ops.matmul import product_task
from rooflight.prediction.tiers import predictor

SIDE = 4096
PEAK_S = 2 * SIDE**3 / 1979e12
"""Of a product of that side on the H200, in fp8 or int8: 69.4 us."""


class Fp8(nn.Module):
    """A linear layer as torchao writes it: scales in fp32, the result in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(SIDE, SIDE, dtype=torch.float8_e4m3fn))
        self.scale = nn.Buffer(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch._scaled_mm(x, self.weight.t(), self.scale, self.scale, out_dtype=torch.bfloat16)


class Int8(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(SIDE, SIDE, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return torch._int_mm(x, self.weight.t())


def int8_calibration(origin: Calibration) -> Calibration:
    """The H200's points of bf16 products under the name of int8."""
    points = [points for points in origin.points if (points.family, points.precision) == ("gemm", "bf16")]
    timed = tuple(msgspec.structs.replace(some, precision="int8") for some in points)
    return msgspec.structs.replace(origin, points=(*origin.points, *timed))


@pytest.mark.parametrize("layer", [Fp8, Int8])
def test_a_product_without_points_is_a_guess_at_the_peak_of_its_unit(layer: type[nn.Module]) -> None:
    model = layer()
    x = torch.empty(SIDE, SIDE, dtype=next(model.buffers()).dtype)
    found = predict(model, x, on="h200", advice=False)
    (row,) = found
    assert row.tier == "guessed" and row.inside == 0
    assert "guessed-times" in {note.code for note in found.notes}
    # The H200 keeps up 79% of the bf16 peak in its own points; 3.0 ms at the rate of the CUDA cores.
    assert PEAK_S < row.gpu_time_s < 1.5 * PEAK_S
    # 0.6 of a standard deviation: 90% lie within a factor of exp(1.645 * 0.6) = 2.7, but not below the peak.
    assert row.gpu_time_interval_s.low >= PEAK_S * (1 - 1e-9)
    assert 2.6 < row.gpu_time_interval_s.high / row.gpu_time_s < 3.5


def test_points_of_the_precision_make_it_calibrated() -> None:
    origin = shipped("h200")
    assert origin is not None
    x = torch.empty(SIDE, SIDE, dtype=torch.int8)
    (row,) = predict(Int8(), x, on="h200", calibration=int8_calibration(origin), advice=False)
    assert row.tier == "calibrated" and row.inside == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("tier", [None, "spec"])
def test_a_device_without_the_unit_refuses_in_one_line(tier: str | None) -> None:
    x = torch.empty(SIDE, SIDE, dtype=torch.float8_e4m3fn)
    with pytest.raises(BadInput, match=r"^NVIDIA A100 .* has no fp8: it has .*int8") as refused:
        predict(Fp8(), x, on="a100", tier=tier, advice=False)
    assert refused.value.code == "unknown-peak" and "\n" not in str(refused.value)


WIDTHS = (("fp64",), ("fp32",), ("tf32",), ("bf16", "fp16"), ("fp8", "int8"))


def narrower(device: Device) -> list[tuple[str, str]]:
    """Pairs of precisions: the second is narrower and has the higher peak."""
    rank = {precision: place for place, names in enumerate(WIDTHS) for precision in names}
    peaks = {name: peak.value for name in rank if (peak := device.peak(name)) is not None}
    return [(a, b) for a, b in permutations(peaks, 2) if rank[b] > rank[a] and peaks[b] > peaks[a]]


@pytest.mark.parametrize("name", [device.name for device in known() if device.is_cuda])
def test_no_product_is_slower_in_a_narrower_precision_of_a_higher_peak(name: str) -> None:
    """Sides are multiples of 16, which kernels of 8 bits need. 5%: on the P100 only fp32 is corrected by its own times."""
    device = find(name)
    sides = 16 * np.exp2(np.random.default_rng(7).uniform(6, 10.5, (60, 3))).astype(int)
    times = {
        precision: predictor(device).task_times([product_task(precision, *map(int, row), b=1) for row in sides])
        for pair in narrower(device)
        for precision in pair
    }
    for wide, narrow in narrower(device):
        assert np.all(times[narrow].cold_s <= 1.05 * times[wide].cold_s), (wide, narrow)
        assert np.all(times[narrow].warm_s <= 1.05 * times[wide].warm_s), (wide, narrow)
