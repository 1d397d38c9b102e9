"""Which micro-benchmarks are run, and for what part of the time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from rooflight.calibration import attention, convolution, elements, gemm
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

    def add(name: str, cases: Cases, share: float) -> None:
        plan.append(Chapter(name, cases, share, partial(precision_set, precision), chosen=True))

    for number, (precision, peak) in enumerate(sorted(peaks.items())):
        weight = {"fp32": 1.0, "tf32": 0.6, "bf16": 1.0, "fp16": 0.4}.get(precision, 0.2)
        add(f"gemm {precision}", gemm.gemm_cases(precision, peak, 10 + number, longest_s), 7 * weight)
        add(f"batched gemm {precision}", gemm.batched_cases(precision, peak, 20 + number, longest_s), 1.6 * weight)
        if precision == "fp16":
            continue
        # Channels last are few for their time: cuDNN compiles a kernel for most of them, for a fifth of a second.
        for layout, last, shares in (("", False, _CONVOLUTION), (", channels last", True, _CHANNELS_LAST)):
            cases = convolution.convolution_cases(
                precision, peak, 30 + 10 * last + number, longest_s, channels_last=last
            )
            add(f"convolution {precision}{layout}", cases, shares.get(precision, 1))
        for place, kernel in enumerate(("cudnn", "flash", "efficient")):
            if kernel in _KERNELS_OF.get(precision, ()):
                cases = attention.attention_cases(kernel, precision, peak, 50 + 3 * number + place, longest_s)
                # cuDNN compiles a kernel for every shape, for about a second.
                share = 20 if kernel == "cudnn" else 4
                kernel_set = partial(attention.kernel_set, kernel)
                plan.append(Chapter(f"{kernel} attention {precision}", cases, share, kernel_set, chosen=True))
                cases = attention.cached_cases(kernel, precision, peak, 70 + 3 * number + place, longest_s)
                plan.append(
                    Chapter(f"{kernel} attention to a cache {precision}", cases, 0.3 * share, kernel_set, chosen=True)
                )
    return plan + memory_plan(largest, cuda=True)


def cpu_plan(peaks: dict[str, float], *, largest: int, longest_s: float) -> list[Chapter]:
    """The same for a processor: no tensor cores, no kernels to choose among for attention."""
    plan: list[Chapter] = []
    for number, (precision, peak) in enumerate(sorted(peaks.items())):
        plan += [
            Chapter(f"gemm {precision}", gemm.gemm_cases(precision, peak, 10 + number, longest_s), 12),
            Chapter(f"batched gemm {precision}", gemm.batched_cases(precision, peak, 20 + number, longest_s), 4),
            Chapter(
                f"convolution {precision}",
                convolution.convolution_cases(precision, peak, 30 + number, longest_s, channels_last=False),
                20,
            ),
            Chapter(
                f"convolution {precision}, channels last",
                convolution.convolution_cases(precision, peak, 40 + number, longest_s, channels_last=True),
                6,
            ),
            Chapter(
                f"flash attention {precision}",
                attention.attention_cases("flash", precision, peak, 50 + number, longest_s),
                6,
                partial(attention.kernel_set, "flash"),
            ),
            Chapter(
                f"flash attention to a cache {precision}",
                attention.cached_cases("flash", precision, peak, 70 + number, longest_s, largest=1e8),
                3,
                partial(attention.kernel_set, "flash"),
            ),
        ]
    return plan + memory_plan(largest, cuda=False)


def memory_plan(largest: int, *, cuda: bool) -> list[Chapter]:
    """Everything that is bound by bytes."""
    plan = [
        Chapter("elementwise", elements.elementwise_cases(100, largest), 3),
        Chapter("broadcast", elements.broadcast_cases(101, largest), 1),
        Chapter("strided copies", elements.strided_cases(102, largest), 1.5),
        Chapter("dropout", elements.dropout_cases(103, largest), 0.5),
        Chapter("cat", elements.cat_cases(104, largest), 1.5),
        Chapter("reductions", elements.reduce_cases(105, largest), 2),
    ]
    plan += [Chapter(f, elements.rows_cases(f, 110 + n, largest), 2 if "norm" in f else 1) for n, f in enumerate(_ROWS)]
    for n, family in enumerate(("group-norm-forward", "group-norm-backward")):
        plan.append(Chapter(family, elements.group_norm_cases(family, 120 + n, largest), 0.3))
    for kind in ("cudnn", "native"):
        for n, way in enumerate(("train", "eval", "backward")):
            family = f"batch-norm-{kind}-{way}"
            plan.append(Chapter(family, elements.batch_norm_cases(family, 130 + n, largest, cuda=cuda), 0.8))
    for n, way in enumerate(("forward", "backward")):
        plan.append(Chapter(f"embedding {way}", elements.embedding_cases(f"embedding-{way}", 140 + n, largest), 0.8))
        for place, kind in enumerate(("max", "avg")):
            family = f"{kind}-pool-{way}"
            plan.append(Chapter(family, elements.pool_cases(family, 150 + 2 * n + place, largest), 0.8))
    plan.append(Chapter("foreach", elements.foreach_cases(160, largest), 3))
    if cuda:
        for n, family in enumerate(("fused-sgd", "fused-adam")):
            plan.append(Chapter(family, elements.fused_cases(family, 161 + n, largest), 1))
    return plan
