"""Memory of a step on the CPU: known allocations to the byte, in every thread, against the tensors that live."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.errors import CannotMeasure
from rooflight.machine import resident_memory
from rooflight.machine.resident_memory import ResidentMemory
from rooflight.measurement.collectors import cpu_memory
from rooflight.measurement.collectors.cpu_memory import (
    CpuAllocationEvent,
    CpuAllocations,
    OpAllocations,
    add_up,
)

MIB = 1 << 20


class Calling(TorchDispatchMode):
    """Calls `before` and `after` around every op, as the trace's recorder does."""

    def __init__(self, allocations):
        super().__init__()
        self.names: list[str] = []
        self.threads: list[int] = []
        self._allocations = allocations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        index = len(self.names)
        self.names.append(str(func).partition(".")[2])
        self.threads.append(threading.get_ident())
        self._allocations.before(index)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._allocations.after(index)


def run(step):
    """Run a step; gives its ops' names and memory, in order, and the recording."""
    gc.collect()
    allocations = CpuAllocations()
    with allocations, Calling(allocations) as mode:
        step()
    return [(name, allocations.history.ops[i]) for i, name in enumerate(mode.names)], allocations


def live_bytes():
    gc.collect()  # what earlier tests left in cycles would be gone a moment later
    return sum({storage.data_ptr(): storage.nbytes() for storage in cpu_memory._cpu_storages()}.values())


def test_an_allocation_is_right_to_the_byte():
    kept = []

    def step():
        kept.append(torch.empty(16 * MIB))  # floats
        kept.append(kept[0].view(4, -1)[1:])
        kept.append(torch.empty(3, dtype=torch.uint8))

    before = live_bytes()
    ops, allocations = run(step)
    assert [name for name, _ in ops] == ["empty.memory_format", "view.default", "slice.Tensor", "empty.memory_format"]
    start = allocations.history.before_bytes
    assert start == before
    assert ops[0][1] == OpAllocations(64 * MIB, 1, 64 * MIB, start + 64 * MIB)
    assert ops[1][1] == ops[2][1] == OpAllocations(0, 0, 0, start + 64 * MIB)
    # The allocator rounds nothing: three bytes are three.
    assert ops[3][1] == OpAllocations(3, 1, 3, start + 64 * MIB + 3)
    assert allocations.history.peak_bytes == start + 64 * MIB + 3


def test_a_temporary_is_in_the_peak_and_not_in_the_growth():
    image, weight = torch.ones(1, 4, 64, 64), torch.ones(8, 4, 3, 3)
    kept = []

    def step():
        kept.append(torch.ops.aten._slow_conv2d_forward(image, weight, [3, 3], None, [1, 1], [0, 0]))

    ops, allocations = run(step)
    # 62 x 62 positions of 4 bytes: 8 channels come out, and the input of each is unfolded to 4 * 3 * 3 numbers.
    output, columns = 8 * 62 * 62 * 4, 36 * 62 * 62 * 4
    start = allocations.history.before_bytes
    assert ops == [("_slow_conv2d_forward.default", OpAllocations(output, 2, output + columns, start + output))]
    assert allocations.history.peak_bytes == start + output + columns


def test_onednns_workspace_is_seen_too():
    image, weight = torch.ones(2, 3, 32, 32), torch.ones(8, 3, 3, 3)
    kept = []
    ops, _ = run(lambda: kept.append(F.conv2d(image, weight)))
    ((_, convolution),) = ops
    assert convolution.growth_bytes == 2 * 8 * 30 * 30 * 4
    assert convolution.peak_growth_bytes >= convolution.growth_bytes


def test_what_was_there_before_and_is_freed_in_the_step_is_counted():
    """The profiler knows only blocks it saw being made; these it did not."""
    weight = torch.ones(256, 256, requires_grad=True)
    (torch.ones(4, 256) @ weight).sum().backward()  # a gradient of 256 KiB, which Python has not seen
    extra = [torch.ones(1000)]

    def step():
        _ = torch.empty(1)
        extra.clear()
        weight.grad = None
        _ = torch.empty(2)

    before = live_bytes()
    ops, allocations = run(step)
    assert allocations.history.before_bytes == before
    first, second = (op for _, op in ops)
    assert (first.growth_bytes, first.allocated_bytes) == (4, before + 4)
    # The first tensor dies when the second takes its name, after the op that makes it.
    assert (second.growth_bytes, second.allocated_bytes) == (8, before + 4 - 4000 - 256 * 256 * 4 + 8)


def test_a_second_recording_knows_what_the_first_left():
    """Blocks made in one recording and freed in the next are reported by the profiler itself, and counted once."""
    kept = []
    run(lambda: kept.append(torch.empty(5000)))
    before = live_bytes()

    def step():
        kept.clear()
        kept.append(torch.empty(10))

    ops, allocations = run(step)
    assert allocations.history.before_bytes == before
    assert ops[0][1] == OpAllocations(40, 1, 40, before - 20000 + 40)
    assert allocations.history.peak_bytes == before


def test_a_training_step_ends_with_the_tensors_that_live():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(7200, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    image = torch.randn(4, 3, 32, 32)

    def step():
        optimizer.zero_grad()
        net(image).sum().backward()
        optimizer.step()

    step()
    before = live_bytes()
    ops, allocations = run(step)
    assert allocations.history.before_bytes == before
    assert live_bytes() == ops[-1][1].allocated_bytes == before
    names = [name for name, _ in ops]
    # The gradients of the last step (all parameters) are given up before the first op of this one.
    gradients = sum(parameter.numel() * 4 for parameter in net.parameters())
    assert ops[0][1].allocated_bytes - ops[0][1].growth_bytes == before - gradients
    backward = ops[names.index("convolution_backward.default")][1]
    assert backward.growth_bytes == 8 * 3 * 3 * 3 * 4 + 8 * 4  # weight and bias; the image needs no gradient
    assert allocations.history.peak_bytes > max(op.allocated_bytes for _, op in ops) - 1
    assert all(op.peak_growth_bytes >= max(op.growth_bytes, 0) for _, op in ops)


class Deep(torch.autograd.Function):
    """Runs backward inside of backward; below depth 60 autograd goes on in another thread."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                total = Deep.apply(x.detach().requires_grad_(), ctx.depth - 1).sum()
            total.backward()
        return gradient * 2, None


def test_autograds_own_threads_are_followed():
    x = torch.ones(1000, requires_grad=True)
    allocations = CpuAllocations()
    with allocations, Calling(allocations) as mode:
        Deep.apply(x, 70).sum().backward()
    assert len(set(mode.threads)) > 1
    assert set(allocations.history.ops) == set(range(len(mode.names)))
    for index, (name, thread) in enumerate(zip(mode.names, mode.threads, strict=True)):
        if name == "clone.default" and thread != threading.get_ident():
            assert allocations.history.ops[index].growth_bytes == 4000


def test_an_op_that_raises_is_closed_and_kept():
    allocations = CpuAllocations()

    def step():
        allocations.before(0)
        kept = torch.empty(100)
        raise ZeroDivisionError(kept)

    with pytest.raises(ZeroDivisionError), allocations:
        step()
    assert allocations.history.ops[0].growth_bytes == 400


def test_another_profiler_is_left_to_do_its_work():
    allocations = CpuAllocations()
    with torch.autograd.profiler.profile(use_kineto=True) as other:
        with pytest.raises(CannotMeasure, match="is running already"):
            allocations.__enter__()
        torch.ones(3).exp()
    assert "aten::exp" in {event.key for event in other.key_averages()}
    with allocations:
        pass
    assert allocations.history.ops == {}


def test_before_the_end_there_is_nothing_to_tell():
    with pytest.raises(RuntimeError, match="entered and left"):
        _ = CpuAllocations().history


def test_the_terminal_stays_quiet():
    program = (
        "import torch\n"
        "from rooflight.measurement.collectors.cpu_memory import CpuAllocations\n"
        "old = [torch.ones(1000) for _ in range(3)]\n"
        "with CpuAllocations() as allocations:\n"
        "    allocations.before(0); old.clear(); allocations.after(0)\n"
        "assert allocations.history.ops[0].allocated_bytes == allocations.history.before_bytes - 12000\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def block(op, address, nbytes, time=0):
    return CpuAllocationEvent(time, "block", op, address, nbytes)


def test_sums_by_hand():
    moments = [
        CpuAllocationEvent(0, "begin", 0), block(0, 1, 100), block(0, 2, 50), block(0, 2, -50), CpuAllocationEvent(1, "end", 0),
        CpuAllocationEvent(2, "forget", None, 9), block(None, 1, -100),
        CpuAllocationEvent(3, "begin", 1), block(1, 9, 30), CpuAllocationEvent(4, "forget", 1, 9), block(1, 7, -5), CpuAllocationEvent(5, "end", 1),
    ]  # fmt: skip
    history = add_up(moments, {9: 20})
    # Block 7 was never seen to be made: it was there before. Block 9 was freed, and its address used again.
    assert history.before_bytes == 20 + 5
    assert history.peak_bytes == 25 + 150
    assert history.ops == {0: OpAllocations(100, 2, 150, 125), 1: OpAllocations(25, 1, 30, 30)}


def test_an_old_block_freed_inside_an_op_is_that_ops_doing():
    history = add_up(
        [
            CpuAllocationEvent(0, "begin", 0),
            CpuAllocationEvent(1, "forget", 0, 9),
            block(0, 4, 8),
            CpuAllocationEvent(2, "end", 0),
        ],
        {9: 20},
    )
    assert history.ops == {0: OpAllocations(-12, 1, 0, 8)}


def test_an_address_used_again_was_freed_in_between():
    history = add_up([CpuAllocationEvent(0, "begin", 0), block(0, 9, 8), CpuAllocationEvent(1, "end", 0)], {9: 20})
    assert history.ops == {0: OpAllocations(8, 1, 8, 8)}


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 1000))), st.dictionaries(st.integers(1, 5), st.integers(1, 99))
)
def test_totals_follow_the_blocks(calls, before):
    """Each call takes an address, or gives it back where it is taken."""
    live, moments, peak = dict(before), [], sum(before.values())
    for address, size in calls:
        if address in live:
            moments.append(block(None, address, -live.pop(address)))
        else:
            live[address] = size
            moments.append(block(None, address, size))
        peak = max(peak, sum(live.values()))
    history = add_up([*moments, CpuAllocationEvent(0, "begin", 0), CpuAllocationEvent(0, "end", 0)], before)
    assert history.before_bytes == sum(before.values())
    assert history.peak_bytes == peak
    assert history.ops[0] == OpAllocations(0, 0, 0, sum(live.values()))


def test_resident_memory_as_the_kernel_writes_it():
    text = "Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t3\n"
    assert resident_memory.parse_status(text) == ResidentMemory(resident_bytes=1 << 20, peak_resident_bytes=2 << 20)
    assert resident_memory.parse_status("Name:\tkthread\n") == ResidentMemory(None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_resident_memory_grows_with_touched_pages_and_its_peak_can_be_reset():
    before = resident_memory.resident().resident_bytes
    pages = mmap.mmap(-1, 256 * MIB)  # not by malloc, which may still hold as much from a test before
    pages.write(bytes(256 * MIB))
    during = resident_memory.resident()
    # The kernel counts pages in batches for each thread, so a few MiB may be missing.
    assert during.resident_bytes - before == pytest.approx(256 * MIB, rel=0.05)
    assert during.peak_resident_bytes >= during.resident_bytes
    pages.close()
    after = resident_memory.resident()
    assert after.peak_resident_bytes - after.resident_bytes > 200 * MIB
    if resident_memory.reset_peak():
        now = resident_memory.resident()
        assert now.peak_resident_bytes - now.resident_bytes < 50 * MIB
