"""A live module on the GPU goes back whole: traced without data, really run, measured, or failed in the middle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight.errors import RooflightError
from tests.trace.test_live_modules import Snapshot
from tests.trace.test_live_restored import Configured, Fault, FrozenConfig, Net, insides

pytestmark = pytest.mark.gpu


def on_gpu() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(Configured(), Configured()).cuda(), torch.randn(3, 4, device="cuda")


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("options", [{"on": "meta"}, {"on": "fake"}, {"on": "cuda"}])
def test_a_frozen_config_stays_as_it_is(step: Any, options: dict[str, Any]) -> None:
    model, x = on_gpu()
    before = Snapshot(model)
    assert rooflight.estimate(model, x, step=step, **options).ops
    before.check(model)
    assert all(dict(module.config) == {"scale": 2, "sizes": (4, 4)} for module in model)  # type: ignore[attr-defined]
    assert isinstance(model[0].config, FrozenConfig)  # type: ignore[index]


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("graphs", [False, True])
def test_it_is_measured_and_stays_as_it_is(step: Any, graphs: bool) -> None:
    model, x = on_gpu()
    before = Snapshot(model)
    assert rooflight.measure(model, x, step=step, counters="none", repeat=3, graphs=graphs).measurements
    before.check(model)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_a_failure_at_every_point_on_the_gpu(step: Any) -> None:
    x = torch.randn(3, 4, device="cuda")
    for at in range(10 if step == "train" else 9):
        fault = Fault(at, ValueError)
        net = Net(["x"], fault).cuda()
        before, nested = Snapshot(net), insides(net)
        with pytest.raises(RooflightError):
            rooflight.estimate(net, x, step=step, loss="sum" if step == "train" else None, on="cuda")
        before.check(net)
        assert (insides(net), net.held) == (nested, ["x"])


def on_its_own() -> tuple[Any, nn.Module]:
    """As trainers do: the model goes to the GPU for the step, and comes back."""
    net = nn.Linear(256, 256)

    def step() -> None:
        net.cuda()
        net(torch.ones(64, 256, device="cuda")).sum().backward()
        net.cpu()

    return step, net


def test_a_step_that_moves_its_model_to_the_gpu() -> None:
    """Two products: no gradient of the input is wanted."""
    step, net = on_its_own()
    before = Snapshot(net)
    estimated = rooflight.estimate(step, target="cuda")
    assert sum(op.cost.flops or 0 for op in estimated.ops if op.cost is not None) == 2 * 2 * 64 * 256 * 256
    with pytest.raises(RooflightError, match="device='cuda'"):
        rooflight.measure(step, counters="none", repeat=2)
    before.check(net)
    measured = rooflight.measure(step, device="cuda", counters="none", repeat=2)
    assert any(kernel.ops for kernel in measured.kernels)
    before.check(net)
