"""Why the memory a step takes of a GPU is not the sum of its tensors: workspace, rounding, fragmentation, the context.

Asked for are the tensors that are alive when most are, as a trace tells them. The causes come from torch's allocator
played on the shapes of the step, from tables of library workspaces and of contexts, never from what was measured.
"""

from __future__ import annotations

from rooflight.analysis.cause import Account, CauseSum
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import memories_on
from rooflight.step.costed_step import PreparedTrace
from rooflight.summary.facts import step_values, steps_of_ranks

WORKSPACE = "workspace of an op"
LIBRARIES = "workspace of libraries"
ROUNDING = "rounding of blocks"
FRAGMENTATION = "reserved, not allocated"
CONTEXT = "CUDA context and libraries"


def explain_memory(ledger: Ledger) -> Account | None:
    """Of a measured step on a known GPU; `None` where memory was not measured, or cannot be played."""
    device = recognise_name(ledger.header.device)
    values = step_values(steps_of_ranks(ledger))
    if device is None or device.kind != "gpu" or "peak_reserved_bytes" not in values:
        return None
    if not ledger.ops or not ledger.storages:
        return None
    memory = memories_on(device).of(PreparedTrace(ledger, None).at(None), device)
    outside = values.get("outside_bytes")
    measured = int(values["peak_reserved_bytes"].value + (outside.value if outside is not None else 0))
    workspace, libraries, rounding = (memory.peak.split.get(name, 0) for name in ("workspace", "libraries", "rounding"))
    asked = memory.peak_allocated_bytes - workspace - libraries - rounding
    causes = [
        (WORKSPACE, workspace, f"at the peak, in {memory.peak.name} of {memory.peak.module or 'the model'}"),
        (LIBRARIES, libraries, "what cuBLAS keeps for every handle and stream"),
        (ROUNDING, rounding, "blocks of 512 bytes, and what is left of those that were not split"),
    ]
    if memory.peak_reserved_bytes is not None:
        held = memory.peak_reserved_bytes - memory.peak_allocated_bytes
        causes.append((FRAGMENTATION, held, "torch's allocator, replayed: segments that are not full at the peak"))
    if outside is not None and memory.outside_bytes is not None:
        causes.append((CONTEXT, memory.outside_bytes, "what a process holds there outside the allocator"))
    unexplained = measured - asked - sum(amount for _, amount, _ in causes)
    sums = tuple(CauseSum(name, amount, 1, evidence, None) for name, amount, evidence in causes if amount)
    return Account(asked, measured, sums, unexplained, abs(unexplained), 1)
