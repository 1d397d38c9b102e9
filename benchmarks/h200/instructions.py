"""Counts what single ops execute: convolutions, matrix products, attention, and everything else element by element.

usage: instructions.py FOLDER [SECTION ...]    (needs a CUDA GPU; writes a ledger for every section)

The shapes of convolutions, products and attention are drawn at random, from a fixed seed, and are nobody's layers: what
a kernel's name, tile and grid say of the work it does is learned and tested here, and then used on the models. Sizes of
all other ops are listed by hand; some widths (512, 768, 1000, 30522, 50257) are those of models too.
"""

import random
import sys
import time
from pathlib import Path

import torch

import rooflight

aten = torch.ops.aten
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CHANNELS = (3, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
SIZES = (7, 13, 14, 17, 27, 28, 35, 56, 112)
MOST_FLOPS = 8e10


class Calls(torch.nn.Module):
    """Calls with their tensors, one after the other."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.kept = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        for call in self.calls:
            call()
        return x + self.kept


def normal(*shape, dtype="fp32", grad=False):
    return torch.randn(shape, device="cuda", dtype=TYPES[dtype])


def convolutions(dtype, count, seed, passes="fdw"):
    """`passes`: forward, the input's gradient, the weight's gradient."""
    draw = random.Random(seed)
    calls = []
    while len(calls) < len(passes) * count:
        n, h = draw.choice((2, 4, 8, 16, 24, 32)), draw.choice(SIZES)
        cin, cout = draw.choice(CHANNELS), draw.choice(CHANNELS[1:])
        k, stride = draw.choice((1, 1, 3, 3, 3, 5, 7, 11)), draw.choice((1, 1, 2, 4))
        if (k == 1 and stride == 4) or h < k or 2 * n * cin * cout * (h // stride) ** 2 * k * k > MOST_FLOPS:
            continue
        x, w = normal(n, cin, h, h, dtype=dtype), normal(cout, cin, k, k, dtype=dtype)
        bias = normal(cout, dtype=dtype) if draw.random() < 0.4 else None
        pad = draw.choice((0, k // 2, k // 2))
        rest = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1)
        y = aten.convolution(x, w, bias, *rest)
        g = torch.randn_like(y)
        sizes = [cout] if bias is not None else None
        if "f" in passes:
            calls.append(lambda x=x, w=w, b=bias, r=rest: aten.convolution(x, w, b, *r))
        calls += [
            lambda g=g, x=x, w=w, s=sizes, r=rest, m=mask: aten.convolution_backward(g, x, w, s, *r, m)
            for which, mask in (("d", [True, False, False]), ("w", [False, True, bias is not None]))
            if which in passes
        ]
    return calls


def products(dtype, count, seed):
    draw = random.Random(seed)
    calls = []
    sizes = (10, 16, 24, 49, 64, 100, 128, 196, 256, 300, 392, 512, 768, 784, 1000, 1024, 1536, 2048, 2304, 3072, 3136,
             4096, 6000, 9216, 12544, 30522, 50257)  # fmt: skip
    while len(calls) < count:
        m, n, k = (draw.choice(sizes) for _ in range(3))
        if 2 * m * n * k > MOST_FLOPS or m * n > 3e8:
            continue
        a = normal(m, k, dtype=dtype) if draw.random() < 0.6 else normal(k, m, dtype=dtype).t()
        b = normal(k, n, dtype=dtype) if draw.random() < 0.5 else normal(n, k, dtype=dtype).t()
        kind = draw.choice(("addmm", "mm", "mm", "bmm"))
        if kind == "addmm":
            bias = normal(n, dtype=dtype)
            calls.append(lambda a=a, b=b, c=bias: aten.addmm(c, a, b))
        elif kind == "mm":
            calls.append(lambda a=a, b=b: aten.mm(a, b))
        elif m * n * k < 1e9:
            batch = draw.choice((4, 12, 48, 96))
            x, y = normal(batch, m, k, dtype=dtype), normal(batch, k, n, dtype=dtype)
            calls.append(lambda a=x, b=y: aten.bmm(a, b))
    return calls


def grouped(dtype, count, seed, *, channels_last=False):
    """Convolutions with groups, of one channel or of several, and all three passes of each."""
    draw = random.Random(seed)
    calls = []
    order = torch.channels_last if channels_last else torch.contiguous_format
    while len(calls) < 3 * count:
        n, h = draw.choice((1, 2, 4, 8, 16, 24, 32, 48)), draw.choice(SIZES)
        inner = draw.choice((1, 1, 1, 1, 2, 3, 4, 8, 8, 16, 16, 24, 32, 40, 64))
        groups = draw.choice((2, 3, 4, 8, 16, 24, 32, 40, 64, 72, 96, 120, 144, 192, 240, 256, 320, 384, 480, 672, 960))
        times = draw.choice((1, 1, 1, 1, 2)) if inner == 1 else draw.choice((1, 1, 2, 0.5))
        k, stride = draw.choice((1, 3, 3, 3, 5, 5, 7, 7, 9, 11)), draw.choice((1, 1, 1, 2))
        cin, cout = inner * groups, max(round(inner * times), 1) * groups
        if h < k or cin > 2048 or (inner == 1 and groups < 8) or n * max(cin, cout) * h * h > 3e7:
            continue
        x = normal(n, cin, h, h, dtype=dtype).to(memory_format=order)
        w = normal(cout, inner, k, k, dtype=dtype).to(memory_format=order)
        bias = normal(cout, dtype=dtype) if draw.random() < 0.3 else None
        dilation = 2 if draw.random() < 0.05 and h > 2 * k else 1
        pad = draw.choice((0, k // 2, k // 2, k // 2)) * dilation
        calls += passes_of(x, w, bias, ([stride] * 2, [pad] * 2, [dilation] * 2, False, [0, 0], groups))
    return calls


def depthwise(dtype, count, seed, *, channels_last=False):
    """One channel a group, as the small networks have it: many sizes of image, few taps, all three passes."""
    draw = random.Random(seed)
    calls = []
    order = torch.channels_last if channels_last else torch.contiguous_format
    while len(calls) < 3 * count:
        n, h = draw.choice((1, 4, 8, 16, 20, 32, 64)), draw.choice((4, 7, 8, 10, 14, 15, 16, 28, 30, 56, 60, 112, 120))
        c = draw.choice((16, 32, 56, 64, 80, 96, 104, 128, 160, 184, 200, 232, 240, 256, 336, 400, 528, 576, 768, 1056))
        k, stride = draw.choice((3, 3, 3, 5, 5, 5, 7)), draw.choice((1, 1, 2))
        if n * c * h * h > 4e7 or h < k:
            continue
        x = normal(n, c, h, h, dtype=dtype).to(memory_format=order)
        w = normal(c, 1, k, k, dtype=dtype).to(memory_format=order)
        bias = normal(c, dtype=dtype) if draw.random() < 0.2 else None
        calls += passes_of(x, w, bias, ([stride] * 2, [k // 2] * 2, [1, 1], False, [0, 0], c))
    return calls


def wide(dtype, count, seed, *, channels_last=False):
    """Many channels on small images, of a single pixel too, where `convolutions` has few channels on large ones."""
    draw = random.Random(seed)
    calls = []
    order = torch.channels_last if channels_last else torch.contiguous_format
    channels = (8, 20, 36, 72, 120, 240, 336, 480, 600, 720, 960, 1056, 1152, 1280, 1392, 1536, 1632, 1920, 2048, 2304)
    while len(calls) < 3 * count:
        n, h = draw.choice((1, 4, 8, 16, 24, 32, 48, 64)), draw.choice((1, 1, 4, 7, 8, 10, 12, 14, 20))
        cin, cout, k = draw.choice(channels), draw.choice(channels), draw.choice((1, 1, 1, 3))
        if h < k or 2 * n * cin * cout * h * h * k * k > MOST_FLOPS:
            continue
        x = normal(n, cin, h, h, dtype=dtype).to(memory_format=order)
        w = normal(cout, cin, k, k, dtype=dtype).to(memory_format=order)
        bias = normal(cout, dtype=dtype) if draw.random() < 0.4 else None
        stride = 2 if k < h and draw.random() < 0.2 else 1
        calls += passes_of(x, w, bias, ([stride] * 2, [k // 2] * 2, [1, 1], False, [0, 0], 1))
    return calls


def passes_of(x, w, bias, rest):
    """Forward, the input's gradient, the weight's."""
    y = aten.convolution(x, w, bias, *rest)
    g = torch.randn_like(y)
    sizes = [len(bias)] if bias is not None else None
    return [
        lambda: aten.convolution(x, w, bias, *rest),
        lambda: aten.convolution_backward(g, x, w, sizes, *rest, [True, False, False]),
        lambda: aten.convolution_backward(g, x, w, sizes, *rest, [False, True, bias is not None]),
    ]


def other_convolutions(dtype, count, seed):
    """Transposed ones, those of one and three dimensions, dilated ones."""
    draw = random.Random(seed)
    calls = []
    while len(calls) < 3 * count:
        n, h = draw.choice((2, 4, 8, 16)), draw.choice((7, 14, 17, 28, 35, 56))
        cin, cout = draw.choice(CHANNELS[1:14]), draw.choice(CHANNELS[1:14])
        kind = draw.choice(("transposed", "transposed", "transposed", "1d", "3d", "dilated"))
        groups = draw.choice((1, 1, 1, 2, 8, cin))
        if cin % groups or cout % groups or n * max(cin, cout) * h * h > 2e7:
            continue
        bias = normal(cout, dtype=dtype) if draw.random() < 0.4 else None
        k = draw.choice((2, 3, 4, 5))
        if kind == "transposed":
            stride, pad = draw.choice((1, 2, 2, 4)), draw.choice((0, 1))
            x, w = normal(n, cin, h, h, dtype=dtype), normal(cin, cout // groups, k, k, dtype=dtype)
            more = draw.choice((0, 1)) if stride > 1 else 0
            rest = ([stride] * 2, [pad] * 2, [1, 1], True, [more] * 2, groups)
        elif kind == "1d":
            x, w = normal(n, cin, h * 20, dtype=dtype), normal(cout, cin // groups, k, dtype=dtype)
            rest = ([draw.choice((1, 2))], [k // 2], [1], False, [0], groups)
        elif kind == "3d":
            h = min(h, 14)
            x, w = normal(n, cin, 8, h, h, dtype=dtype), normal(cout, cin // groups, 3, 3, 3, dtype=dtype)
            rest = ([draw.choice((1, 2))] * 3, [1] * 3, [1] * 3, False, [0] * 3, groups)
        else:
            x, w = normal(n, cin, h, h, dtype=dtype), normal(cout, cin // groups, 3, 3, dtype=dtype)
            dilation = draw.choice((2, 4, 6))
            rest = ([1, 1], [dilation] * 2, [dilation] * 2, False, [0, 0], groups)
        calls += passes_of(x, w, bias, rest)
    return calls


def more_attentions(dtype, seed):
    """Lengths and heads that are no powers of two, and masks that are added to the scores, by torch's own choice."""
    draw = random.Random(seed)
    calls = []
    for _ in range(70):
        length, head = draw.choice((17, 49, 50, 64, 98, 144, 145, 196, 201, 257, 325, 577, 700, 1025)), draw.choice(
            (16, 24, 32, 40, 48, 64, 64, 72, 80, 88, 96, 128))  # fmt: skip
        batch, heads = draw.choice((2, 8, 32, 64)), draw.choice((2, 3, 6, 8, 12, 16))
        other = length if draw.random() < 0.8 else draw.choice((33, 77, 256))
        if batch * heads * length * max(other, head) > 8e7:
            continue
        q, k, v = (normal(batch, heads, size, head, dtype=dtype).requires_grad_() for size in (length, other, other))
        masked = draw.random() < 0.35
        mask = normal(1, heads, length, other, dtype=dtype) if masked else None
        causal = not masked and draw.random() < 0.2
        calls.append(lambda q=q, k=k, v=v, m=mask, c=causal: both_passes(q, k, v, m, c))
    return calls


def both_passes(q, k, v, mask, causal):
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        torch.autograd.grad(out.sum(), (q, k, v))


def more_products(dtype, seed):
    """Products of odd and of small sizes, several at a time, with strides and with a single row."""
    draw = random.Random(seed)
    calls = []
    sizes = (1, 2, 3, 5, 7, 8, 17, 33, 48, 49, 72, 88, 96, 120, 144, 197, 240, 257, 384, 480, 577, 672, 960, 1152, 1280,
             1408, 1792, 2560, 3584, 5120)  # fmt: skip
    while len(calls) < 160:
        m, n, k = (draw.choice(sizes) for _ in range(3))
        batch = draw.choice((1, 1, 1, 2, 16, 64, 192, 768))
        if m * n * k * batch > 2e10 or max(m * n, n * k, m * k) * batch > 3e7:
            continue
        turned, other = draw.random() < 0.4, draw.random() < 0.5
        a = normal(batch, k, m, dtype=dtype).mT if turned else normal(batch, m, k, dtype=dtype)
        b = normal(batch, n, k, dtype=dtype).mT if other else normal(batch, k, n, dtype=dtype)
        if batch == 1 and draw.random() < 0.5:
            bias = normal(n, dtype=dtype)
            calls.append(lambda a=a[0], b=b[0], c=bias: aten.addmm(c, a, b))
        elif batch == 1:
            calls.append(lambda a=a[0], b=b[0]: aten.mm(a, b))
        else:
            calls.append(lambda a=a, b=b: aten.bmm(a, b))
    return calls


def attentions(dtype, seed):
    draw = random.Random(seed)
    calls = []
    for length in (35, 77, 100, 128, 197, 256, 384, 512, 1000, 1024, 2048):
        for head in (32, 64, 128):
            for causal in (False, True):
                for dropout in (0.0, 0.1):
                    if draw.random() < 0.4:
                        continue
                    q, k, v = (normal(2, 8, length, head, dtype=dtype) for _ in range(3))
                    calls += attention(q, k, v, causal, dropout, dtype)
    return calls


def attention(q, k, v, causal, dropout, dtype):
    if dtype == "fp32":
        out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout, causal)
        g = torch.randn_like(out)
        return [
            lambda: aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout, causal),
            lambda: aten._scaled_dot_product_efficient_attention_backward(
                g, q, k, v, None, out, lse, seed, offset, dropout, [True, True, True, False], causal),
        ]  # fmt: skip
    found = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout, causal)
    out, lse, cq, ck, mq, mk, seed, offset = found[:8]
    g = torch.randn_like(out)
    return [
        lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, dropout, causal),
        lambda: aten._scaled_dot_product_cudnn_attention_backward(
            g, q, k, v, out, lse, seed, offset, None, cq, ck, mq, mk, dropout, causal),
    ]  # fmt: skip


def others(dtype, seed):
    """Everything that is no matrix work, at several sizes."""
    t, calls = TYPES[dtype], []

    def add(function, *arguments, **named):
        try:
            function(*arguments, **named)  # what cannot run must not spoil the rest
        except (NotImplementedError, RuntimeError, TypeError) as error:
            print(f"left out: {function}: {str(error).splitlines()[0][:100]}")
            return
        calls.append(lambda: function(*arguments, **named))

    for shape in ((64, 4096), (48, 96, 37, 29), (1_000_003,)):
        x, y = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
        p = x.abs() + 0.5
        for name in ("relu", "tanh", "sigmoid", "exp", "erf", "gelu", "silu", "neg", "abs", "rsqrt", "sqrt", "log",
                     "sin", "cos", "reciprocal", "clone", "hardtanh", "elu", "hardswish", "leaky_relu"):  # fmt: skip
            add(getattr(aten, name), p)
        add(aten.gelu, x, approximate="tanh")
        for name in ("add", "sub", "mul", "div", "maximum", "atan2"):
            add(getattr(aten, name), x, p)
            add(getattr(aten, name), p, 1.5) if name in ("add", "sub", "mul", "div") else None
        add(aten.add_, x.clone(), y)
        add(aten.mul_, x.clone(), 0.5)
        add(aten.add_, x.clone(), y, alpha=0.5)
        for power in (2.0, 3.0, 0.5, 1.7):
            add(aten.pow, p, power)
        add(aten.threshold_backward, x, y, 0)
        add(aten.gelu_backward, x, y)
        add(aten.gelu_backward, x, y, approximate="tanh")
        add(aten.tanh_backward, x, y)
        add(aten.sigmoid_backward, x, y)
        add(aten.native_dropout, x, 0.1, True)
        add(aten.native_dropout_backward, x, x > 0, 1.1)
        add(aten.where, x > 0, x, y)
        add(aten.fill_, x.clone(), 0.0)
        add(aten._to_copy, x, dtype=torch.float64 if dtype == "fp64" else torch.float16)
        add(aten.addcmul, x, y, p)
        add(aten.addcdiv, x, y, p)
        add(aten.lerp, x, y, 0.1)
        add(aten.sum, x)
        add(aten.mean, x)
    for rows, width in ((37, 1024), (511, 257), (2048, 512), (900, 768), (4096, 768), (128, 1000), (300, 30522),
                        (60, 50257), (3000, 128)):  # fmt: skip
        x = normal(rows, width, dtype=dtype)
        w, b = normal(width, dtype=dtype), normal(width, dtype=dtype)
        add(aten.add, x, b)
        add(aten.mul, x, b)
        add(aten.add, x.t(), normal(rows, dtype=dtype))
        add(aten.add_, x.t().contiguous(), x.t())
        _, mean, rstd = aten.native_layer_norm(x, [width], w, b, 1e-5)
        add(aten.native_layer_norm, x, [width], w, b, 1e-5)
        add(aten.native_layer_norm_backward, torch.randn_like(x), x, [width], mean, rstd, w, b, [True] * 3)
        add(aten._softmax, x, -1, False)
        add(aten._log_softmax, x, -1, False)
        s = aten._softmax(x, -1, False)
        add(aten._softmax_backward_data, x, s, -1, t)
        add(aten._log_softmax_backward_data, x, s, -1, t)
        for dims in ([0], [1], [0, 1]):
            for keep in (False, True):
                add(aten.sum.dim_IntList, x, dims, keep)
            add(aten.mean.dim, x, dims, False)
        add(aten.amax, x, [1])
        add(aten.argmax, x, 1)
        add(aten.cat, [x, x], 0)
        add(aten.native_dropout, x, 0.2, True)
        target = torch.randint(width, (rows,), device="cuda")
        loss, weight = aten.nll_loss_forward(x, target, None, 1, -100)
        add(aten.nll_loss_forward, x, target, None, 1, -100)
        add(aten.nll_loss_backward, torch.ones_like(loss), x, target, None, 1, -100, weight)
        index = torch.randint(rows, (8, 64), device="cuda")
        add(aten.embedding, x, index)
        add(aten.embedding_dense_backward, normal(8, 64, width, dtype=dtype), index, rows, -1, False)
    for n, c, h in ((2, 16, 112), (8, 24, 61), (4, 64, 112), (24, 48, 28), (16, 96, 56), (12, 128, 28), (8, 256, 56),
                    (20, 256, 14), (32, 384, 14), (8, 512, 28), (10, 768, 7), (24, 1024, 14), (8, 2048, 7), (33, 512, 7),
                    (16, 160, 27)):  # fmt: skip
        x, g = normal(n, c, h, h, dtype=dtype), normal(n, c, h, h, dtype=dtype)
        bn = [normal(c) for _ in range(3)] + [torch.ones(c, device="cuda")]
        half = [one.to(t) for one in bn]
        for some in [half] if dtype == "fp32" else [half, bn]:
            if dtype == "fp32":
                add(aten.cudnn_batch_norm, x, *some, True, 0.1, 1e-5)
                y, mean, var, reserve = aten.cudnn_batch_norm(x, *some, True, 0.1, 1e-5)
                add(aten.cudnn_batch_norm_backward, x, g, some[0], some[2], some[3], mean, var, 1e-5, reserve)
                add(aten.cudnn_batch_norm, x, *some, False, 0.1, 1e-5)
            for train in (True, False):
                add(aten.native_batch_norm, x, *some, train, 0.1, 1e-5)
            y, mean, invstd = aten.native_batch_norm(x, *some, True, 0.1, 1e-5)
            add(aten.native_batch_norm_backward, g, x, some[0], some[2], some[3], mean, invstd, True, 1e-5, [True] * 3)
        for k, stride, pad in ((3, 2, 1), (2, 2, 0), (3, 1, 1)):
            y, index = aten.max_pool2d_with_indices(x, [k, k], [stride, stride], [pad, pad])
            add(aten.max_pool2d_with_indices, x, [k, k], [stride, stride], [pad, pad])
            add(aten.max_pool2d_with_indices_backward, torch.randn_like(y), x, [k, k], [stride] * 2, [pad] * 2, [1, 1],
                False, index)  # fmt: skip
            add(aten.avg_pool2d, x, [k, k], [stride, stride], [pad, pad])
        for size in (1, 6, 7):
            y = aten._adaptive_avg_pool2d(x, [size, size])
            add(aten._adaptive_avg_pool2d, x, [size, size])
            add(aten._adaptive_avg_pool2d_backward, torch.randn_like(y), x)
        add(aten.mean.dim, x, [2, 3], True)
        add(aten.sum.dim_IntList, g, [0, 2, 3])
        add(aten.add_, x.clone(), g)
        add(aten.cat, [x, g], 1)
    for sizes in (((1000, 2048), (512, 512, 3, 3), (64,), (64,)), ((768, 768),) * 6 + ((768,),) * 6,
                  ((30522, 96), (257,)), ((128,),) * 40, ((3072, 768), (3072,), (768, 3072), (768,))):  # fmt: skip
        xs, ys, zs = ([normal(*size, dtype=dtype).abs() + 0.1 for size in sizes] for _ in range(3))
        many = len(sizes)
        add(aten._foreach_add_.List, xs, ys, alpha=0.9)
        add(aten._foreach_add_.Scalar, xs, 1e-8)
        add(aten._foreach_mul_.Scalar, xs, 0.9)
        add(aten._foreach_addcmul_.Scalar, xs, ys, zs, 0.1)
        add(aten._foreach_addcdiv_.Scalar, xs, ys, zs, 0.1)
        add(aten._foreach_addcdiv_.ScalarList, xs, ys, zs, [0.1] * many)
        add(aten._foreach_div_.ScalarList, xs, [1.1] * many)
        add(aten._foreach_lerp_.Scalar, xs, ys, 0.1)
        add(aten._foreach_sqrt, xs)
        add(aten._foreach_neg, xs)
    return calls


def more_others(dtype, seed):
    """What newer networks are made of, at sizes drawn at random."""
    t, draw, calls = TYPES[dtype], random.Random(seed), []

    def add(function, *arguments, **named):
        try:
            function(*arguments, **named)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            print(f"left out: {function}: {str(error).splitlines()[0][:100]}")
            return
        calls.append(lambda: function(*arguments, **named))

    for turn in range(14):
        n, c, h = draw.choice((2, 6, 8, 16, 24)), draw.choice((24, 40, 96, 144, 192, 288, 480, 768)), draw.choice(
            (7, 8, 12, 17, 28, 35, 56))  # fmt: skip
        x, g = normal(n, c, h, h, dtype=dtype), normal(n, c, h, h, dtype=dtype)
        if turn % 3 == 2:
            x, g = (one.to(memory_format=torch.channels_last) for one in (x, g))
        gate = normal(n, c, 1, 1, dtype=dtype)
        scale = normal(c, 1, 1, dtype=dtype)
        for name in ("hardswish", "hardsigmoid", "silu", "sigmoid", "gelu", "relu", "leaky_relu", "mish", "softplus",
                     "square", "rsqrt", "clamp_min"):  # fmt: skip
            add(getattr(aten, name), x, *((0.1,) if name == "clamp_min" else ()))
        for name in ("hardswish_backward", "hardsigmoid_backward", "silu_backward", "gelu_backward"):
            add(getattr(aten, name), g, x)
        add(aten.leaky_relu_backward, g, x, 0.01, False)
        add(aten.hardtanh, x, 0.0, 6.0)
        add(aten.hardtanh_backward, g, x, 0.0, 6.0)
        for other in (gate, scale, g):
            for name in ("mul", "add", "sub", "div"):
                add(getattr(aten, name), x, other)
        add(aten.mul_, x.clone(), gate)
        add(aten.div_, x.clone(), 0.9)
        add(aten.sum.dim_IntList, g, [2, 3], True)
        add(aten.sum.dim_IntList, g, [0, 2, 3], True)
        add(aten.mean.dim, x, [2, 3], True)
        add(aten.mean.dim, x, [-1, -2], False)
        for k, stride, pad in ((3, 1, 1), (2, 2, 0), (5, 2, 2)):
            for count in (True, False):
                add(aten.avg_pool2d, x, [k, k], [stride] * 2, [pad] * 2, False, count)
                y = aten.avg_pool2d(x, [k, k], [stride] * 2, [pad] * 2, False, count)
                add(
                    aten.avg_pool2d_backward,
                    torch.randn_like(y),
                    x,
                    [k, k],
                    [stride] * 2,
                    [pad] * 2,
                    False,
                    count,
                    None,
                )
            y, index = aten.max_pool2d_with_indices(x, [k, k], [stride, stride], [pad, pad])
            add(aten.max_pool2d_with_indices, x, [k, k], [stride, stride], [pad, pad])
            add(aten.max_pool2d_with_indices_backward, torch.randn_like(y), x, [k, k], [stride] * 2, [pad] * 2, [1, 1],
                False, index)  # fmt: skip
        add(aten.upsample_nearest2d, x, [2 * h, 2 * h], None, None)
        add(aten.upsample_bilinear2d, x, [2 * h, 2 * h], False, None, None)
        add(
            aten.upsample_bilinear2d_backward,
            normal(n, c, 2 * h, 2 * h, dtype=dtype),
            [2 * h] * 2,
            list(x.shape),
            False,
        )
        add(aten.constant_pad_nd, x, [1, 2, 1, 2])
        add(aten.reflection_pad2d, x, [1, 1, 1, 1])
        groups = draw.choice([count for count in (4, 8, 12, 24) if c % count == 0])
        w, b = normal(c, dtype=dtype), normal(c, dtype=dtype)
        plain, other = x.contiguous(), g.contiguous()
        y, mean, rstd = aten.native_group_norm(plain, w, b, n, c, h * h, groups, 1e-5)
        add(aten.native_group_norm, plain, w, b, n, c, h * h, groups, 1e-5)
        add(aten.native_group_norm_backward, other, plain, mean, rstd, w, n, c, h * h, groups, [True] * 3)
        add(aten.native_batch_norm, x, w, b, normal(c, dtype=dtype), w.abs() + 1, False, 0.1, 1e-5)
        add(aten.native_batch_norm, x, w, b, None, None, True, 0.1, 1e-5)
        add(aten.cat, [x, g, x], 1)
        add(aten.roll, x.permute(0, 2, 3, 1).contiguous(), [3, 3], [1, 2])
        add(aten.clone, x.permute(0, 2, 3, 1), memory_format=torch.contiguous_format)
        add(aten.bernoulli_, torch.empty(n, 1, 1, 1, device="cuda", dtype=t), 0.9)
        add(aten.linalg_vector_norm, x, 2, [1], True)
    for _ in range(14):
        b, s, d = draw.choice((2, 4, 16, 64)), draw.choice((49, 50, 128, 197, 257, 512)), draw.choice(
            (96, 192, 256, 384, 640, 768, 1024, 1152, 1408))  # fmt: skip
        x, g = normal(b, s, d, dtype=dtype), normal(b, s, d, dtype=dtype)
        w, bias = normal(d, dtype=dtype), normal(d, dtype=dtype)
        _, mean, rstd = aten.native_layer_norm(x, [d], w, bias, 1e-5)
        add(aten.native_layer_norm, x, [d], w, bias, 1e-5)
        add(aten.native_layer_norm_backward, g, x, [d], mean, rstd, w, bias, [True] * 3)
        add(aten.mul, x, w)
        add(aten.add, x, bias)
        add(aten.add, x, normal(1, s, d, dtype=dtype))
        add(aten.pow, x, 2.0)
        add(aten.mean.dim, x, [-1], True)
        add(aten.mul, x, normal(b, s, 1, dtype=dtype))
        add(aten.rsqrt, x.abs() + 1)
        add(aten.neg, x)
        add(aten.cos, x)
        add(aten.sin, x)
        add(aten.silu, x)
        add(aten.gelu, x)
        add(aten.gelu, x, approximate="tanh")
        add(aten.gelu_backward, g, x)
        add(aten.silu_backward, g, x)
        add(aten.tanh, x)
        add(aten.sum.dim_IntList, g, [0, 1], True)
        add(aten.sum.dim_IntList, g, [0], True)
        add(aten.cat, [x, x], -1)
        add(aten.stack, [x, g], -1)
        add(aten.clone, x.reshape(b, s, d // 32, 32).transpose(1, 2), memory_format=torch.contiguous_format)
        add(aten._to_copy, x, dtype=torch.float32 if dtype == "bf16" else torch.bfloat16)
        add(aten.index.Tensor, x, [None, torch.randint(s, (s,), device="cuda")])
        scores = normal(b, 4, s, s, dtype=dtype)
        add(aten._softmax, scores, -1, False)
        add(aten._softmax_backward_data, scores, aten._softmax(scores, -1, False), -1, t)
        add(aten.add, scores, normal(1, 4, s, s, dtype=dtype))
        add(aten.masked_fill.Scalar, scores, scores > 0, 0.0)
        add(aten.where, scores > 0, scores, scores)
        add(aten.topk, x.reshape(-1, d), 2)
        add(aten.cumsum, x, 1)
    return calls


COUNTED = {"per_kernel": True, "levels": ("dram", "l2", "l1")}
SECTIONS = {
    "convolutions-tf32": lambda: (convolutions("fp32", 70, 1), {}),
    "convolutions-fp32": lambda: (convolutions("fp32", 60, 2), {"tf32": False}),
    "convolutions-bf16": lambda: (convolutions("bf16", 70, 3), {}),
    "products-fp32": lambda: (products("fp32", 110, 4), {"tf32": False}),
    "products-tf32": lambda: (products("fp32", 80, 5), {"tf32": True}),
    "products-bf16": lambda: (products("bf16", 110, 6), {}),
    "attentions-fp32": lambda: (attentions("fp32", 7), {}),
    "attentions-bf16": lambda: (attentions("bf16", 8), {}),
    "others-fp32": lambda: (others("fp32", 9), {}),
    "others-bf16": lambda: (others("bf16", 10), {}),
    "forward-tf32": lambda: (convolutions("fp32", 150, 11, "f"), {"per_kernel": True}),
    "forward-fp32": lambda: (convolutions("fp32", 120, 12, "f"), {"per_kernel": True, "tf32": False}),
    "forward-bf16": lambda: (convolutions("bf16", 150, 13, "f"), {"per_kernel": True}),
    "inputs-tf32": lambda: (convolutions("fp32", 100, 14, "d"), {"per_kernel": True}),
    "inputs-fp32": lambda: (convolutions("fp32", 80, 15, "d"), {"per_kernel": True, "tf32": False}),
    "inputs-bf16": lambda: (convolutions("bf16", 100, 16, "d"), {"per_kernel": True}),
    "weights-tf32": lambda: (convolutions("fp32", 100, 17, "w"), {"per_kernel": True}),
    "weights-fp32": lambda: (convolutions("fp32", 80, 18, "w"), {"per_kernel": True, "tf32": False}),
    "weights-bf16": lambda: (convolutions("bf16", 100, 19, "w"), {"per_kernel": True}),
    "kernels-products": lambda: (products("fp32", 80, 20), {"per_kernel": True, "tf32": False}),
    "grouped-bf16": lambda: (grouped("bf16", 80, 21), COUNTED),
    "grouped-tf32": lambda: (grouped("fp32", 80, 22), COUNTED),
    "grouped-fp32": lambda: (grouped("fp32", 40, 23), {**COUNTED, "tf32": False}),
    "grouped-last-bf16": lambda: (grouped("bf16", 40, 24, channels_last=True), COUNTED),
    "grouped-last-tf32": lambda: (grouped("fp32", 40, 25, channels_last=True), COUNTED),
    "depthwise-bf16": lambda: (depthwise("bf16", 120, 41), COUNTED),
    "depthwise-tf32": lambda: (depthwise("fp32", 120, 42), COUNTED),
    "depthwise-last-bf16": lambda: (depthwise("bf16", 60, 43, channels_last=True), COUNTED),
    "grouped-more-bf16": lambda: (grouped("bf16", 120, 44), COUNTED),
    "grouped-more-tf32": lambda: (grouped("fp32", 120, 45), COUNTED),
    "other-convolutions-more-bf16": lambda: (other_convolutions("bf16", 70, 46), COUNTED),
    "other-convolutions-more-tf32": lambda: (other_convolutions("fp32", 70, 47), COUNTED),
    "wide-bf16": lambda: (wide("bf16", 90, 51), COUNTED),
    "wide-tf32": lambda: (wide("fp32", 90, 52), COUNTED),
    "wide-last-bf16": lambda: (wide("bf16", 50, 53, channels_last=True), COUNTED),
    "other-convolutions-bf16": lambda: (other_convolutions("bf16", 40, 26), COUNTED),
    "other-convolutions-tf32": lambda: (other_convolutions("fp32", 40, 27), COUNTED),
    "more-others-bf16": lambda: (more_others("bf16", 28), COUNTED),
    "more-others-fp32": lambda: (more_others("fp32", 29), COUNTED),
    "more-attentions-bf16": lambda: (more_attentions("bf16", 30), COUNTED),
    "more-attentions-fp32": lambda: (more_attentions("fp32", 31), COUNTED),
    "more-products-bf16": lambda: (more_products("bf16", 32), COUNTED),
    "more-products-fp32": lambda: (more_products("fp32", 33), {**COUNTED, "tf32": False}),
    "more-products-tf32": lambda: (more_products("fp32", 34), {**COUNTED, "tf32": True}),
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or SECTIONS:
        start = time.perf_counter()
        try:
            torch.manual_seed(0)
            calls, options = SECTIONS[name]()
            x = torch.zeros(1, 1, device="cuda")
            with torch.no_grad():
                ledger = rooflight.measure(Calls(calls).cuda(), x, device="cuda", repeat=2, **options)
            rooflight.save(ledger, folder / f"{name}.json.gz", force=True)
            print(f"{name:20} {len(calls):5} calls {len(ledger.ops):6} ops {len(ledger.kernels):6} kernels "
                  f"{time.perf_counter() - start:6.1f} s {[str(note)[:150] for note in ledger.header.notes]}", flush=True)  # fmt: skip
        except Exception as error:
            print(f"{name:20} {type(error).__name__}: {str(error)[:300]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
