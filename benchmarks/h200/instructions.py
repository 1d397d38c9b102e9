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
                  f"{time.perf_counter() - start:6.1f} s {[note[:150] for note in ledger.header.notes]}", flush=True)  # fmt: skip
        except Exception as error:
            print(f"{name:20} {type(error).__name__}: {str(error)[:300]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
