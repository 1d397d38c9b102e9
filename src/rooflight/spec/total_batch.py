"""A batch that all GPUs of a step share: each replica's part of it, and what stands against it."""

from __future__ import annotations

from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.spec.step import BOTH_BATCHES, StepSpec


def part_of(total_batch: int, replicas: int) -> int:
    """What each replica has."""
    if total_batch < 1 or total_batch % replicas:
        raise BadInput(
            "not-divisible",
            f"--total-batch={total_batch} cannot be divided evenly among {replicas} replicas: give a multiple of "
            f"{replicas}, or another --gpus",
        )
    return total_batch // replicas


def with_part_of(spec: StepSpec, total_batch: int, replicas: int) -> StepSpec:
    """The step with each replica's part of the batch; one that has it already stays as it is."""
    each = part_of(total_batch, replicas)
    if spec.batch not in (1, None, each):
        raise BadInput("two-batches", BOTH_BATCHES)
    return replace(spec, batch=each)
