"""How each tool is asked. Every function gets a model with its inputs, and gives what the tool says of it."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional as F

from peers.cases import Case
from rooflight.models.workload import Workload

Tensors = Literal["meta", "fake", "cpu"]


@dataclass(frozen=True)
class Answer:
    """What a tool says; `None` where it says nothing."""

    macs: int | None = None
    ops: int | None = None
    peak_bytes: int | None = None
    time_s: float | None = None
    """Of the part that counts, where a tool was asked for more than it would be in use."""


@dataclass(frozen=True)
class Tool:
    """A tool, the package whose version counts, and how its number becomes multiply-adds (MACs)."""

    key: str
    title: str
    package: str
    convention: str
    ask: Callable[[Workload, Case], Answer]


def _rooflight(workload: Workload, case: Case) -> Answer:
    import rooflight

    training = {} if case.optimizer is None else {"loss": "mse", "optimizer": case.optimizer}
    ledger = rooflight.estimate(workload.model, *workload.args, step=workload.step, **training)
    return Answer(macs=sum(op.cost.macs or 0 for op in ledger.ops if op.cost is not None), ops=len(ledger.ops))


def _flop_counter_mode(workload: Workload, case: Case) -> Answer:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        output = workload.model(*workload.args)
        if case.optimizer is not None:
            _loss(output).backward()
    return Answer(macs=counter.get_total_flops() // 2)


def _torchinfo(workload: Workload, case: Case) -> Answer:
    import torchinfo

    inputs = workload.args
    summary = torchinfo.summary(workload.model, input_data=inputs, device=inputs[0].device, verbose=0)
    return Answer(macs=summary.total_mult_adds)


def _fvcore(workload: Workload, case: Case) -> Answer:
    import logging

    from fvcore.nn import FlopCountAnalysis

    logging.disable(logging.WARNING)
    with _sizes_are_numbers():
        return Answer(macs=int(FlopCountAnalysis(workload.model, workload.args).total()))


@contextlib.contextmanager
def _sizes_are_numbers() -> Iterator[None]:
    """fvcore traces with torch.jit, for which `shape[2] > 1` is a tensor; Hugging Face's models convert it as here."""
    original = F.scaled_dot_product_attention

    def attention(*args: Any, is_causal: Any = False, enable_gqa: Any = False, **options: Any) -> torch.Tensor:
        return original(*args, is_causal=bool(is_causal), enable_gqa=bool(enable_gqa), **options)

    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


def _ptflops(backend: str) -> Callable[[Workload, Case], Answer]:
    def ask(workload: Workload, case: Case) -> Answer:
        from ptflops import get_model_complexity_info

        data = workload.args[0]
        said = io.StringIO()  # it prints its failures and returns None
        with contextlib.redirect_stdout(said):
            macs, _ = get_model_complexity_info(
                workload.model, tuple(data.shape[1:]), input_constructor=lambda _: data, as_strings=False,
                print_per_layer_stat=False, backend=backend,
            )  # fmt: skip
        if macs is None:
            raise RuntimeError(said.getvalue().partition("exception:")[2].strip() or "gave no answer")
        return Answer(macs=int(macs))

    return ask


def _calflops(workload: Workload, case: Case) -> Answer:
    from calflops import calculate_flops

    _, macs, _ = calculate_flops(
        workload.model, args=list(workload.args), output_as_string=False, print_results=False, print_detailed=False
    )
    return Answer(macs=int(macs))


def _deepspeed(workload: Workload, case: Case) -> Answer:
    from deepspeed.profiling.flops_profiler import get_model_profile

    _, macs, _ = get_model_profile(
        workload.model, args=list(workload.args), print_profile=False, detailed=False, as_string=False, warm_up=0
    )
    return Answer(macs=int(macs))


def mem_tracker(workload: Workload, case: Case, *, steps: int = 1) -> Answer:
    """The peak of so many steps. The first makes the optimizer's state; the time is that of the first alone."""
    from torch.distributed._tools.mem_tracker import MemTracker

    start = time.perf_counter()
    model = workload.model
    optimizer = None if case.optimizer is None else OPTIMIZERS[case.optimizer](model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, *(() if optimizer is None else (optimizer,)), *workload.args)
    with tracker:
        for number in range(steps):
            if number:
                tracker.reset_mod_stats()  # it refuses a second step without
            output = model(*workload.args)
            if optimizer is not None:
                _loss(output).backward()
                optimizer.step()
                optimizer.zero_grad()
            if not number:
                time_s = time.perf_counter() - start
    peak = tracker.get_tracker_snapshot("peak")
    return Answer(peak_bytes=sum(parts["Total"] for parts in peak.values()), time_s=time_s)


def mem_tracker_as_cuda(workload: Workload, case: Case, *, steps: int = 1) -> Answer:
    """The same, with attention and dropout as CUDA would run them: shows what the kernels of meta tensors add."""
    from rooflight.trace.dispatch import dispatch_as
    from rooflight.trace.target import parse_target

    with dispatch_as(parse_target("cuda")):
        return mem_tracker(workload, case, steps=steps)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True),
}
"""As CUDA would run them: foreach is its default."""


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


_ALL = (
    Tool("rooflight", "rooflight", "rooflight", "MACs of its rows", _rooflight),
    Tool("flop-counter-mode", "FlopCounterMode", "torch", "its FLOPs / 2 (it counts 2 for a multiply-add)",
         _flop_counter_mode),
    Tool("torchinfo", "torchinfo", "torchinfo", "its mult-adds", _torchinfo),
    Tool("fvcore", "fvcore", "fvcore", "its flops (it counts 1 for a multiply-add)", _fvcore),
    Tool("ptflops", "ptflops (pytorch)", "ptflops", "its MACs, default backend", _ptflops("pytorch")),
    Tool("ptflops-aten", "ptflops (aten)", "ptflops", "its MACs, aten backend", _ptflops("aten")),
    Tool("calflops", "calflops", "calflops", "its MACs", _calflops),
    Tool("deepspeed", "DeepSpeed profiler", "deepspeed", "its MACs, without its warm-up pass", _deepspeed),
    Tool("mem-tracker", "MemTracker", "torch", "counts no operations", mem_tracker),
    Tool("mem-tracker-cuda", "MemTracker, on rooflight's stand-ins for CUDA's kernels", "torch", "counts no operations",
         mem_tracker_as_cuda),
)  # fmt: skip

TOOLS = {tool.key: tool for tool in _ALL}
FORWARD_PEERS = ("flop-counter-mode", "torchinfo", "fvcore", "ptflops", "ptflops-aten", "calflops", "deepspeed")
