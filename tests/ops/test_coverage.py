"""No op of the usual models, layers, losses and optimizers is without a formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rooflight.estimation.costs import fill_costs
from rooflight.ledger import MathModes, Op
from rooflight.models import build
from rooflight.trace import TraceOptions, trace
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder
from tests.fixtures.coverage_of_formulas import without_formula
from tests.fixtures.recording import meta, numbers
from tests.fixtures.torch_versions import has_meta_kernel

MODELS = ("mnist-cnn", "vgg11", "googlenet", "resnet18", "vit-b-16", "transformer", "word-lm", "distilbert", "gpt2")


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("model", MODELS)
def test_models(model: str, step: str) -> None:
    ledger = fill_costs(trace(build(model, batch=2, step=step), TraceOptions()))
    assert without_formula(ledger.ops) == {}
    for op in ledger.ops:
        assert op.cost is not None, op.name
        assert op.cost.other_flops is not None, op.name
        assert op.cost.other_flops >= 0, op.name
        assert op.cost.bytes_read is not None, op.name
        assert op.cost.bytes_read >= 0, op.name


def _ops_of(run: Callable[[], Any], device: str = "meta") -> list[Op]:
    recorder = Recorder(ModuleTracker(nn.Identity()), device=device, modes=MathModes(False, False))
    with recorder:
        run()
    return recorder.ops


IMAGE, VOLUME, ROW = meta(2, 4, 8, 8), meta(2, 4, 8, 8, 8), meta(2, 4, 8)

LAYERS: list[tuple[nn.Module, Tensor]] = [
    *((layer, IMAGE) for layer in (
        nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
        nn.LeakyReLU(), nn.ELU(), nn.SELU(), nn.CELU(), nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Mish(),
        nn.Softplus(), nn.Softsign(), nn.Softshrink(), nn.Hardshrink(), nn.Tanhshrink(), nn.Threshold(0.1, 0.0),
        nn.LogSigmoid(), nn.GLU(1), nn.PReLU(), nn.RReLU(), nn.Softmax(1), nn.Softmin(1), nn.LogSoftmax(1),
        nn.Softmax2d(), nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout(), nn.FeatureAlphaDropout(),
        nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4),
        nn.LayerNorm(8), nn.RMSNorm(8), nn.LocalResponseNorm(2),
        nn.MaxPool2d(2), nn.AvgPool2d(2), nn.LPPool2d(2, 2), nn.AdaptiveAvgPool2d(3), nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveMaxPool2d(3), nn.FractionalMaxPool2d(2, output_size=4),
        nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ConstantPad2d(1, 2.0), nn.CircularPad2d(1),
        nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(scale_factor=2, mode="bicubic"), nn.Upsample(scale_factor=2, mode="nearest-exact"),
        nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2), nn.Unfold(2), nn.Flatten(),
        nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
    )),
    *((layer, VOLUME) for layer in (
        nn.BatchNorm3d(4), nn.MaxPool3d(2), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(3), nn.AdaptiveMaxPool3d(3),
        nn.ReflectionPad3d(1), nn.ReplicationPad3d(1), nn.Upsample(scale_factor=2, mode="trilinear"),
        nn.Upsample(scale_factor=2), nn.Conv3d(4, 4, 3),
    )),
    *((layer, ROW) for layer in (
        nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3), nn.AdaptiveMaxPool1d(3),
        nn.ReflectionPad1d(1), nn.ReplicationPad1d(1), nn.Upsample(scale_factor=2, mode="linear"),
        nn.Upsample(scale_factor=2), nn.Conv1d(4, 4, 3), nn.Linear(8, 8),
    )),
    (nn.Fold((8, 8), 2), meta(2, 16, 49)),
    (nn.Bilinear(8, 8, 4), meta(2, 8)),
    (nn.CosineSimilarity(), meta(2, 8)),
    (nn.PairwiseDistance(), meta(2, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "x"), LAYERS, ids=lambda value: type(value).__name__)
def test_layers(layer: nn.Module, x: Tensor) -> None:
    if nn.utils.parametrize.is_parametrized(layer) and not has_meta_kernel("aten::_weight_norm_interface_backward"):
        pytest.skip("this torch has no backward of weight_norm for tensors without data")
    layer = layer.to("meta")
    # In-place layers may not write to a leaf.
    x = x.detach().requires_grad_() * 1
    pair = isinstance(layer, nn.Bilinear | nn.CosineSimilarity | nn.PairwiseDistance)
    assert without_formula(_ops_of(lambda: layer(*((x, x) if pair else (x,))).sum().backward())) == {}


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: F.cross_entropy(x, numbers(4)),
    lambda x: F.cross_entropy(x, numbers(4), weight=meta(5), label_smoothing=0.1),
    lambda x: F.cross_entropy(x, x.softmax(1)),
    lambda x: F.mse_loss(x, meta(4, 5)),
    lambda x: F.l1_loss(x, meta(4, 5)),
    lambda x: F.smooth_l1_loss(x, meta(4, 5)),
    lambda x: F.huber_loss(x, meta(4, 5)),
    lambda x: F.binary_cross_entropy(x.sigmoid(), meta(4, 5)),
    lambda x: F.binary_cross_entropy_with_logits(x, meta(4, 5), pos_weight=meta(5)),
    lambda x: F.kl_div(x.log_softmax(1), meta(4, 5), reduction="batchmean"),
    lambda x: F.poisson_nll_loss(x, meta(4, 5)),
    lambda x: F.gaussian_nll_loss(x, meta(4, 5), 1.0),
    lambda x: F.soft_margin_loss(x, meta(4, 5)),
    lambda x: F.hinge_embedding_loss(x, meta(4, 5)),
    lambda x: F.multilabel_soft_margin_loss(x, meta(4, 5)),
    lambda x: F.triplet_margin_loss(x, meta(4, 5), meta(4, 5)),
    lambda x: F.cosine_embedding_loss(x, meta(4, 5), meta(4)),
    lambda x: F.margin_ranking_loss(x, meta(4, 5), meta(4, 5)),
    lambda x: F.embedding(numbers(3), x),
    lambda x: F.embedding_bag(numbers(6), x, numbers(2), mode="mean")[0],
    lambda x: F.normalize(x),
    lambda x: F.grid_sample(x.view(1, 1, 4, 5), meta(1, 3, 3, 2), align_corners=False),
    lambda x: torch.einsum("ij,kj->ik", x, x),
    lambda x: torch.cdist(x, x),
    lambda x: torch.fft.rfft(x).abs(),
    lambda x: torch.logsumexp(x, 1),
    lambda x: x.cumsum(1).sort().values,
    lambda x: x.topk(2).values,
    lambda x: x[numbers(3)],
    lambda x: x[:, 1:] + x[:, :-1],
    lambda x: x.gather(1, numbers(4, 2)),
    lambda x: x.unfold(1, 2, 1),
    lambda x: torch.view_as_complex(x.reshape(5, 2, 2)).mul(1j).abs(),
    lambda x: x.var(1) + x.std(1) + x.norm(dim=1) + x.prod(1) + x.amax(1),
    lambda x: x.masked_fill(meta(4, 5, dtype=torch.bool), 0.0).tril(),
]


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_functions(number: int) -> None:
    x = meta(4, 5).requires_grad_()
    assert without_formula(_ops_of(lambda: FUNCTIONS[number](x).sum().backward())) == {}


OPTIMIZERS: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {}),
]


FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
WAYS = [
    (make, options, how)
    for make, options in OPTIMIZERS
    for how in ("for", "foreach", "fused")
    if how != "fused" or make in FUSED
]


@pytest.mark.parametrize(("make", "options", "how"), WAYS)
def test_optimizers(make: Any, options: dict[str, Any], how: str) -> None:
    parameters = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))]
    chosen = {"fused": True} if how == "fused" else {"foreach": how == "foreach"}
    optimizer = make(parameters, lr=0.1, **options, **chosen)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def steps() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=how != "for")
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    assert without_formula(_ops_of(steps, "cpu")) == {}
