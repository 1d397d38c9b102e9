"""Memory on a GPU: what torch's allocator says about every op and about the step, and what lies outside of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rooflight.ledger import Note, Storage, Value
from rooflight.machine.installed_gpus import process_memory_bytes
from rooflight.trace.stage import StagedStep

_ALLOCATOR = "torch's CUDA allocator"
_BLOCK = 512
"""The allocator hands out whole blocks of this many bytes."""


def step_memory(stage: StagedStep) -> tuple[dict[str, Value], list[Note]]:
    """Peaks of one plain step, and what lies outside the allocator; with notes on what could not be told."""
    arguments = stage.fresh_arguments()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = stage.run(arguments)
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    del output
    quantities = {
        "allocated_before_bytes": Value(before, f"{_ALLOCATOR}: when the step began, last step's gradients included"),
        "peak_allocated_bytes": Value(allocated, f"{_ALLOCATOR}: most in tensors during one plain step"),
        "peak_reserved_bytes": Value(reserved, f"{_ALLOCATOR}: most held of the device during one plain step"),
    }
    notes: list[Note] = []
    held = process_memory_bytes(f"cuda:{torch.cuda.current_device()}")
    if held is not None:
        outside, origin = held - torch.cuda.memory_reserved(), "NVML: memory of this process minus reserved"
    else:
        free, total = torch.cuda.mem_get_info()
        outside = total - free - torch.cuda.memory_reserved()
        origin = "CUDA: all memory in use on the device minus reserved; other processes would be in it"
    if outside >= 0:
        quantities["outside_bytes"] = Value(outside, origin)
    else:
        notes.append(
            Note(
                "unknown-memory",
                "memory outside the allocator is unknown: the driver reports less in use than torch holds",
            )
        )
    return quantities, notes


class OpMemoryObserver:
    """Asks the allocator before and after every op (an `Observer`)."""

    def __init__(self) -> None:
        self.quantities: dict[int, dict[str, Value]] = {}
        self._before = (0, 0)

    def before(self, index: int) -> None:
        torch.cuda.reset_peak_memory_stats()
        stats = torch.cuda.memory_stats_as_nested_dict()
        self._before = (stats["allocated_bytes"]["all"]["current"], stats["allocation"]["all"]["allocated"])

    def after(self, index: int) -> None:
        stats = torch.cuda.memory_stats_as_nested_dict()
        allocated, calls = stats["allocated_bytes"]["all"], stats["allocation"]["all"]["allocated"]
        before, calls_before = self._before
        now, peak = allocated["current"], allocated["peak"]
        self.quantities[index] = {
            "growth_bytes": Value(now - before, f"{_ALLOCATOR}: allocated after minus before"),
            "allocations": Value(calls - calls_before, f"{_ALLOCATOR}: calls"),
            "workspace_bytes": Value(
                peak - max(now, before), f"{_ALLOCATOR}: peak inside the op minus the larger of before and after"
            ),
            "allocated_bytes": Value(now, f"{_ALLOCATOR}: allocated after"),
        }


def output_bytes(storages: Sequence[Storage], *, block: int = _BLOCK) -> dict[int, Value]:
    """Bytes of the blocks that the results of each op lie in, those that were made by it."""
    sums: dict[int, int] = {}
    for storage in storages:
        if storage.born is not None and not storage.host:
            blocks = -(-storage.nbytes // block) * block
            sums[storage.born] = sums.get(storage.born, 0) + blocks
    origin = "new storages of the results" + (f", in blocks of {block} bytes" if block > 1 else "")
    return {index: Value(size, origin) for index, size in sums.items()}
