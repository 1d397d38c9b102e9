"""What is alive at the op where most is allocated, and how live memory grows and shrinks through the step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from msgspec.structs import replace

from rooflight.ledger import Header, Op, Tensor
from rooflight.memory.allocation_script import AllocationScript
from rooflight.memory.replay import StepPeaks
from rooflight.memory.result import Peak, Tenant, Timeline
from rooflight.memory.storage_lifetimes import WEIGHT_COPY, copies_of_weights
from rooflight.step.costed_step import Step
from rooflight.summary.activation_gradients import ACTIVATION_GRADIENT, activation_gradients

LISTED = 12
"""Tenants that are named."""
WORDS = {
    "parameter": "parameters", WEIGHT_COPY: "copies of weights (autocast)", "buffer": "buffers",
    "gradient": "gradients", "optimizer-state": "optimizer state",
    "gathered": "gathered weights", "bucket": "buckets of gradients", "activation": "activations kept for backward",
    ACTIVATION_GRADIENT: "activation gradients",
    "input": "inputs", "output": "outputs", "temporary": "temporaries", "workspace": "workspace",
    "libraries": "libraries (cuBLAS)", "rounding": "rounding of blocks",
}  # fmt: skip
"""Categories in the order in which they are shown, and what people call them."""


def category_word(category: str, header: Header) -> str:
    """What people call it in this step: of a decoded token nearly all inputs are the KV cache."""
    return "KV cache and inputs" if category == "input" and header.step == "decode" else WORDS[category]


def peak_of(step: Step, script: AllocationScript, peaks: StepPeaks, *, first: bool, tenants: bool = True) -> Peak:
    """The moment of the highest peak. `first`: it is the first step's, which begins without the optimizer's state.
    `tenants`: name what is alive there, too."""
    ledger = step.ledger
    op = ledger.ops[peaks.op] if ledger.ops else None
    alive = script.lives.alive(peaks.op)
    if first and script.lives.first_optimizer_op is not None and peaks.op < script.lives.first_optimizer_op:
        state = set(script.lives.optimizer_state)
        alive = [number for number in alive if number not in state]
    unmade, borrowed = _inside(script, peaks.op)
    alive = [number for number in alive if number not in unmade]
    split: Counter[str] = Counter()
    for number in alive:
        split[_category(step, script, number)] += script.nbytes[number]
    split["workspace"] += sum(borrowed)
    kept = [(at, sum(sizes)) for at, sizes in script.kept.items()]
    split["libraries"] += sum(size for at, size in kept if not first or at <= peaks.op)
    split["rounding"] = peaks.allocated - sum(split.values())
    return Peak(
        op=peaks.op,
        name="" if op is None else op.name,
        module="" if op is None else op.module,
        phase="" if op is None else op.phase,
        split={name: split[name] for name in WORDS if split[name]},
        tenants=_tenants(step, script, alive, borrowed, op) if tenants else (),
    )


def _category(step: Step, script: AllocationScript, number: int) -> str:
    storages = step.ledger.storages
    if number >= len(storages):
        return script.lives.rows[number - len(storages)].category
    if number in step.once(copies_of_weights):
        return WEIGHT_COPY
    return ACTIVATION_GRADIENT if number in step.once(activation_gradients) else storages[number].category


def _inside(script: AllocationScript, op: int) -> tuple[set[int], tuple[int, ...]]:
    """At the op's highest moment: results that are not there yet, and what it borrows."""
    moments = script.moments[op] if op < len(script.moments) else ()
    results = script.lives.results[op] if op < len(script.lives.results) else ()
    sizes = [script.nbytes[number] for number in results]
    borrowed: tuple[int, ...] = ()
    best, made = sum(sizes), len(results)
    for moment in moments:
        held = sum(sizes[: moment.results]) + sum(moment.temporaries)
        if held > best:
            best, made, borrowed = held, min(moment.results, len(results)), moment.temporaries
    return set(results[made:]), borrowed


def _tenants(
    step: Step, script: AllocationScript, alive: Sequence[int], borrowed: Sequence[int], op: Op | None
) -> tuple[Tenant, ...]:
    ledger, nbytes = step.ledger, script.nbytes
    largest = sorted((one for one in alive if nbytes[one]), key=lambda number: nbytes[number], reverse=True)
    stored = [number for number in largest if number < len(ledger.storages)]
    described = _described(ledger.ops, {ledger.storages[number].id for number in stored})
    groups: dict[tuple[object, ...], list[Tenant]] = defaultdict(list)
    for number in stored:
        storage = ledger.storages[number]
        tensor = described.get(storage.id)
        maker = ledger.ops[storage.born] if storage.born is not None and storage.born < len(ledger.ops) else None
        # Results that the trace has no size for, as the reserve of recurrent layers, have no shape either.
        sides = tensor.shape if tensor is not None and tensor.numel else ()
        tenant = Tenant(
            bytes=nbytes[number],
            category=_category(step, script, number),
            name=storage.name or (maker.name if maker is not None else ""),
            module=maker.module if maker is not None else storage.name.rpartition(".")[0],
            shape=tuple(step.scaling.size(side) for side in sides),
            dtype=tensor.dtype if tensor is not None and tensor.numel else "",
        )
        # Parameters and inputs have names; of what ops make, those that are alike are one row.
        named = storage.name if storage.born is None else ""
        kind = named, maker and maker.name, tensor and (tensor.shape, tensor.dtype)
        groups[tenant.bytes, tenant.category, *kind].append(tenant)
    tenants = _beside(step, script, largest)
    for alike in groups.values():
        tenants.append(replace(alike[0], bytes=alike[0].bytes * len(alike), count=len(alike)))
    if borrowed and op is not None:
        tenants.append(
            Tenant(bytes=sum(borrowed), count=len(borrowed), category="workspace", name=op.name, module=op.module)
        )
    return tuple(sorted(tenants, key=lambda tenant: tenant.bytes, reverse=True)[:LISTED])


def _beside(step: Step, script: AllocationScript, alive: Sequence[int]) -> list[Tenant]:
    """What is no storage of the step's own: those of one name are one row."""
    first, rows = len(step.ledger.storages), script.lives.rows
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in alive:
        if number >= first:
            groups[rows[number - first].category, rows[number - first].name].append(script.nbytes[number])
    return [
        Tenant(bytes=sum(sizes), count=len(sizes), category=category, name=name)
        for (category, name), sizes in groups.items()
    ]


def _described(ops: Sequence[Op], wanted: set[int]) -> dict[int, Tensor]:
    """The largest tensor that lies in each storage."""
    largest: dict[int, Tensor] = {}
    for op in ops:
        for tensor in (*op.outputs, *op.inputs):
            if tensor.storage in wanted and tensor.numel > getattr(largest.get(tensor.storage), "numel", -1):
                largest[tensor.storage] = tensor
    return largest


def timeline_of(step: Step, script: AllocationScript, allocated: Sequence[int]) -> Timeline:
    """Bytes of every category after each op, as asked for."""
    ops = len(step.ledger.ops)
    changes: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(ops + 1, dtype=np.int64))
    lives, nbytes = script.lives, script.nbytes
    standing = (*lives.model, *lives.optimizer_state, *lives.inputs)
    for sign, lists in ((1, [(0, standing), *enumerate(lives.results)]), (-1, list(enumerate(lives.freed)))):
        for op, numbers in lists:
            for number in numbers:
                changes[_category(step, script, number)][op] += sign * nbytes[number]
    categories = {name: tuple(np.cumsum(changes[name])[:ops].tolist()) for name in WORDS if name in changes}
    categories["workspace"] = tuple(
        max((sum(moment.temporaries) for moment in moments), default=0) for moments in script.moments
    )
    categories["libraries"] = (sum(map(sum, script.kept.values())),) * ops
    stretches = groupby(step.ledger.ops, key=lambda op: op.phase)
    return Timeline(
        categories={name: row for name, row in categories.items() if any(row)},
        allocated=tuple(allocated),
        phases=tuple((phase, next(stretch).index) for phase, stretch in stretches),
    )
