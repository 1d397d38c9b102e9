"""Is a trace without a GPU the step that CUDA runs?

tests/data/h200_op_sequences.json.gz holds the ops of 150 steps as an H200 ran them (torch 2.11): phase, module and name
in order, recorded by benchmarks/h200/op_sequences.py, which also compares shapes and types. Here every one of those
steps is traced again on meta tensors with the torch at hand, and must give the same ops in the same modules and order.
Views, which run nothing and which torch versions write differently, are left out of the comparison.
"""

from __future__ import annotations

import gzip
import json

import pytest

from rooflight.models import build
from rooflight.trace import TraceOptions, trace
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.torch_versions import VERSION

RECORDED = json.loads(gzip.decompress((DATA / "h200_op_sequences.json.gz").read_bytes()))

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
DROPOUT_STATE = ("random_", "_cudnn_init_dropout_state")  # and an `empty`, which is silent


def known_difference(case):
    # Inference has no dropout. Every training run makes the state anew, not only the first of the process: a run on the
    # GPU puts the random state back when it is over, and torch makes cuDNN's state again after a generator was set.
    if case["model"] == "small_models:lstm" and case["arguments"]["step"] != "train":
        return None
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
    spec = f"{ROOT / 'tests' / 'fixtures' / 'small_models.py'}:{name}" if family == "small_models" else case["model"]
    ledger = trace(build(spec, **case["arguments"]), TraceOptions(**case["options"]))
    return spoken(f"{op.phase[0]} {op.module} {op.name}" for op in ledger.ops)


def label(case):
    arguments = {**case["arguments"], **case["options"]}
    return f"{case['model']}-" + "-".join(str(value) for value in arguments.values() if not isinstance(value, dict))


EQUAL = [case for case in RECORDED["cases"] if known_difference(case) is None]
OTHERS = [case for case in RECORDED["cases"] if known_difference(case) is not None]


def test_what_was_recorded():
    assert RECORDED["gpu"] == "NVIDIA H200"
    assert (len(EQUAL), len(OTHERS)) == (142, 8)


SLICING = (
    "vit-b-16", "gpt2", "llama3-8b", "mixtral-8x7b", "timm:vit_tiny_patch16_224", "hf:gpt2",
)  # fmt: skip


@pytest.mark.parametrize("case", EQUAL, ids=map(label, EQUAL))
def test_the_trace_is_what_the_gpu_ran(case):
    if case["model"] == "small_models:convolutions_channels_last" and VERSION >= (2, 14):
        pytest.skip("recorded with torch 2.11; from 2.14 on group_norm takes channels last as they are")
    if VERSION < (2, 11) and case["arguments"]["step"] == "train" and case["model"] in SLICING:
        pytest.skip("before 2.11 a slice that takes everything is an op, and has a backward")
    assert traced(case) == spoken(case["ops"])


@pytest.mark.parametrize("case", OTHERS, ids=map(label, OTHERS))
def test_known_differences_are_still_there(case):
    """One that has gone should leave the list."""
    assert traced(case) != spoken(case["ops"])


LSTMS = [case for case in OTHERS if case["model"] == "small_models:lstm"]


@pytest.mark.parametrize("case", LSTMS, ids=map(label, LSTMS))
def test_nothing_but_the_state_of_dropout_differs(case):
    assert len(LSTMS) == 2  # fp32 and bf16
    rows = spoken(case["ops"])
    assert [name for _, _, name in rows if name in DROPOUT_STATE] == [*DROPOUT_STATE]
    assert [row for row in rows if row[2] not in DROPOUT_STATE] == traced(case)
