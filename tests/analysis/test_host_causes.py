"""What the GPU waited for: gaps between kernels by what the host did, by hand and on steps of an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
import torch

import rooflight
from rooflight.analysis.host_causes import (
    ALL,
    ALLOCATOR,
    AUTOGRAD,
    DATA,
    EDGES,
    HOST,
    LAUNCHING,
    PYTHON,
    QUEUED,
    WAITS,
    explain_host,
)
from rooflight.files import load
from rooflight.ledger import FORMAT_VERSION, HostCall, Kernel, Ledger, Op
from rooflight.profiles import read
from rooflight.profiles.host_calls import host_calls, kind_of
from rooflight.profiles.kineto import decode
from rooflight.recordings import PREFIX
from tests.fixtures.explained_ledgers import RECORDINGS, ledger
from tests.fixtures.measured_ledgers import HEADER

US = 1e-6


def op(index, name, phase="forward", line=""):
    return Op(index=index, phase=phase, module="", call=0, name=name, ordinal=0, precision="fp32", line=line)


def ran(op, start, took, launched=None):
    """In microseconds."""
    launch = None if launched is None else launched * US
    return Kernel(name="k", ops=(op,), start_s=start * US, time_s=took * US, launch_s=launch, launch_time_s=2 * US)


OPS = (op(0, "aten::mm"), op(1, "aten::_local_scalar_dense", line="train/loop.py:7"), op(2, "aten::relu"),
       op(3, "aten::mm", "backward"))  # fmt: skip


def step(kernels, *calls):
    return Ledger(format_version=FORMAT_VERSION, header=HEADER, ops=OPS, kernels=kernels, host_calls=calls)


def amounts(found):
    return {cause.name: round(cause.amount / US, 3) for cause in found}


def test_gaps_by_hand():
    """0-10 runs; queued until 11; 20-60 late: launched at 55, runs at 60; backward launched at 90, runs at 95."""
    kernels = (ran(0, 0, 10, -5), ran(0, 11, 9, -3), ran(2, 60, 20, 55), ran(3, 95, 5, 90))
    found = explain_host(step(kernels), 56 * US)
    assert amounts(found) == {QUEUED: 1, PYTHON: 35, LAUNCHING: 10, AUTOGRAD: 10}
    assert sum(cause.amount for cause in found) == pytest.approx(56 * US)
    late = next(cause for cause in found if cause.name == PYTHON)
    assert late.largest == OPS[2] and "35 µs before aten::relu" in late.evidence


def test_gaps_of_the_profiled_step_are_scaled_to_the_plain_one():
    kernels = (ran(0, 0, 10, -5), ran(2, 60, 20, 55))
    assert amounts(explain_host(step(kernels), 25 * US)) == {PYTHON: 22.5, LAUNCHING: 2.5}
    # And what lies in no gap is before the first kernel or after the last.
    assert amounts(explain_host(step(kernels), 70 * US)) == {PYTHON: 45, LAUNCHING: 5, EDGES: 20}


def test_a_synchronisation_is_named_by_its_op_and_line():
    """The copy of op 1 ends at 12; the host, which waited until 14, launches the next at 44."""
    kernels = (ran(0, 0, 10, -5), ran(1, 10, 2, 3), ran(2, 50, 5, 44))
    wait = HostCall(kind="synchronisation", name="cudaStreamSynchronize", start_s=5 * US, time_s=9 * US)
    found = explain_host(step(kernels, wait), 38 * US)
    assert amounts(found) == {WAITS: 32, LAUNCHING: 6}
    waited = next(cause for cause in found if cause.name == WAITS)
    assert "aten::_local_scalar_dense at train/loop.py:7" in waited.evidence and waited.largest == OPS[1]


def test_the_allocator_and_the_loader_have_their_part_of_a_gap():
    """A gap of 100 until the launch: 30 in cudaMalloc, 50 of 60 in the loader (10 were before), 20 in Python."""
    kernels = (ran(0, 0, 10, -5), ran(2, 110, 5, 110))
    calls = (HostCall(kind="data", name="enumerate(DataLoader)", start_s=0.0, time_s=60 * US),
             HostCall(kind="allocator", name="cudaMalloc", start_s=70 * US, time_s=30 * US))  # fmt: skip
    assert amounts(explain_host(step(kernels, *calls), 100 * US)) == {DATA: 50, ALLOCATOR: 30, PYTHON: 20}


def test_an_older_file_without_launches():
    """A gap of 1 µs is the device's, one of 50 the host's."""
    assert amounts(explain_host(step((ran(0, 0, 10), ran(0, 11, 9), ran(2, 70, 5))), 51 * US)) == {
        QUEUED: 1,
        PYTHON: 50,
    }
    assert amounts(explain_host(step(()), 10 * US)) == {HOST: 10}


@pytest.mark.parametrize("place", RECORDINGS[:6])
def test_parts_sum_to_the_idle_time(place):
    for idle in (1e-5, 1e-3, 0.1, -1e-5):
        found = explain_host(ledger(place), idle)
        assert sum(cause.amount for cause in found) == pytest.approx(idle)
        assert all(cause.name in ALL and cause.evidence for cause in found)


# --- from the profiler's trace ---


def event(category, name, start, took, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": took, "args": args}


TRACE = [
    event("kernel", "k", 1000, 10, correlation=1, stream=7, device=0),
    event("cuda_runtime", "cudaLaunchKernel", 990, 4, correlation=1),
    event("cuda_runtime", "cudaStreamSynchronize", 1002, 9, correlation=2),
    event("cuda_runtime", "cudaMemcpyAsync", 1001, 1, correlation=3),
    event("cuda_runtime", "cudaMalloc", 900, 50, correlation=4),
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 800, 90),
]


def test_what_kept_the_host_is_read_from_the_trace():
    trace = decode(json.dumps({"traceEvents": TRACE}).encode(), name="here")
    found = [
        (call.kind, call.name[:21], round(call.start_s / US), round(call.time_s / US)) for call in host_calls(trace)
    ]
    assert found == [("data", "enumerate(DataLoader)", -200, 90), ("allocator", "cudaMalloc", -100, 50),
                     ("synchronisation", "cudaStreamSynchronize", 2, 9)]  # fmt: skip


def test_calls_of_other_libraries():
    assert kind_of("hipStreamSynchronize") == kind_of("cuCtxSynchronize") == "synchronisation"
    assert kind_of("cudaMalloc_v3020") == kind_of("hipFree") == "allocator"
    assert kind_of("cudaMemcpy") == "synchronisation" and kind_of("cudaMemcpyAsync") is None
    assert kind_of("cudaLaunchKernel") is kind_of("malloc") is None


def test_an_imported_trace_has_an_account_of_its_wall(tmp_path):
    """Two kernels of 10 µs, 90 apart, in a profiler step of 120: the loader takes 60 of the gap."""
    events = [
        event("kernel", "k", 1000, 10, correlation=1, stream=7, device=0),
        event("kernel", "k", 1100, 10, correlation=2, stream=7, device=0),
        event("cuda_runtime", "cudaLaunchKernel", 990, 4, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 1095, 4, correlation=2),
        event("user_annotation", "enumerate(DataLoader)#x", 1020, 60),
        event("user_annotation", "ProfilerStep#1", 990, 120),
    ]
    path = tmp_path / "loader.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    log = read(path)
    assert [call.kind for call in log.host_calls] == ["data"]
    (why,) = (one for one in rooflight.compare(log, log).whys if one.quantity == "time")
    terms = {term.name: round(term.b / US, 3) for term in why.causes}
    kernels = terms.pop("kernels, of which no shapes tell the least time")
    assert kernels == 20 and terms == {DATA: 60, PYTHON: 25, LAUNCHING: 5, EDGES: 10}
    assert why.measured.b == pytest.approx(120 * US)


# --- the line of Python ---


class Asks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y * float(y.max().item() > 0)  # this line


def test_the_line_that_asks_for_a_number_is_kept():
    measured = rooflight.measure(Asks(), torch.randn(2, 4), step="infer", repeat=1, device="cpu")
    number = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# this line" in text)
    assert {one.line for one in measured.ops if one.packet == "aten::_local_scalar_dense"} == {
        f"analysis/test_host_causes.py:{number}"
    }
    assert not any(one.line for one in measured.ops if one.packet != "aten::_local_scalar_dense")
    assert load(f"{PREFIX}h200/vgg19-infer-fp32").host_calls == ()  # a file of before


def test_a_ledger_with_calls_is_read_back(tmp_path):
    source = msgspec.structs.replace(
        ledger("recorded:h200/mnist-cnn-infer-fp32"),
        host_calls=(HostCall(kind="allocator", name="cudaMalloc", start_s=0.5, time_s=0.25),),
    )
    rooflight.save(source, tmp_path / "x.json.gz")
    assert load(tmp_path / "x.json.gz").host_calls == source.host_calls
