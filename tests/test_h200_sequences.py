"""Is a trace without a GPU the step that CUDA runs?

tests/data/h200_op_sequences.json.gz holds the ops of 150 steps as an H200 ran them (torch 2.11): phase, module and name
in order, recorded by benchmarks/h200/op_sequences.py, which also compares shapes and types. Here every one of those
steps is traced again on meta tensors with the torch at hand, and must give the same ops in the same modules and order.
Views, which run nothing and which torch versions write differently, are left out of the comparison.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rooflight.models import build
from rooflight.trace import TraceOptions, trace

HERE = Path(__file__).parent
RECORDED = json.loads(gzip.decompress((HERE / "data" / "h200_op_sequences.json.gz").read_bytes()))

# Rows that run nothing: views, aliases, Python numbers becoming tensors, memory taken, a value read by the host.
SILENT = set(
    """view _unsafe_view t transpose permute expand detach select slice squeeze unsqueeze split split_with_sizes unbind
    unsafe_split alias as_strided _reshape_alias set_ lift_fresh scalar_tensor _local_scalar_dense empty empty_like
    new_empty new_empty_strided empty_strided""".split()
)
SAME = {"new_zeros": "zeros"}

# What is known to differ, and why.
DIFFERS = {
    "word-lm": "on CUDA nn.TransformerEncoder itself compares the mask with a causal one; without data the model does",
    "torchvision:swin_t": "assigning a Python number to a slice is fill_ on CUDA and copy_ on meta",
    "small_models:lstm": "the state of cuDNN's dropout is made by three ops that have no form without data",
}


def known_difference(case):
    arguments = case["arguments"]
    if case["model"] == "small_models:lstm" and (arguments["step"], arguments["dtype"]) != ("train", "fp32"):
        return None  # inference has no dropout, and the second training run finds the state made
    return DIFFERS.get(case["model"])


def spoken(rows):
    """(phase, module, name without overload) of the rows that run something."""
    found = []
    for row in rows:
        phase, module, name = row.split(" ")
        short = name.removeprefix("aten::").partition(".")[0]
        if short not in SILENT:
            found.append((phase, module, SAME.get(short, short)))
    return found


def traced(case):
    family, _, name = case["model"].partition(":")
    spec = f"{HERE / 'small_models.py'}:{name}" if family == "small_models" else case["model"]
    ledger = trace(build(spec, **case["arguments"]), TraceOptions(**case["options"]))
    return spoken(f"{op.phase[0]} {op.module} {op.name}" for op in ledger.ops)


def label(case):
    arguments = {**case["arguments"], **case["options"]}
    return f"{case['model']}-" + "-".join(str(value) for value in arguments.values() if not isinstance(value, dict))


EQUAL = [case for case in RECORDED["cases"] if known_difference(case) is None]
OTHERS = [case for case in RECORDED["cases"] if known_difference(case) is not None]


def test_what_was_recorded():
    assert RECORDED["gpu"] == "NVIDIA H200"
    assert (len(EQUAL), len(OTHERS)) == (143, 7)


@pytest.mark.parametrize("case", EQUAL, ids=map(label, EQUAL))
def test_the_trace_is_what_the_gpu_ran(case):
    assert traced(case) == spoken(case["ops"])


@pytest.mark.parametrize("case", OTHERS, ids=map(label, OTHERS))
def test_known_differences_are_still_there(case):
    """One that has gone should leave the list."""
    assert traced(case) != spoken(case["ops"])
