"""Which micro-benchmarks are run, and for what part of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rooflight.calibration import attention, convolution, elements, gemm, indexed, recurrent
from rooflight.calibration.case import Cases, precision_set

_KERNELS_OF = {"fp32": ("efficient",), "bf16": ("cudnn", "flash"), "fp16": ()}
"""Which attention kernels are timed in which precision; what holds for bf16 is taken to hold for fp16."""
_CONVOLUTION = {"tf32": 18, "bf16": 19, "fp32": 3}
_CHANNELS_LAST = {"tf32": 10, "bf16": 18, "fp32": 2}
_ROWS = ("softmax-forward", "softmax-backward", "layer-norm-forward", "layer-norm-backward")


@dataclass(frozen=True)
class Chapter:
    """Cases that share a part of the time. They come in an order that covers their space however soon it ends."""

    name: str
    cases: Cases
    share: float
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Of torch, for as long as the chapter lasts: it belongs to the process, not to a thread."""
    chosen: bool = False
    """A library chooses, loads or compiles a kernel for every case, and that takes longer than the case."""


def gpu_plan(peaks: dict[str, float], *, largest: int, longest_s: float) -> list[Chapter]:
    """`peaks`: FLOP/s by precision, those that the device has; `largest`: elements of the largest tensor."""
    plan: list[Chapter] = []
    for number, (precision, peak) in enumerate(sorted(peaks.items())):
        weight = {"fp32": 1.0, "tf32": 0.6, "bf16": 1.0, "fp16": 0.4}.get(precision, 0.2)
        # Channels last are few for their time: cuDNN compiles a kernel for most of them, for a fifth of a second.
        shares = (7 * weight, 1.6 * weight, _CONVOLUTION.get(precision, 1), _CHANNELS_LAST.get(precision, 1))
        products = _product_cases(precision, peak, number, longest_s)[: 2 if precision == "fp16" else 4]
        for (name, cases), share in zip(products, shares, strict=False):
            plan.append(Chapter(name, cases, share, partial(precision_set, precision), chosen=True))
        for name, cases, share in _thin_cases(precision, peak, number, longest_s):
            plan.append(Chapter(name, cases, share, partial(precision_set, precision), chosen=True))
        for place, kernel in enumerate(("cudnn", "flash", "efficient")):
            if kernel in _KERNELS_OF.get(precision, ()):
                # cuDNN compiles a kernel for every shape, for about a second.
                share = 20 if kernel == "cudnn" else 4
                for (name, cases), of_share in zip(
                    _attention_cases(kernel, precision, peak, 3 * number + place, longest_s), (1, 0.3), strict=True
                ):
                    setting = partial(attention.kernel_set, kernel)
                    plan.append(Chapter(name, cases, of_share * share, setting, chosen=True))
    return plan + memory_plan(largest, cuda=True)


def cpu_plan(peaks: dict[str, float], *, largest: int, longest_s: float) -> list[Chapter]:
    """The same for a processor: no tensor cores, no kernels to choose among for attention."""
    plan: list[Chapter] = []
    for number, (precision, peak) in enumerate(sorted(peaks.items())):
        products = _product_cases(precision, peak, number, longest_s)
        plan += [Chapter(*named, share) for named, share in zip(products, (12, 4, 20, 6), strict=True)]
        attended = _attention_cases("flash", precision, peak, number, longest_s, largest_cache=1e8)
        setting = partial(attention.kernel_set, "flash")
        plan += [Chapter(*named, share, setting) for named, share in zip(attended, (6, 3), strict=True)]
    return plan + memory_plan(largest, cuda=False)


def _product_cases(precision: str, peak: float, number: int, longest_s: float) -> list[tuple[str, Cases]]:
    """By name; `number` is the precision's among those of the device."""
    convolutions = partial(convolution.convolution_cases, precision, peak)
    return [
        (f"gemm {precision}", gemm.gemm_cases(precision, peak, 10 + number, longest_s)),
        (f"batched gemm {precision}", gemm.batched_cases(precision, peak, 20 + number, longest_s)),
        (f"convolution {precision}", convolutions(30 + number, longest_s, channels_last=False)),
        (f"convolution {precision}, channels last", convolutions(40 + number, longest_s, channels_last=True)),
    ]


_THIN = {"tf32": 1.0, "bf16": 1.0, "fp32": 0.5, "fp16": 0.3}


def _thin_cases(precision: str, peak: float, number: int, longest_s: float) -> Iterator[tuple[str, Cases, float]]:
    """Convolutions of little work for each byte or launch: gates, layers of few samples, depthwise and grouped ones."""
    weight = _THIN.get(precision, 0.0)
    if not weight:
        return
    yield f"gates {precision}", convolution.gate_cases(precision, peak, 170 + number, longest_s), weight
    kinds = (("pointwise", convolution.pointwise_cases, 4), ("depthwise", convolution.depthwise_cases, 3),
             ("grouped", convolution.grouped_cases, 4), ("few groups in", convolution.few_groups_cases, 3))  # fmt: skip
    for sides, name in ((1, "sequences"), (2, "odd images"), (3, "volumes")):
        some = convolution.odd_cases(sides, precision, peak, 240 + 10 * sides + number, longest_s)
        yield f"convolutions of {name} {precision}", some, 2 * weight
        if sides != 2:
            usual = convolution.layer_cases(sides, precision, peak, 245 + 10 * sides + number, longest_s)
            yield f"layers of {name} {precision}", usual, 3 * weight
    yield f"recurrent {precision}", recurrent.recurrent_cases(precision, peak, 285 + number, longest_s), 2 * weight
    yield f"vectors {precision}", gemm.vector_cases(precision, peak, 280 + number, longest_s), 0.5 * weight
    for place, (name, cases, share) in enumerate(kinds):
        for last in (False, True):
            some = cases(precision, peak, 180 + 20 * place + 10 * last + number, longest_s, channels_last=last)
            layout = ", channels last" if last else ""
            yield f"{name} convolutions {precision}{layout}", some, weight * share * (0.4 if last else 1.0)


def _attention_cases(
    kernel: str, precision: str, peak: float, seed: int, longest_s: float, *, largest_cache: float = 2.2e9
) -> list[tuple[str, Cases]]:
    """`largest_cache`: bytes of keys and values. On a GPU one more byte beyond is as fast as the last."""
    cached = attention.cached_cases(kernel, precision, peak, 70 + seed, longest_s, largest_cache)
    return [
        (f"{kernel} attention {precision}", attention.attention_cases(kernel, precision, peak, 50 + seed, longest_s)),
        (f"{kernel} attention to a cache {precision}", cached),
    ]


def memory_plan(largest: int, *, cuda: bool) -> list[Chapter]:
    """Everything that is bound by bytes."""
    plan = [
        Chapter("elementwise", elements.elementwise_cases(100, largest), 3),
        Chapter("broadcast", elements.broadcast_cases(101, largest), 1),
        Chapter("factors of another width", elements.mixed_cases(106, largest), 0.5),
        Chapter("strided copies", elements.strided_cases(102, largest), 1.5),
        Chapter("dropout", elements.dropout_cases(103, largest), 0.5),
        Chapter("cat", elements.cat_cases(104, largest), 1.5),
        Chapter("reductions", elements.reduce_cases(105, largest), 2),
        Chapter("losses", elements.nll_cases(107, largest), 0.3),
    ]
    for n, family in enumerate(("reduce", "reduce-norm", "reduce-index", "scan")):
        if family != "reduce":
            plan.append(Chapter(family, elements.reduce_cases(290 + n, largest, family), 0.6))
        plan.append(Chapter(f"short {family}", elements.short_reduce_cases(family, 295 + n, largest), 0.6))
    plan += [Chapter(f, elements.rows_cases(f, 110 + n, largest), 2 if "norm" in f else 1) for n, f in enumerate(_ROWS)]
    for n, family in enumerate(("group-norm-forward", "group-norm-backward")):
        plan.append(Chapter(family, elements.group_norm_cases(family, 120 + n, largest), 0.3))
    for kind in ("cudnn", "native"):
        for n, way in enumerate(("train", "eval", "backward")):
            family = f"batch-norm-{kind}-{way}"
            plan.append(Chapter(family, elements.batch_norm_cases(family, 130 + n, largest, cuda=cuda), 0.8))
    for n, way in enumerate(("forward", "backward")):
        plan.append(Chapter(f"embedding {way}", indexed.embedding_cases(f"embedding-{way}", 140 + n, largest), 0.8))
        for place, kind in enumerate(("max", "avg")):
            family = f"{kind}-pool-{way}"
            plan.append(Chapter(family, elements.pool_cases(family, 150 + 2 * n + place, largest), 0.8))
            volumes = f"{kind}-pool3d-{way}"
            if cuda:  # not all of them are there in 16 bits on a processor
                plan.append(Chapter(volumes, elements.volume_pool_cases(volumes, 155 + 2 * n + place, largest), 0.4))
    for n, family in enumerate(indexed.INDEXED):
        plan.append(Chapter(family, indexed.indexed_cases(family, 170 + n, largest), 0.5))
    plan.append(Chapter("foreach", elements.foreach_cases(160, largest), 3))
    if cuda:
        for n, family in enumerate(("fused-sgd", "fused-adam")):
            plan.append(Chapter(family, elements.fused_cases(family, 161 + n, largest), 1))
    return plan
