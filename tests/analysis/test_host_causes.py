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
    HOST,
    LAUNCHING,
    PYTHON,
    QUEUED,
    WAITS,
    explain_host,
    gap_parts,
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
    # What lies in no gap is put down to nothing: where in the step it was nobody knows.
    assert amounts(explain_host(step(kernels), 70 * US)) == {PYTHON: 45, LAUNCHING: 5}


def test_a_synchronisation_is_named_by_its_op_and_line():
    """The copy of op 1 ends at 12; the host, which waited until 14, launches the next at 44."""
    kernels = (ran(0, 0, 10, -5), ran(1, 10, 2, 3), ran(2, 50, 5, 44))
    wait = HostCall(kind="synchronisation", name="cudaStreamSynchronize", start_s=5 * US, time_s=9 * US)
    found = explain_host(step(kernels, wait), 38 * US)
    assert amounts(found) == {WAITS: 32, LAUNCHING: 6}
    waited = next(cause for cause in found if cause.name == WAITS)
    assert "aten::_local_scalar_dense at train/loop.py:7" in waited.evidence and waited.largest == OPS[1]


def test_a_synchronisation_of_an_idle_gpu_explains_nothing():
    """Idle from 1 to 3 ms; the host comes at 2.9, asks whether all is done, which it is, and launches at 2.99."""
    kernels = (ran(0, 0, 1000, -5), ran(2, 3000, 5, 2990))
    late = HostCall(kind="synchronisation", name="cudaDeviceSynchronize", start_s=2900 * US, time_s=5 * US)
    assert amounts(explain_host(step(kernels, late), 2000 * US)) == {PYTHON: 1990, LAUNCHING: 10}
    # One that began as the GPU still ran, and ended as it stopped, is why nothing was queued; an earlier one is not.
    early = HostCall(kind="synchronisation", name="cudaStreamSynchronize", start_s=10 * US, time_s=20 * US)
    dry = HostCall(kind="synchronisation", name="cudaStreamSynchronize", start_s=900 * US, time_s=102 * US)
    assert amounts(explain_host(step(kernels, early, late), 2000 * US)) == {PYTHON: 1990, LAUNCHING: 10}
    assert amounts(explain_host(step(kernels, dry, late), 2000 * US)) == {WAITS: 1990, LAUNCHING: 10}


def test_each_gap_has_the_wait_and_the_calls_of_its_own_time():
    """Gaps from 10 to 50, 60 to 100 and 110 to 150. A wait lets the GPU run dry before the first and the third, and
    the loader, from 40 to 70, has 10 of the first and of the second: the calls lie in a file in any order."""
    kernels = (ran(0, 0, 10, -5), ran(2, 50, 10, 50), ran(2, 100, 10, 100), ran(3, 150, 10, 150))
    calls = (HostCall(kind="synchronisation", name="c", start_s=105 * US, time_s=6 * US),
             HostCall(kind="data", name="enumerate(DataLoader)", start_s=40 * US, time_s=30 * US),
             HostCall(kind="synchronisation", name="c", start_s=5 * US, time_s=6 * US))  # fmt: skip
    assert amounts(explain_host(step(kernels, *calls), 120 * US)) == {WAITS: 30 + 40, DATA: 20, PYTHON: 30}


def test_a_call_of_the_driver_inside_one_of_the_runtime_counts_once():
    """cudaMalloc from 20 to 60 asks cuMemAlloc from 25 to 55: 40 of a gap of 100."""
    kernels = (ran(0, 0, 10, -5), ran(2, 110, 5, 110))
    calls = (HostCall(kind="allocator", name="cudaMalloc", start_s=20 * US, time_s=40 * US),
             HostCall(kind="allocator", name="cuMemAlloc", start_s=25 * US, time_s=30 * US))  # fmt: skip
    assert amounts(explain_host(step(kernels, *calls), 100 * US)) == {ALLOCATOR: 40, PYTHON: 60}


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
def test_parts_sum_to_the_idle_time_or_to_all_gaps(place):
    gaps = sum(part.time_s for part in gap_parts(ledger(place)))
    for idle in (1e-5, 1e-3, 0.1, -1e-5):
        found = explain_host(ledger(place), idle)
        assert sum(cause.amount for cause in found) == pytest.approx(min(idle, gaps) if gaps else idle)
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


def test_only_threads_that_launch_keep_the_gpu_waiting():
    """Thread 1 and autograd's, 2, launch; 3 pins memory and copies, and another loader runs on 4."""
    others = [
        event("kernel", "k", 1100, 10, correlation=5, stream=7, device=0),
        {**event("cuda_runtime", "cudaLaunchKernel", 1090, 4, correlation=5), "tid": 2},
        {**event("cuda_runtime", "cudaFree", 1050, 5, correlation=6), "tid": 2},
        event("gpu_memcpy", "Memcpy HtoD", 1200, 10, correlation=7, stream=9, device=0),
        {**event("cuda_runtime", "cudaMemcpyAsync", 1190, 5, correlation=7), "tid": 3},
        {**event("cuda_runtime", "cudaHostAlloc", 1020, 60, correlation=8), "tid": 3},
        {**event("cuda_runtime", "cudaStreamSynchronize", 1020, 60, correlation=9), "tid": 3},
        {**event("user_annotation", "enumerate(DataLoader)#prefetched", 1000, 90), "tid": 4},
    ]
    trace = decode(json.dumps({"traceEvents": [*TRACE, *others]}).encode(), name="here")
    assert [call.name.partition("#")[0] for call in host_calls(trace)] == [
        "enumerate(DataLoader)", "cudaMalloc", "cudaStreamSynchronize", "cudaFree",
    ]  # fmt: skip


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
    assert terms == {DATA: 60, PYTHON: 25, LAUNCHING: 5}
    assert why.unexplained.b == pytest.approx((20 + 10) * US)  # kernels without shapes, and idle time in no gap
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
