"""Why the memory a step takes of a GPU is not the sum of its tensors: workspace, rounding, fragmentation, the context.

Asked for are the tensors that are alive when most are, as a trace tells them. The causes come from torch's allocator
played on the shapes of the step, from tables of library workspaces and of contexts, never from what was measured.
"""

from __future__ import annotations

from rooflight.analysis.cause import Account, CauseSum
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import memories_on
from rooflight.step.costed_step import own_step
from rooflight.summary.facts import step_values, steps_of_ranks
from rooflight.summary.measured import Measured

WORKSPACE = "workspace of an op"
LIBRARIES = "workspace of libraries"
ROUNDING = "rounding of blocks"
FRAGMENTATION = "reserved, not allocated"
CONTEXT = "CUDA context and libraries"


def explain_memory(ledger: Ledger, measured: Measured | None = None) -> Account | None:
    """Of a measured step on a known GPU; `None` where memory was not measured, or cannot be played. `measured`: of this
    ledger, where somebody has it already."""
    device = recognise_name(ledger.header.device)
    values = step_values(steps_of_ranks(ledger))
    if device is None or device.kind != "gpu" or "peak_reserved_bytes" not in values:
        return None
    if not ledger.ops or not ledger.storages:
        return None
    step = own_step(ledger) if measured is None or measured.ledger is not ledger else measured.once(own_step)
    memory = memories_on(device).of(step, device)
    outside = values.get("outside_bytes")
    taken = int(values["peak_reserved_bytes"].value + (outside.value if outside is not None else 0))
    workspace, libraries, rounding = (memory.peak.split.get(name, 0) for name in ("workspace", "libraries", "rounding"))
    asked = memory.peak_allocated_bytes - workspace - libraries - rounding
    causes = [
        (WORKSPACE, workspace, f"at the peak, in {memory.peak.name} of {memory.peak.module or 'the model'}"),
        (LIBRARIES, libraries, "what cuBLAS keeps for every handle and stream"),
        (ROUNDING, rounding, "blocks of 512 bytes, and what is left of those that were not split"),
    ]
    if memory.cached_bytes is not None:
        causes.append(
            (FRAGMENTATION, memory.cached_bytes, "torch's allocator, replayed: segments that are not full at the peak")
        )
    if outside is not None and memory.outside_bytes is not None:
        causes.append((CONTEXT, memory.outside_bytes, "what a process holds there outside the allocator"))
    unexplained = taken - asked - sum(amount for _, amount, _ in causes)
    sums = tuple(CauseSum(name, amount, 1, evidence, None) for name, amount, evidence in causes if amount)
    return Account(asked, taken, sums, unexplained, abs(unexplained), 1)
