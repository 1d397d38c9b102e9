"""Small calls of torch's CUDA kernels, family by family: what temporaries.py records of them is what they borrow."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Case = tuple[str, Callable[[], tuple[tuple[Any, ...], Callable[..., Any]]]]
"""A name, and what makes the inputs and the function to call with them."""


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, device="cuda")


def of(name: str, call: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype, grad: bool = True) -> Case:
    """A call on random tensors of these shapes."""
    return name, lambda: (tuple(rand(*shape, dtype=dtype, grad=grad) for shape in shapes), call)


def layer(name: str, make: Callable[[], nn.Module], *shape: int, dtype: torch.dtype) -> Case:
    def build() -> tuple[tuple[Any, ...], Callable[..., Any]]:
        module = make().to("cuda", dtype)
        return (rand(*shape, dtype=dtype),), lambda x: module(x)

    return name, build


MATRICES = (
    (4000, 3000), (500, 70000), (60000, 48), (96, 96), (1000, 1000), (8192, 768), (3, 500000), (2048, 11), (100000, 7),
    (7, 100000), (333, 64), (20000, 2500), (16384, 256), (640, 4096), (2000, 1000), (6000, 1000), (100000, 1000),
    (12544, 2), (50001, 33), (31, 1200000), (65536, 1), (4097, 130), (1, 4000000),
)  # fmt: skip
IMAGES = ((48, 64, 60, 60), (20, 200, 30, 30), (96, 32, 112, 112), (8, 512, 14, 14), (200, 128, 9, 9))
ROWS = ((2000, 768), (6000, 1024), (300, 4096), (20000, 96), (1500, 512), (12, 768), (100000, 192))
FULL: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(), "var": lambda x: x.var(), "std_mean": lambda x: torch.std_mean(x), "prod": lambda x: x.prod(),
    "any": lambda x: x.any(), "all": lambda x: x.all(), "amax": lambda x: x.amax(), "max": lambda x: x.max(), "min": lambda x: x.min(),
    "aminmax": lambda x: torch.aminmax(x), "norm1": lambda x: x.norm(1), "norminf": lambda x: x.norm(float("inf")), "nansum": lambda x: x.nansum(),
    "count": lambda x: x.count_nonzero(), "summed32": lambda x: x.sum(dtype=torch.float32), "mean": lambda x: x.mean(), "norm": lambda x: x.norm(),
    "boolsum": lambda x: (x > 0).sum(), "boolmean": lambda x: (x > 0).float().mean(), "intsum": lambda x: x.long().sum(), "logsumexp": lambda x: x.flatten().logsumexp(0),
}  # fmt: skip
ALONG: dict[str, Callable[[Tensor, int], Any]] = {
    "argmax": lambda x, d: x.argmax(d), "max": lambda x, d: x.max(d), "var": lambda x, d: x.var(d), "var_mean": lambda x, d: torch.var_mean(x, d),
    "amax": lambda x, d: x.amax(d), "mean": lambda x, d: x.mean(d), "norm": lambda x, d: x.norm(dim=d), "any": lambda x, d: x.any(d),
    "prod": lambda x, d: x.prod(d), "argmin": lambda x, d: x.argmin(d), "summed32": lambda x, d: x.sum(d, dtype=torch.float32),
    "all": lambda x, d: (x > 0).all(d), "boolsum": lambda x, d: (x > 0).sum(d), "intsum": lambda x, d: x.int().sum(d), "logsumexp": lambda x, d: x.logsumexp(d),
    "aminmax": lambda x, d: torch.aminmax(x, dim=d),
}  # fmt: skip


def reductions(dtype: torch.dtype) -> Iterator[Case]:
    for r, c in MATRICES:
        for d in (0, 1):
            yield of(f"sum{d}", lambda x, d=d: x.sum(d), (r, c), dtype=dtype, grad=False)
    for r, c in ((30000, 500), (900, 800), (9, 200000), (200000, 9), (70000, 64)):
        for name, call in ALONG.items():
            for d in (0, 1):
                yield of(f"{name}{d}", lambda x, d=d, call=call: call(x, d), (r, c), dtype=dtype, grad=False)
        for name, call in FULL.items():
            yield of(name, call, (r, c), dtype=dtype, grad=False)
    for s in IMAGES:
        for dims in ((0, 2, 3), (0, 1), (2, 3), (0, 2), (1,), (0, 1, 2, 3)):
            yield of("sum", lambda x, dims=dims: x.sum(dims), s, dtype=dtype, grad=False)
            yield of(
                "sumlast",
                lambda x, dims=dims: x.to(memory_format=torch.channels_last).sum(dims),
                s,
                dtype=dtype,
                grad=False,
            )
        yield of("var023", lambda x: x.var((0, 2, 3)), s, dtype=dtype, grad=False)
        yield of("amax23", lambda x: x.amax((2, 3)), s, dtype=dtype)
        yield of("norm", lambda x: x.norm(), s, dtype=dtype)
        yield of("mean", lambda x: x.float().square().mean(), s, dtype=dtype)
    yield of("sumt", lambda x: x.t().sum(0), (3000, 4000), dtype=dtype, grad=False)
    yield of("sumslice", lambda x: x[:, 3:900].sum(0), (9000, 1001), dtype=dtype, grad=False)
    yield of("sumslice", lambda x: x[:, :900].sum(1), (9000, 1000), dtype=dtype, grad=False)
    yield of("sumstep", lambda x: x[:, ::2].sum(0), (9000, 1000), dtype=dtype, grad=False)
    yield of("sumpermute", lambda x: x.permute(0, 2, 1, 3).sum((0, 1)), (12, 16, 300, 64), dtype=dtype, grad=False)
    yield "expanded", lambda: ((torch.ones(1, 1, device="cuda", dtype=dtype).expand(9000, 700),), lambda x: x.sum(0))
    yield "expanded", lambda: ((torch.ones(700, device="cuda", dtype=dtype).expand(9000, 700),), lambda x: x.sum(0))
    yield "huge", lambda: ((torch.zeros(3_000_000, 1000, device="cuda", dtype=dtype),), lambda x: x.sum(0))
    yield "huge", lambda: ((torch.zeros(3_000_000, 1000, device="cuda", dtype=dtype),), lambda x: x.sum())
    yield "huge", lambda: ((torch.zeros(1000, 3_000_000, device="cuda", dtype=dtype),), lambda x: x.sum(1))


def normalisations(dtype: torch.dtype) -> Iterator[Case]:
    for s in IMAGES:
        for groups in (1, 4, s[1]):
            yield layer(f"gn{groups}", lambda groups=groups, s=s: nn.GroupNorm(groups, s[1]), *s, dtype=dtype)
        yield layer("gnplain", lambda s=s: nn.GroupNorm(4, s[1], affine=False), *s, dtype=dtype)
        yield layer("bn", lambda s=s: nn.BatchNorm2d(s[1]), *s, dtype=dtype)
        yield layer("in", lambda s=s: nn.InstanceNorm2d(s[1], affine=True), *s, dtype=dtype)
    yield layer("gn1d", lambda: nn.GroupNorm(8, 64), 300, 64, dtype=dtype)
    yield layer("gn1d", lambda: nn.GroupNorm(8, 512), 40, 512, 7, dtype=dtype)
    for r, c in (
        *ROWS,
        (65536, 64),
        (65537, 64),
        (70000, 1024),
        (40000, 32),
        (200000, 32),
        (131072, 128),
        (150000, 96),
        (33000, 768),
        (128, 40),
        (400000, 48),
    ):
        yield layer("ln", lambda c=c: nn.LayerNorm(c), r, c, dtype=dtype)
        yield layer("rms", lambda c=c: nn.RMSNorm(c), r, c, dtype=dtype)
        yield layer("lnplain", lambda c=c: nn.LayerNorm(c, elementwise_affine=False), r, c, dtype=dtype)
    for r, c in ROWS:
        for name, call in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
            for d in (0, 1):
                yield of(f"{name}{d}", lambda x, d=d, call=call: call(x, d), (r, c), dtype=dtype)
            yield of(f"{name}32", lambda x, call=call: call(x, 1, dtype=torch.float32), (r, c), dtype=dtype)
        yield "xent", lambda r=r, c=c: ((rand(r, c, dtype=dtype), ints(c, r)), lambda x, t: F.cross_entropy(x, t))


def moves(dtype: torch.dtype) -> Iterator[Case]:
    for s in IMAGES[:3]:
        yield of("roll1", lambda x: x.roll(3, 2), s, dtype=dtype)
        yield of("roll2", lambda x: x.roll((1, 2), (2, 3)), s, dtype=dtype)
        yield of("roll3", lambda x: x.roll((1, 2, 1), (1, 2, 3)), s, dtype=dtype)
        yield of("rollflat", lambda x: x.roll(5), s, dtype=dtype)
        yield of("dropout", lambda x: F.dropout(x, 0.3), s, dtype=dtype)
        yield of("pad", lambda x: F.pad(x, (1, 2, 3, 1)), s, dtype=dtype)
        yield of("reflect", lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"), s, dtype=dtype)
        yield of("maxpool", lambda x: F.max_pool2d(x, 3, 2, 1), s, dtype=dtype)
        yield of("avgpool", lambda x: F.avg_pool2d(x, 2), s, dtype=dtype)
        yield of("adaptive", lambda x: F.adaptive_avg_pool2d(x, (3, 3)), s, dtype=dtype)
        yield of("adaptivemax", lambda x: F.adaptive_max_pool2d(x, (3, 3)), s, dtype=dtype)
        yield of("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), s, dtype=dtype)
        yield of("bicubic", lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), s, dtype=dtype)
        yield of("nearest", lambda x: F.interpolate(x, scale_factor=2), s, dtype=dtype)
        yield of("gelu", F.gelu, s, dtype=dtype)
        yield of("prelu", lambda x, w: F.prelu(x, w), s, (s[1],), dtype=dtype)
        yield of("lastcat", lambda x: torch.cat([x, x], 1), s, dtype=dtype)
    for n in (1000, 3000, 100000, 3000000):
        yield f"randperm{n}", lambda n=n: ((), lambda: torch.randperm(n, device="cuda"))
        yield of("cumsum", lambda x: x.cumsum(0), (n,), dtype=dtype, grad=False)
        yield of("cumprod", lambda x: x.cumprod(0), (n,), dtype=dtype, grad=False)
        yield of("boolcumsum", lambda x: (x > 0).cumsum(0), (n,), dtype=dtype, grad=False)
    yield of("boolcumsum", lambda x: (x > 0).cumsum(1), (300, 4000), dtype=dtype, grad=False)
    yield of("cumsum0", lambda x: x.cumsum(0), (300, 4000), dtype=dtype)
    yield of("logcumsumexp", lambda x: x.logcumsumexp(1), (300, 4000), dtype=dtype)
    yield of("multinomial", lambda x: x.float().softmax(1).multinomial(1), (30, 4000), dtype=dtype, grad=False)
    yield of("multinomials", lambda x: x.float().softmax(1).multinomial(5), (30, 4000), dtype=dtype, grad=False)
    yield of("cdist", lambda x, y: torch.cdist(x.float(), y.float()), (500, 64), (700, 64), dtype=dtype)
    yield of("glu", F.glu, (500, 64), dtype=dtype)
    yield (
        "many",
        lambda: (
            (),
            lambda: torch._foreach_norm([rand(50 + 7 * i, 300 + i * i, dtype=dtype, grad=False) for i in range(150)]),
        ),
    )
    yield (
        "manylarge",
        lambda: ((), lambda: torch._foreach_norm([rand(3000, 3000, dtype=dtype, grad=False) for i in range(5)])),
    )
    yield (
        "manymax",
        lambda: (
            (),
            lambda: torch._foreach_norm([rand(3000, 3000, dtype=dtype, grad=False) for i in range(5)], float("inf")),
        ),
    )


def searches(dtype: torch.dtype) -> Iterator[Case]:
    sizes = (
        *ROWS,
        (100, 5000),
        (1, 100000),
        (3, 400000),
        (500, 4097),
        (130, 20000),
        (5000, 6000),
        (20, 30000),
        (64, 50257),
    )
    for r, c in sizes:
        yield of("sort", lambda x: x.sort(1)[0], (r, c), dtype=dtype)
        for k in (1, 5, 50):
            yield of(f"topk{k}", lambda x, k=k: x.topk(k, 1)[0], (r, c), dtype=dtype, grad=False)
    yield of("sort0", lambda x: x.sort(0)[0], (900, 700), dtype=dtype)
    yield of("stable", lambda x: x.sort(stable=True, dim=1, descending=True)[0], (900, 700), dtype=dtype)
    yield of("flatsort", lambda x: x.flatten().sort()[0], (900, 700), dtype=dtype)
    yield of("argsort", lambda x: x.argsort(1), (900, 700), dtype=dtype, grad=False)
    yield of("bigk", lambda x: x.topk(5000, 1)[0], (30, 70000), dtype=dtype, grad=False)
    yield of("topk0", lambda x: x.topk(5, 0)[0], (3000, 900), dtype=dtype, grad=False)
    yield of("median", lambda x: x.median(1), (900, 700), dtype=dtype, grad=False)
    yield of("kthvalue", lambda x: x.kthvalue(5, 1), (900, 700), dtype=dtype, grad=False)
    yield "intsort", lambda: ((ints(10000, 400, 6000),), lambda x: x.sort(1))
    yield "intsort", lambda: ((ints(10000, 50000),), lambda x: x.sort())
    for r, c in ROWS[:5]:
        yield of("nonzero", lambda x: (x > 1).nonzero(), (r, c), dtype=dtype, grad=False)
        yield of("masked", lambda x: x[x > 1], (r, c), dtype=dtype)
        yield of("maskedselect", lambda x: x.masked_select(x > 1), (r, c), dtype=dtype)


def indexing(dtype: torch.dtype) -> Iterator[Case]:
    for r, c in (*ROWS, (4096, 256), (3072, 64), (3073, 64), (50000, 1000), (9000, 33), (12345, 700), (300000, 64)):
        for words in (30000, 300, 5):
            yield (
                f"embed{words}",
                lambda r=r, c=c, words=words: (
                    (ints(words, r), nn.Embedding(words, c, device="cuda", dtype=dtype)),
                    lambda i, m: m(i),
                ),
            )
        yield "index", lambda r=r, c=c: ((rand(500, c, dtype=dtype), ints(500, r)), lambda x, i: x[i])
        yield (
            "index2",
            lambda r=r, c=c: ((rand(50, 60, c, dtype=dtype), ints(50, r), ints(60, r)), lambda x, i, j: x[i, j]),
        )
        yield "index3", lambda r=r, c=c: ((rand(c, 500, dtype=dtype), ints(500, r // 4)), lambda x, i: x[:, i])
        yield "select", lambda r=r, c=c: ((rand(500, c, dtype=dtype), ints(500, r)), lambda x, i: x.index_select(0, i))
        yield "gather", lambda r=r, c=c: ((rand(r, c, dtype=dtype), ints(c, r, 3)), lambda x, i: x.gather(1, i))
    yield (
        "embedpad",
        lambda: (
            (ints(500, 9000), nn.Embedding(500, 64, padding_idx=3, device="cuda", dtype=dtype)),
            lambda i, m: m(i),
        ),
    )
    yield (
        "embedscale",
        lambda: (
            (ints(500, 9000), nn.Embedding(500, 64, scale_grad_by_freq=True, device="cuda", dtype=dtype)),
            lambda i, m: m(i),
        ),
    )
    yield "bag", lambda: ((ints(500, 900, 10), nn.EmbeddingBag(500, 64, device="cuda", dtype=dtype)), lambda i, m: m(i))
    yield (
        "put",
        lambda: (
            (rand(500, 64, dtype=dtype, grad=False), ints(500, 900), rand(900, 64, dtype=dtype, grad=False)),
            lambda x, i, y: x.index_put((i,), y),
        ),
    )
    yield "repeat", lambda: ((rand(500, 64, dtype=dtype), ints(5, 500)), lambda x, i: x.repeat_interleave(i, 0))
    yield (
        "scatterreduce",
        lambda: ((rand(500, 64, dtype=dtype), ints(64, 500, 64)), lambda x, i: x.scatter_reduce(1, i, x, "amax")),
    )


KERNELS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)
HEADS = (
    (3, 6, 300, 300, 64), (5, 7, 900, 900, 64), (2, 9, 128, 128, 128), (4, 12, 700, 700, 80), (1, 20, 2000, 2000, 64),
    (6, 5, 77, 1024, 40), (10, 16, 256, 256, 32), (2, 4, 1500, 1500, 256), (1, 1, 4096, 4096, 64), (3, 2, 333, 777, 96),
    (2, 3, 50, 50, 160), (1, 8, 1, 3000, 128), (16, 8, 1, 500, 64), (1, 2, 130, 9000, 128), (2, 8, 4096, 4096, 128),
    (64, 12, 197, 197, 64), (2, 6, 600, 100, 192), (1, 1, 60, 10000, 64),
)  # fmt: skip


def attention(dtype: torch.dtype) -> Iterator[Case]:
    def case(
        name: str,
        kernel: SDPBackend,
        sizes: tuple[int, ...],
        *,
        kv_heads: int = 0,
        turned: bool = False,
        grad: bool = True,
        bias: bool = False,
        **options: Any,
    ) -> Case:
        b, h, q, kv, d = sizes

        def heads(count: int, length: int) -> Tensor:
            if turned:  # as a model makes them: heads split off the end of (batch, length, width)
                return (
                    rand(b, length, count * d, dtype=dtype, grad=False)
                    .view(b, length, count, d)
                    .transpose(1, 2)
                    .requires_grad_(grad)
                )
            return rand(b, count, length, d, dtype=dtype, grad=grad)

        def build() -> tuple[tuple[Any, ...], Callable[..., Any]]:
            mask = rand(b, h, q, kv, dtype=dtype) if bias else None

            def call(x: Tensor, k: Tensor, v: Tensor) -> Tensor:
                with sdpa_kernel(kernel):
                    return F.scaled_dot_product_attention(x, k, v, attn_mask=mask, enable_gqa=kv_heads > 0, **options)

            return (heads(h, q), heads(kv_heads or h, kv), heads(kv_heads or h, kv)), call

        return f"{name}-{kernel.name}", build

    for kernel in KERNELS:
        for sizes in HEADS:
            yield case("plain", kernel, sizes)
            yield case("turned", kernel, sizes, turned=True)
            yield case("infer", kernel, sizes, turned=True, grad=False)
        for sizes in (HEADS[0], HEADS[3], HEADS[7], HEADS[9]):
            yield case("dropout", kernel, sizes, turned=True, dropout_p=0.1)
            if sizes[2] == sizes[3]:
                yield case("causal", kernel, sizes, turned=True, is_causal=True)
            yield case("bias", kernel, sizes, turned=True, bias=True)
        for sizes, kv_heads in (((2, 12, 500, 500, 64), 4), ((3, 8, 300, 300, 128), 1), ((4, 32, 1, 2000, 128), 8)):
            yield case("grouped", kernel, sizes, kv_heads=kv_heads, turned=True)


RECURRENT = (
    (50, 20, 200, 300, 1), (100, 8, 256, 512, 2), (30, 64, 128, 128, 3), (35, 20, 650, 650, 2), (10, 3, 7, 5, 1),
    (1, 20, 200, 300, 1), (51, 20, 200, 300, 1), (50, 40, 200, 300, 1), (50, 20, 210, 300, 1), (50, 20, 200, 310, 1),
    (50, 20, 200, 300, 3), (7, 512, 1024, 1024, 2), (300, 32, 80, 256, 3),
)  # fmt: skip


def recurrent(dtype: torch.dtype, kind: type[nn.RNNBase]) -> Iterator[Case]:
    def case(steps: int, batch: int, inputs: int, hidden: int, layers: int, **options: Any) -> Case:
        def build() -> tuple[tuple[Any, ...], Callable[..., Any]]:
            evaluate = options.pop("evaluate", False)
            module = kind(inputs, hidden, layers, **options, device="cuda", dtype=dtype).train(not evaluate)
            x = (
                rand(batch, steps, inputs, dtype=dtype)
                if options.get("batch_first")
                else rand(steps, batch, inputs, dtype=dtype)
            )
            if not evaluate:
                return (x, module), lambda x, module: module(x)[0]

            def infer(x: Tensor, module: nn.Module) -> Tensor:
                with torch.no_grad():
                    return module(x)[0]

            return (x, module), infer

        return kind.__name__, build

    for sizes in RECURRENT:
        yield case(*sizes)
    for sizes in RECURRENT[:5]:
        yield case(*sizes, bidirectional=True)
        yield case(*sizes, evaluate=True)
    yield case(50, 20, 200, 300, 1, bias=False)
    yield case(50, 20, 200, 300, 2, dropout=0.1)
    yield case(50, 20, 200, 300, 1, batch_first=True)
    if kind is nn.LSTM:
        yield case(50, 20, 200, 300, 1, proj_size=100)


def lstm(dtype: torch.dtype) -> Iterator[Case]:
    yield from recurrent(dtype, nn.LSTM)


def gru(dtype: torch.dtype) -> Iterator[Case]:
    yield from recurrent(dtype, nn.GRU)


def elman(dtype: torch.dtype) -> Iterator[Case]:
    yield from recurrent(dtype, nn.RNN)


FAMILIES = (reductions, normalisations, moves, searches, indexing, attention, lstm, gru, elman)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def others() -> Iterator[Case]:
    for dtype in (torch.float16, torch.float64):
        for r, c in MATRICES[:8]:
            yield of("sum", lambda x: x.sum(0), (r, c), dtype=dtype, grad=False)
        yield of("mean", lambda x: x.mean(), (900, 800), dtype=dtype)
