"""A step traced without data has the ops of the step that runs, those in place included."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import rooflight
from rooflight.models import build
from rooflight.models.resolve import live_workload
from rooflight.trace import TraceOptions, trace
from rooflight.trace.stage import staged
from tests.fixtures.torch_versions import VERSION, has_meta_kernel, needs_torch

unsolved = partial(pytest.mark.xfail, strict=VERSION >= (2, 11), raises=AssertionError)


pytestmark = pytest.mark.usefixtures("one_thread")


class Trained(nn.Module):
    """A function of a product with a parameter."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.function(self.weight * x)


def workload_of(function, step="train"):
    torch.manual_seed(0)
    model = function if isinstance(function, nn.Module) else Trained(function)
    return live_workload(model, (torch.randn(4, 4),), {}, step=step)


def ops_of(function, on, **options):
    given = {"loss": "sum", "optimizer": "sgd"} | options
    return trace(workload_of(function), TraceOptions(target="cpu", on=on, **given)).ops


def names_of(ops):
    """Without the reading of values, which tensors without data have not."""
    return [op.name for op in ops if op.packet != "aten::_local_scalar_dense"]


# --- functions ---


def zeros(x, *shape):
    """Indices."""
    return torch.zeros(shape, dtype=torch.long, device=x.device)


def ones(x, *shape):
    return torch.ones(shape, device=x.device)


def image(x):
    return x.view(1, 1, 4, 4)


def stacked(x, times=3):
    """A batch whose rows are not contiguous."""
    return x.expand(times, 4, 4).transpose(0, 1)


def attention(x, **options):
    """Without a batch of heads no fused kernel takes it."""
    return F.scaled_dot_product_attention(x[None], x[None], x[None], **options)


class Sums(torch.autograd.Function):
    """Its backward adds up what it makes, and what it is given."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        both = gradient.cos() + gradient.sin()
        return both, gradient + both


class Copied(torch.autograd.Function):
    """Its backward gives a new tensor with rows that far apart."""

    @staticmethod
    def forward(ctx, x, apart):
        ctx.apart = apart
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.new_empty_strided((4, 4), (ctx.apart, 1)).copy_(gradient), None


FUNCTIONS = {
    # taking, sorting and putting
    "gather": lambda x: x.gather(1, zeros(x, 4, 4)), "index_select": lambda x: x.index_select(0, zeros(x, 3)),
    "max of rows": lambda x: x.max(1).values, "min of rows": lambda x: x.min(1).values, "amax": lambda x: x.amax(1),
    "median": lambda x: x.median(1).values, "sort": lambda x: x.sort(1).values, "topk": lambda x: x.topk(2, 1).values,
    "kthvalue": lambda x: x.kthvalue(2, 1).values, "mode": lambda x: x.mode(1).values,
    "index": lambda x: x[zeros(x, 3)], "take": lambda x: x.take(zeros(x, 3)),
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0), "index_put": lambda x: x.index_put((zeros(x, 3),), x[:3]),
    "index_add": lambda x: x.index_add(0, zeros(x, 3), x[:3]), "scatter": lambda x: x.scatter(1, zeros(x, 4, 4), x),
    "scatter_add": lambda x: x.scatter_add(1, zeros(x, 4, 4), x), "embedding": lambda x: F.embedding(zeros(x, 2), x),
    "embedding_bag": lambda x: F.embedding_bag(zeros(x, 2, 2), x), "maximum": lambda x: torch.maximum(x, x * 2),
    # views, and what puts them together again
    "flip": lambda x: x.flip(1), "roll": lambda x: x.roll(1, 1), "repeat": lambda x: x.repeat(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "diagonal": lambda x: x.diagonal(),
    "trace": lambda x: x.trace(), "unfold": lambda x: x.unfold(1, 2, 1), "select": lambda x: x[0],
    "slice": lambda x: x[:2], "slices": lambda x: x[:2] + x[2:], "split": lambda x: sum(x.split(1)),
    "chunk": lambda x: sum(x.chunk(2)), "unbind": lambda x: sum(x.unbind()), "stack": lambda x: torch.stack([x, x]),
    "cat": lambda x: torch.cat([x, x]), "tril": lambda x: x.tril(),
    "fold": lambda x: F.fold(x.expand(2, 4, 4), (3, 3), 2),
    "unfold image": lambda x: F.unfold(image(x), 2), "pixel_shuffle": lambda x: F.pixel_shuffle(x.view(1, 4, 2, 2), 2),
    "pad": lambda x: F.pad(x, (1, 1)), "reflect": lambda x: F.pad(image(x), (1, 1, 1, 1), mode="reflect"),
    # numbers
    "norm": lambda x: x.norm(dim=1), "norm 1": lambda x: x.norm(1, dim=1), "norm 3": lambda x: x.norm(3, dim=1),
    "norm inf": lambda x: x.norm(float("inf"), dim=1), "normalize": lambda x: F.normalize(x), "pow": lambda x: x.pow(3),
    "pow by itself": lambda x: x.abs().pow(x), "cumsum": lambda x: x.cumsum(1), "clamp": lambda x: x.clamp(0, 1),
    "logsumexp": lambda x: x.logsumexp(1), "logcumsumexp": lambda x: x.logcumsumexp(1), "var": lambda x: x.var(1),
    "std": lambda x: x.std(1), "var_mean": lambda x: sum(torch.var_mean(x, 1)),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x), "addcdiv": lambda x: torch.addcdiv(x, x, x),
    "hypot": lambda x: torch.hypot(x, x), "logaddexp": lambda x: torch.logaddexp(x, x),
    "fmod": lambda x: torch.fmod(x, 2),
    "square": lambda x: x * x, "root of squares": lambda x: x.square().sum(1).sqrt(), "div": lambda x: x / (x + 3),
    "in place": lambda x: (x * 2).add_(1).mul_(x), "fft": lambda x: torch.fft.rfft(x).abs(), "expm1": torch.expm1,
    "atan": torch.atan, "asinh": torch.asinh, "tan": torch.tan, "lgamma": lambda x: x.exp().lgamma(),
    # losses
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x)),
    "bce of logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
    "kl_div": lambda x: F.kl_div(x, torch.ones_like(x), reduction="sum"),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.ones_like(x)),
    "huber": lambda x: F.huber_loss(x, torch.ones_like(x)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x * 2),
    "cosine_embedding": lambda x: F.cosine_embedding_loss(x, x * 2, ones(x, 4)),
    "hinge_embedding": lambda x: F.hinge_embedding_loss(x, torch.ones_like(x)),
    "margin_ranking": lambda x: F.margin_ranking_loss(x, x * 2, torch.ones_like(x)),
    "triplet_margin": lambda x: F.triplet_margin_loss(x, x * 2, x * 3),
    "cross_entropy, smoothed": lambda x: F.cross_entropy(x, zeros(x, 4), label_smoothing=0.1),
    "cross_entropy of probabilities": lambda x: F.cross_entropy(x, torch.ones_like(x)),
    # layers
    "gelu": F.gelu, "silu": F.silu, "softplus": F.softplus, "glu": F.glu, "prelu": lambda x: F.prelu(x, ones(x, 1)),
    "selu": F.selu, "hardswish": F.hardswish, "logsigmoid": F.logsigmoid, "softmax": lambda x: x.softmax(1),
    "gumbel_softmax": F.gumbel_softmax, "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "interpolate": lambda x: F.interpolate(image(x), scale_factor=2, mode="bilinear"),
    "instance_norm": lambda x: F.instance_norm(x[None].expand(2, 4, 4).contiguous()),
    "grid_sample": lambda x: F.grid_sample(image(x), x.view(1, 2, 4, 2), align_corners=False),
    "attention": lambda x: F.scaled_dot_product_attention(image(x), image(x), image(x)),
    "attention, masked": lambda x: F.scaled_dot_product_attention(image(x), image(x), image(x), ones(x, 4, 4)),
    "attention with dropout": lambda x: F.scaled_dot_product_attention(
        image(x), image(x), image(x), ones(x, 4, 4), dropout_p=0.5
    ),
    "attention of grouped heads": lambda x: F.scaled_dot_product_attention(
        x.expand(1, 4, 4, 4), x.expand(1, 2, 4, 4), x.expand(1, 2, 4, 4), is_causal=True, enable_gqa=True
    ),
    "plain attention": attention, "plain attention, causal": lambda x: attention(x, is_causal=True),
    "plain attention, masked": lambda x: attention(x, attn_mask=ones(x, 4, 4)),
    "two attentions": lambda x: attention(attention(x, attn_mask=ones(x, 4, 4))[0] + x.sin()),
    "checkpointed": lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False),
    "checkpointed and used": lambda x: checkpoint(lambda y: y.sin() * y.cos(), x, use_reentrant=False) + x,
    "checkpointed in the old way": lambda x: checkpoint(lambda y: y.sin() * y.cos(), x, use_reentrant=True) + x,
    # products
    "linear": lambda x: F.linear(x, x, x[0]), "linear of a row": lambda x: F.linear(x[0], x, x[0]),
    "linear of columns": lambda x: F.linear(x.T, x, x[0]), "linear of a batch": lambda x: F.linear(x[None], x, x[0]),
    "linear of a stack": lambda x: F.linear(stacked(x), x, x[0]),
    "linear without bias": lambda x: F.linear(stacked(x), x),
    "linear of four dimensions": lambda x: F.linear(x.expand(2, 3, 4, 4).transpose(1, 2), x, x[0]),
    "bilinear": lambda x: F.bilinear(x, x, x.expand(2, 4, 4)), "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "einsum of a batch": lambda x: torch.einsum("bij,bkj->bik", x.expand(2, 4, 4), x.expand(2, 4, 4)),
    "outer": lambda x: torch.outer(x[0], x[1]), "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x.expand(2, 4, 4), x.expand(2, 4, 4), x.expand(2, 4, 4)),
    "mv": lambda x: torch.mv(x, x[0]), "dot": lambda x: torch.dot(x[0], x[1]), "cdist": lambda x: torch.cdist(x, x),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, :3] * 2), "inv": torch.linalg.inv, "det": torch.linalg.det,
    "solve": lambda x: torch.linalg.solve(x, x * 2), "svdvals": torch.linalg.svdvals,
    "qr": lambda x: sum(torch.linalg.qr(x)),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4, device=x.device)),
    # a backward of one's own
    "own backward": lambda x: Sums.apply(x, x.sin()), "own backward, twice the same": lambda x: Sums.apply(x, x),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_same_ops_without_data(name):
    if name == "maximum" and VERSION >= (2, 14):
        pytest.xfail("as atan2 does: masked_fill makes a new tensor")
    function = FUNCTIONS[name]
    without, real = names_of(ops_of(function, "meta")), names_of(ops_of(function, "cpu"))
    assert "aten::ones_like" in real  # there was a backward
    assert without == real


OTHER_FORMULAS = {
    "max of all": (lambda x: x.max(), "the places of the maximum are a mask to multiply by, not one to fill by"),
    "prod": (lambda x: x.prod(1), "nobody can ask whether a factor is zero: products instead of a division"),
    "cumprod": (lambda x: x.cumprod(1), "nobody can ask whether a factor is zero: the formula that zeros need"),
    "bce of logits, weighted": (
        lambda x: F.binary_cross_entropy_with_logits(
            x, torch.ones_like(x), pos_weight=ones(x, 4), weight=ones(x, 4)
        ),
        "a product is a new tensor: its factor may be a subclass",
    ),
    "mish": (F.mish, "a formula of single steps instead of the fused backward"),
    "matrix_exp": (torch.matrix_exp, "the matrix of blocks is put together by cat, not by copies into zeros"),
    "atan2": (lambda x: torch.atan2(x, x + 3), "masked_fill makes a new tensor: the mask may be a subclass"),
    "eigh": (lambda x: sum(torch.linalg.eigh(x)), "diagonal_scatter instead of a copy into the diagonal"),
    "householder_product": (
        lambda x: torch.linalg.householder_product(x, x[0]), "columns are put together by cat, not by copies into zeros"
    ),
}  # fmt: skip
"""torch takes another formula for tensors that could be subclasses, and takes tensors without data for such."""


@pytest.mark.parametrize("name", OTHER_FORMULAS)
def test_where_torch_has_another_formula_for_tensors_without_data_ops_still_differ(name):
    if name == "atan2" and VERSION < (2, 11):
        pytest.skip("before 2.11 it has one formula")
    function, reason = OTHER_FORMULAS[name]
    without, real = ops_of(function, "meta"), ops_of(function, "cpu")
    assert names_of(without) != names_of(real), f"no longer true: {reason}"
    # Only what the formula does in backward, and not the ops around it.
    assert names_of(op for op in without if op.phase != "backward") == names_of(
        op for op in real if op.phase != "backward"
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_mask_of_checkpointed_attention_is_added_in_place(reentrant):
    def function(x):
        return checkpoint(lambda y: attention(y, attn_mask=ones(y, 4, 4)), x, use_reentrant=reentrant)

    assert names_of(ops_of(function, "meta")) == names_of(ops_of(function, "cpu"))


@pytest.mark.parametrize("function", [
    lambda x: attention(x, attn_mask=ones(x, 4, 4).bool()),
    lambda x: F.scaled_dot_product_attention(image(x), image(x), image(x), ones(x, 4, 4).bool(), dropout_p=0.5),
], ids=["three dimensions", "dropout"])  # fmt: skip
def test_plain_attention_makes_numbers_of_a_mask_of_truths(function):
    assert names_of(ops_of(function, "meta")) == names_of(ops_of(function, "cpu"))


refused = needs_torch(2, 11, why="it refuses this")


@unsolved(reason="only a bias of one dimension and a weight of two are thought of")
@pytest.mark.parametrize("function", [
    lambda x: F.linear(x.expand(3, 4, 4).contiguous(), x, x[0, 0]),
    pytest.param(lambda x: F.linear(x.expand(3, 4, 4).contiguous(), x, x), marks=refused),
    pytest.param(lambda x: F.linear(x.expand(3, 4, 4).contiguous(), x[0], x[0, 0]), marks=refused),
    lambda x: F.linear(stacked(x), x[0], x[0, 0]),
    lambda x: F.linear(stacked(x), x, x[0, 0]),
], ids=["one number", "a matrix", "one row", "one row, stack", "one number, stack"])  # fmt: skip
def test_a_linear_layer_with_an_unusual_bias_has_the_same_ops_without_data(function):
    assert names_of(ops_of(function, "meta")) == names_of(ops_of(function, "cpu"))


# --- sums of gradients ---


kept: list[torch.Tensor] = []


def used(use):
    """A tensor in the middle of a network, and how it is used."""
    return lambda x: use(x.exp())


def hooked(hook):
    def use(y):
        y.register_hook(hook)
        return y.sin() * y.cos()

    return use


def passed_on(y, keep=None):
    """The first gradient to come to `y` is the one that came to `more`."""
    sine, more = y.sin(), y + 1
    if keep is not None:
        keep(more)
    return sine * more


def by_a_hook(tensor):
    tensor.register_hook(kept.append)


def by_itself(tensor):
    tensor.retain_grad()
    kept.append(tensor)


def gradient_in_forward(x, *, create_graph):
    y = x.exp()
    total = (y.sin() * y.cos()).sum()
    (gradient,) = torch.autograd.grad(total, x, create_graph=create_graph)
    return gradient * 2


SUMS = {
    "used once": (used(torch.sin), 0, 0),
    "used twice": (used(lambda y: y.sin() * y.cos()), 1, 0),
    "used three times": (used(lambda y: y.sin() * y.cos() * y.tanh()), 2, 0),
    # The sum's node gives one and the same gradient to both: where it waits, it is held twice.
    "residual": (used(lambda y: y + y.sin()), 0, 1),
    "residual, the other way round": (used(lambda y: y.sin() + y), 0, 1),
    "two residuals": (used(lambda y: y + y.sin() + y.cos()), 2, 0),
    "residual of a residual": (used(lambda y: (lambda z: z + z.sin())(y + y.cos())), 1, 1),
    "sum with itself": (used(lambda y: y + y), 0, 1),
    # One node with two edges to the same tensor.
    "product with itself": (used(lambda y: y * y), 1, 0),
    "cube": (used(lambda y: y * y * y), 2, 0),
    "matrix product with itself": (used(lambda y: y @ y), 1, 0),
    "put together of three": (used(lambda y: torch.cat([y, y, y])), 1, 1),  # two views of one gradient, then a new one
    # The gradient of a sum is one number, as large as the tensor only by its strides.
    "expanded": (used(lambda y: y.expand(3, 4, 4).sum(0) + y.sum()), 0, 1),
    "turned": (used(lambda y: y + y.T), 0, 1),
    "two halves": (used(lambda y: y[:2] + y[2:]), 1, 0),
    "kept by the tensor": (used(lambda y: by_itself(y) or y.sin() * y.cos()), 1, 0),
    "kept by a hook": (used(hooked(kept.append)), 1, 0),
    "a view": (used(lambda y: y.sin() * y.view(4, 4)), 0, 1),  # which holds what it is a view of
    "passed on": (used(passed_on), 1, 0),
    "passed on, kept by a hook": (used(lambda y: passed_on(y, by_a_hook)), 0, 1),
    "passed on, kept by the tensor": (used(lambda y: passed_on(y, by_itself)), 1, 0),  # which keeps a copy
    "replaced by a hook": (used(hooked(lambda gradient: gradient * 2)), 1, 0),
    "added up in a hook": (used(hooked(lambda gradient: gradient.sin() + gradient.cos())), 1, 1),
    "a hook adds": (used(hooked(lambda gradient: gradient + 1)), 1, 1),
    "without gaps": (used(lambda y: y.sin() * Copied.apply(y, 4)), 1, 0),
    "with gaps": (used(lambda y: y.sin() * Copied.apply(y, 8)), 0, 1),  # a sum would have none
    "a node that adds": (used(lambda y: Sums.apply(y, y.sin())), 1, 2),
    "checkpointed": (used(lambda y: checkpoint(lambda z: z.sin() * z.cos(), y, use_reentrant=False) * y), 2, 0),
}
"""How many sums of backward are in place, and how many make a new tensor."""
UNSEEN = {
    "passed on, kept by a hook": "a gradient is taken for the engine's own: who holds it in Python is not seen",
}


def marked(name):
    marks = [unsolved(reason=UNSEEN[name])] if name in UNSEEN else []
    return pytest.param(name, marks=marks)


def sums_of(ops, phase="backward"):
    counts = Counter(op.packet for op in ops if op.phase == phase)
    return counts["aten::add_"], counts["aten::add"]


def plain_sums(function, **options):
    """All sums of a plain step, that nobody watches but torch's profiler: in place, and not."""
    given = {"loss": "sum", "optimizer": "sgd"} | options
    with staged(workload_of(function), TraceOptions(target="cpu", on="cpu", **given)) as stage:
        stage.run()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            stage.run()
    counts = Counter(event.name() for event in profiler.profiler.kineto_results.events())
    return counts["aten::add_"], counts["aten::add"]


def all_sums(ops):
    counts = Counter(op.packet for op in ops)
    return counts["aten::add_"], counts["aten::add"]


@pytest.fixture(autouse=True)
def _nothing_kept():
    kept.clear()
    yield
    kept.clear()


@pytest.mark.parametrize("name", SUMS)
def test_gradients_are_added_up_in_a_recorded_step_as_in_a_plain_one(name):
    function, in_place, new = SUMS[name]
    real = ops_of(function, "cpu")
    assert sums_of(real) == (in_place, new)
    assert all_sums(real) == plain_sums(function)


@pytest.mark.parametrize("name", [marked(name) for name in SUMS])
def test_gradients_are_added_up_without_data_as_in_a_plain_step(name):
    function, in_place, new = SUMS[name]
    without = ops_of(function, "meta")
    assert sums_of(without) == (in_place, new)
    kept.clear()
    assert names_of(without) == names_of(ops_of(function, "cpu"))


@unsolved(reason="a sum in the formula of a node with two equal edges is taken for the engine's")
def test_a_sum_in_a_nodes_formula_stays_one_where_both_edges_lead_to_one_tensor():
    function = used(lambda y: torch.atan2(y, y))
    assert sums_of(ops_of(function, "meta")) == sums_of(ops_of(function, "cpu"))


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_sum_in_place_is_written_into_the_first_gradient(on):
    ops = ops_of(used(lambda y: y.sin() * y.cos()), on)
    (total,) = (op for op in ops if op.phase == "backward" and op.packet == "aten::add_")
    assert total.mutates == ("self",)
    assert total.outputs[0].storage == total.tensor("self").storage != total.tensor("other").storage
    made = {tensor.storage for op in ops[: total.index] for tensor in op.outputs if op.phase == "backward"}
    assert {total.tensor("self").storage, total.tensor("other").storage} <= made
    # The next node reads it.
    following = ops[total.index + 1]
    assert total.outputs[0].storage in {tensor.storage for tensor in following.inputs}


@pytest.mark.parametrize("on", ["meta", "cpu"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_gradients_of_further_micro_batches_are_added_in_place(on, times):
    ledger = rooflight.estimate(
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(2, 4), step="train", target="cpu",
        on=on, accumulate=times,
    )  # fmt: skip
    assert sums_of(ledger.ops) == (4 * (times - 1), 0)
    gradients = Counter(s.id for s in ledger.storages if s.category == "gradient")
    written = Counter(op.tensor("self").storage for op in ledger.ops if op.phase == "backward" and op.mutates)
    assert len(gradients) == 4
    assert written == Counter({number: times - 1 for number in gradients if times > 1})


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_gradient_that_somebody_looks_at_is_added_to_in_place_all_the_same(on):
    class Looks(Trained):
        def forward(self, x):
            self.weight.register_post_accumulate_grad_hook(lambda weight: kept.append(weight.grad.view(16)))
            return super().forward(x)

    assert sums_of(ops_of(Looks(torch.sin), on, accumulate=2)) == (1, 0)
    assert plain_sums(Looks(torch.sin), accumulate=2) == (2, 0)  # that one, and the optimizer's


@pytest.mark.parametrize("name", ["used twice", "residual", "product with itself"])
def test_micro_batches_of_a_net_with_sums_have_the_same_ops_without_data(name):
    function = SUMS[name][0]
    without, real = (ops_of(function, on, accumulate=2) for on in ("meta", "cpu"))
    assert names_of(without) == names_of(real)
    assert all_sums(real) == plain_sums(function, accumulate=2)


def test_a_backward_that_is_differentiated_itself_adds_to_new_tensors():
    def function(x):
        return gradient_in_forward(x, create_graph=True)

    without, real = ops_of(function, "meta"), ops_of(function, "cpu")
    assert sums_of(real, "forward") == (0, 1)
    assert names_of(without) == names_of(real)
    assert all_sums(real) == plain_sums(function)
    # Its own backward is a plain one again.
    assert sums_of(real)[0] > 0


@unsolved(reason="a backward in the forward phase is not taken for one")
@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_backward_in_forward_that_is_not_differentiated_adds_in_place(on):
    def function(x):
        return gradient_in_forward(x, create_graph=False) + x

    assert all_sums(ops_of(function, on)) == plain_sums(function)


# --- models ---


LLAMA = {
    "num_hidden_layers": "1", "hidden_size": "64", "intermediate_size": "64", "num_attention_heads": "4",
    "num_key_value_heads": "2", "vocab_size": "100",
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "mnist-cnn": {},
    "resnet18": dict(batch=1, input_shape=(3, 64, 64)),
    "transformer": dict(seq=6, overrides={"num_encoder_layers": "2", "num_decoder_layers": "1"}),
    "gpt2": dict(seq=8, overrides={"n_layer": "2", "n_embd": "64", "n_head": "4"}),
    "llama3-8b": dict(seq=8, overrides=LLAMA),
    "mixtral-8x7b": dict(seq=8, overrides=LLAMA),
    "distilbert": dict(seq=8, overrides={"n_layers": "2"}),
}  # fmt: skip


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_rows_without_data(name, step):
    arguments = {"batch": 2, "step": step} | MODELS[name]
    real = trace(build(name, device="cpu", **arguments), TraceOptions(target="cpu", on="cpu"))
    without = rooflight.estimate(name, target="cpu", **arguments)
    keys = [
        [op.key for op in ledger.ops if op.packet != "aten::_local_scalar_dense"] for ledger in (without, real)
    ]  # fmt: skip
    assert keys[0] == keys[1]
    fused = (name, step) == ("transformer", "infer")
    runs = not fused or has_meta_kernel("aten::_transformer_encoder_layer_fwd")
    assert without.header.traced_on == ("meta" if runs else "fake") and real.header.traced_on == "cpu"
    in_place = {op.packet for op in without.ops if op.phase == "backward" and op.mutates}
    assert ("aten::add_" in in_place) == (step == "train" and name != "mnist-cnn")


# --- values ---


class Residual(nn.Module):
    """Sums of gradients in place and not, statistics, random numbers, shared weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.fc, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.fc.weight

    def forward(self, x):
        x = x + self.norm(self.conv(x)).relu()
        x = self.conv(x) * x
        return self.tied(F.dropout(self.fc(x), 0.5, self.training)) + x


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"optimizer": "adamw"}])
def test_a_recorded_step_gives_the_gradients_and_weights_of_the_plain_one_bit_for_bit(options):
    torch.manual_seed(0)
    workload = live_workload(Residual(), (torch.randn(2, 3, 8, 8),), {}, step="train")
    with staged(workload, TraceOptions(target="cpu", on="cpu", loss="mse", **options)) as stage:
        stage.keep()

        def after(run):
            stage.put_back()
            run()
            parameters = list(stage.model.parameters())
            return [tensor.clone() for p in parameters for tensor in (p.detach(), p.grad)]

        plain, recorded = after(stage.run), after(stage.record)
        ops = stage.record().ops
    assert sums_of(ops)[0] > 0
    assert len(plain) == 2 * 7
    assert all(tensor.abs().sum() > 0 for tensor in plain[1::2])
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
