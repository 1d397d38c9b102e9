"""The quantities that a table may claim something of: the metrics that have spellings (`rooflight.metrics`), and what
only tables of people have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rooflight.analysis.finding import Finding
from rooflight.hardware.counter_names import meant_counter
from rooflight.measurement.cupti.cupti import Host
from rooflight.metrics import METRICS

KindName = Literal["measured", "estimated"]
"""Whether a run gave a number, or mathematics."""


@dataclass(frozen=True)
class ClaimQuantity:
    """One that can be claimed: a metric that has spellings, or what only tables of people have."""

    name: str
    unit: str
    """The base unit it is counted in, as `rooflight.units` has it; or `counter`, `shape`, `word`."""
    about: str
    spelled: tuple[str, ...] = ()
    metric: str = ""
    """Its name in `rooflight.metrics`."""


_RENAMED = {
    "wall_time_s": "wall_time", "gpu_busy_s": "gpu_busy", "kernel_time_s": "kernel_time", "flops_per_s": "performance",
    "dram_bytes_per_s": "traffic", "device_bytes": "gpu_memory_bytes", "percent_of_roof": "roof_share",
}  # fmt: skip
"""Metrics that tables know by another name."""
_UNITS = {"macs": "mac", "percent_of_roof": "part"}
"""Metrics that are stated in another unit than they are told in."""
_ONLY_IN_TABLES: dict[str, tuple[str, str, str]] = {
    # What a layer costs, and what it is.
    "ops": ("flop", "matrix FLOPs, or the other ones of a layer that has none", "operations; total ops; op count"),
    "share": ("part", "part of the model's matrix FLOPs",
              "share of flops; flop share; flops share; fraction; flops fraction; percent of flops; fraction of flops; "
              "% of total; % of flops; % flops; flops %; percent of total; % of total flops; share of total; share %"),
    "trainable_params": ("count", "parameters that are trained", "trainable params; trainable parameters"),
    "param_bytes": ("byte", "bytes of the parameters",
                    "parameter bytes; param bytes; params size; parameter size; param size; parameter memory; "
                    "theoretical memory"),
    "model_bytes": ("byte", "bytes of parameters and buffers", "model bytes; model size"),
    "output_shape": ("shape", "shape of what it gives", "output shape; shape; output"),
    "output_size": ("count", "height (= width) of what it gives",
                    "output size; output image size; output width; output height; output features"),
    "output_elements": ("count", "elements of what it gives", "output elements; outputs; neurons"),
    "output_bytes": ("byte", "bytes of what it gives",
                     "output bytes; output tensor; output memory; activation size; size increase"),
    "input_features": ("count", "last size of what it gets", "input features; in features; in_features; input width"),
    "input_bytes": ("byte", "bytes of what it gets", "input bytes; input tensor"),
    "weight_output_bytes": ("byte", "bytes of its parameters and of what it gives",
                            "weight + output bytes; weights + output bytes; output + parameter bytes; "
                            "parameter + output bytes; output + weight bytes; weight+output bytes"),
    "layers": ("count", "how many there are",
               "layer count; number of layers; conv layers; convolutional layers; linear layers; fc layers; depth"),
    "batch": ("count", "samples a step works on", "batch size"),
    # The memory lines of a model summary.
    "input_size": ("byte", "bytes of the step's inputs", "input size"),
    "input_shape": ("shape", "shape of the step's input; of a picture its height (= width) alone too",
                    "input shape; image size; img size; image resolution; input resolution; resolution; "
                    "input image size; infer img size; input dimensions; input dim"),
    "forward_backward_bytes": ("byte", "every output twice, once for its gradient",
                               "forward/backward size; forward/backward pass size; forward/backward pass"),
    "total_size": ("byte", "inputs, parameters, and every output twice",
                   "total size; estimated total size; estimated total; total memory by summary"),
    # Memory of a step.
    "kept_bytes": ("byte", "activations kept for backward", "activations; activation bytes; kept for backward"),
    "activation_gradient_bytes": ("byte", "gradients of the activations, all that backward makes",
                                  "errors; activation gradients; gradients of activations; error bytes"),
    "gradient_bytes": ("byte", "gradients of the parameters", "gradients; gradient bytes"),
    "optimizer_bytes": ("byte", "optimizer state", "optimizer state; momentum; optimizer bytes"),
    "op_allocated_bytes": ("byte", "output and workspace together",
                           "allocation size; allocated by the op; allocation; output + workspace"),
    "self_growth_bytes": ("byte", "output minus the workspace that was given back", "self size increase; self growth"),
    "memory": ("byte", "memory that does not say whose",
               "mem; memory size; memory usage; vram; vram usage; gpu mem; gpu mem."),
    # Of a run.
    "cuda_flops": ("flop", "fadd + fmul + 2 x ffma: the CUDA cores alone",
                   "cuda flops; cuda-core flops; cuda core flops; fadd+fmul+2*ffma; fadd + fmul + 2*ffma; "
                   "fadd + fmul + 2 x ffma"),
    "tensor_flops": ("flop", "what the tensor cores executed", "tensor flops; tensor-core flops; tensor core flops"),
    "time": ("second", "a time that does not say whose",
             "runtime; run time; inference time; step time; latency; duration"),
    # Devices.
    "peak": ("flop/second", "most FLOP/s of a unit in a precision",
             "peak flop/s; peak performance; peak flops; roof; roof height; peak compute"),
    "bandwidth": ("byte/second", "of the device's own memory",
                  "memory bandwidth; peak bandwidth; dram bandwidth; hbm bandwidth"),
    "gpu_link": ("byte/second", "between two GPUs",
                 "nvlink; nvlink bandwidth; gpu-gpu bandwidth; gpu to gpu bandwidth"),
    "host_link": ("byte/second", "between GPU and CPU",
                  "pcie; pcie bandwidth; gpu-cpu bandwidth; gpu to cpu bandwidth; host bandwidth"),
    # Conclusions.
    "bound": ("word", "compute, memory or host; of a layer also why it is far from its roof: cache or latency",
              "bound by; verdict; bottleneck"),
    "side": ("word", "of the ridge: memory (left) or compute (right)", "side of the ridge; ridge side"),
    "preferred": ("word", "the device that is the faster one",
                  "preferred device; faster device; faster; best device; better device"),
    "ratio": ("times", "one quantity by another: `a / b`", ""),
}  # fmt: skip


def _quantities() -> Iterator[ClaimQuantity]:
    for metric in METRICS.values():
        if metric.spelled:
            name, unit = _RENAMED.get(metric.name, metric.name), _UNITS.get(metric.name, metric.unit)
            yield ClaimQuantity(name, unit, metric.about, tuple(metric.spelled.split("; ")), metric.name)
    for name, (unit, about, spelled) in _ONLY_IN_TABLES.items():
        yield ClaimQuantity(name, unit, about, tuple(filter(None, spelled.split("; "))))


QUANTITIES: dict[str, ClaimQuantity] = {quantity.name: quantity for quantity in _quantities()}
METRIC = re.compile(r"[a-z][a-z0-9]*__[a-z0-9_]+(?:\.[a-z0-9_]+)*")
"""How Nsight Compute names its counters."""
COUNTER = ClaimQuantity("counter", "counter", "a hardware counter by its own name")


def misspelt_counter(name: str, measured: frozenset[str]) -> Finding | None:
    """The counter that was meant, where there is none by that name but one with a letter or two less or more."""
    meant = meant_counter(name, measured)
    if meant is None or _exists(name.partition(".")[0]):
        return None
    return Finding("metric-misspelt", f"there is no counter {name}: it is {meant}; Nsight Compute reports n/a", meant)


def _exists(base: str) -> bool:
    """Does NVIDIA's own table have it, where that is installed?"""
    try:
        with Host("GH100") as host:
            return host.is_known(f"{base}.sum")
    except Exception:  # no library, or one that wants a driver: the near names decide
        return False
