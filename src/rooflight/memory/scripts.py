"""A prepared step of a batch as a script for the allocator: how many bytes every storage and temporary has."""

from __future__ import annotations

import numpy as np

from rooflight.memory.inside import Insides
from rooflight.memory.libraries import Uses, first_uses, kept_workspaces
from rooflight.memory.lives import Lives, lives_of
from rooflight.memory.moments import Chip
from rooflight.memory.tape import Script
from rooflight.memory.temporaries import result_bytes
from rooflight.prediction.prepared import Step

_CAST = ("bf16", "fp16")


def lives_in(step: Step) -> Lives:
    """Read once from a trace, whatever the batch."""
    found = step.shared.get("lives")
    if found is None:
        found = step.shared["lives"] = lives_of(step.ledger)
    return found


def _uses_in(step: Step) -> Uses:
    found = step.shared.get("uses")
    if found is None:
        found = step.shared["uses"] = first_uses(step.ledger.ops)
    return found


def sizes_of(step: Step, chip: Chip) -> list[int]:
    """Bytes of every storage at the step's batch."""
    known = step.shared.get("sizes")
    if known is None:
        known = step.shared["sizes"] = np.array([one.nbytes for one in step.ledger.storages], dtype=np.int64)
    found: list[int] = step.nbytes.whole(known).tolist()
    unlike = {kind: sized for kind, op in enumerate(step.kinds) if (sized := result_bytes(op, chip))}
    if unlike:
        place = {storage.id: number for number, storage in enumerate(step.ledger.storages)}
        for op, kind in zip(step.ledger.ops, step.kind_of.tolist(), strict=True):
            for position, nbytes in unlike.get(kind, {}).items():
                number = place.get(op.outputs[position].storage) if position < len(op.outputs) else None
                if number is not None:
                    found[number] = nbytes
    return found


def in_half_precision(step: Step) -> bool:
    """All of the model, not only what autocast makes of it."""
    header = step.ledger.header
    return header.dtype in _CAST and not header.autocast


def script_of(step: Step, insides: Insides, chip: Chip, capability: int | None) -> Script:
    """As a GPU would run it. A model in half precision is built in fp32 and cast on the device, as `.cuda().bfloat16()`
    does it."""
    lives, nbytes = lives_in(step), sizes_of(step, chip)
    of_kind = insides.of(step.kinds)
    cast = [2 * nbytes[number] for number in lives.model] if in_half_precision(step) else None
    return Script(
        lives=lives, nbytes=nbytes, moments=[of_kind[kind] for kind in step.kind_of.tolist()],
        kept=kept_workspaces(_uses_in(step), capability), cast_from=cast,
    )  # fmt: skip
