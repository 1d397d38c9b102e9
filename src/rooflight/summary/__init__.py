"""Sums over a ledger: by module, by layer type, by op, by phase, per sample and per token.

Pure functions from a ledger to rows; how they are shown is the report's business.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from rooflight.ledger import LOSS, OPTIMIZER, OUTSIDE, PHASES, Ledger, Module, Op, Storage, Totals, total
from rooflight.metrics import ratio
from rooflight.summary.activation_gradients import activation_gradients
from rooflight.summary.functions import OWN_PARAMETERS, below, is_function, row_names

RowKind = Literal["module", "function", "parameters", "fused", "outside", "group"]
"""A module; a function that one calls itself; parameters it holds itself; kernels that span several rows below it; what
is no part of the model (loss, optimizer); a layer type, an op or another group of ops."""
By = Literal["module", "type", "op"]


class SummaryRow(msgspec.Struct, frozen=True):
    """One line of a summary. `share` is its part of all matrix FLOPs, or of the others where there are none."""

    name: str
    type: str
    depth: int
    calls: int
    output: tuple[int, ...] | None
    params: int
    trainable_params: int
    totals: Totals
    forward: Totals
    backward: Totals
    share: float | None
    kind: RowKind = "group"


def totals_by_phase(ledger: Ledger) -> dict[str, Totals]:
    """Sums of the phases that the step has."""
    groups: dict[str, list[Op]] = defaultdict(list)
    for op in ledger.ops:
        groups[op.phase].append(op)
    return {phase: total(groups[phase]) for phase in PHASES if phase in groups}


def has_formulas(ledger: Ledger) -> bool:
    return any(op.cost is not None for op in ledger.ops)


def params(ledger: Ledger) -> int:
    return sum(module.params for module in ledger.modules)


def trainable_params(ledger: Ledger) -> int:
    return sum(module.trainable_params for module in ledger.modules)


def param_bytes(ledger: Ledger) -> int:
    return sum(module.param_bytes for module in ledger.modules)


def buffer_bytes(ledger: Ledger) -> int:
    return sum(module.buffer_bytes for module in ledger.modules)


def samples(ledger: Ledger) -> int | None:
    """Samples a step works on, over all micro-batches and all ranks that the ledger holds."""
    ranks = len({op.rank for op in ledger.ops}) or 1
    return ledger.header.batch * ledger.header.accumulate * ranks if ledger.header.batch else None


def tokens(ledger: Ledger) -> int | None:
    """Tokens a step works on; `None` for a model without a sequence. Decoding makes one per sample."""
    count, sequence = samples(ledger), ledger.header.sequence
    if count is None or sequence is None:
        return None
    return count if ledger.header.step == "decode" else count * sequence


def bytes_step_min(ledger: Ledger) -> int:
    """Return the other bound on traffic: outputs and what is read of parameters and inputs, each once, everything else
    kept in a cache. A product of few tokens reads some of its experts, an embedding some of its rows."""
    standing = {row.id: row.nbytes for row in ledger.storages if row.category in ("parameter", "input")}
    read: Counter[int] = Counter()
    for op in ledger.ops:
        sizes = {tensor.storage: standing.get(tensor.storage, tensor.nbytes) for tensor in op.inputs}
        left = (op.cost.bytes_read or 0) if op.cost is not None else 0
        for number in sorted(sizes, key=lambda number: (number in standing, sizes[number])):
            if number in standing:
                read[number] += min(sizes[number], left)
            left = max(left - sizes[number], 0)
    outputs = {tensor.storage: tensor.nbytes for tensor in ledger.header.outputs if tensor.storage not in standing}
    return sum(min(standing[number], nbytes) for number, nbytes in read.items()) + sum(outputs.values())


@dataclass(frozen=True)
class Sizes:
    """The memory lines of a classic model summary, and what the trace really keeps."""

    input_bytes: int
    param_bytes: int
    buffer_bytes: int
    leaf_output_bytes: int
    """Outputs of all leaf modules, once each call."""
    parameterised_output_bytes: int
    """Outputs of the leaf modules that have parameters."""
    hooked_output_bytes: int
    """Outputs of every module that is neither the model nor a list of others: of blocks beside their layers."""
    kept_for_backward_bytes: int | None
    """Activations alive between forward and backward; `None` when the step has no backward."""
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_gradient_bytes: int | None = None
    """Gradients of activations (errors) that backward makes, all of them; `None` when the step has no backward."""
    live_activation_gradient_bytes: int | None = None
    """The most of them that live at once."""
    every_output_bytes: int = 0
    """What all ops of a forward pass give, functions included."""

    @property
    def forward_backward_bytes(self) -> int:
        """As torchsummary has it: what every module gives that it hooks, twice, once for its gradient."""
        return 2 * self.hooked_output_bytes


def sizes(ledger: Ledger) -> Sizes:
    given = _given(ledger)
    outputs = [(leaf, given[leaf.path]) for leaf in _leaves(ledger.modules)]
    categories: Counter[str] = Counter()
    for storage in ledger.storages:
        categories[storage.category] += storage.nbytes
    trains = ledger.header.step == "train"
    kept = [storage for storage in ledger.storages if storage.category == "activation"] if trains else []
    errors = [ledger.storages[place] for place in activation_gradients(ledger)] if trains else []
    return Sizes(
        input_bytes=sum(tensor.nbytes for _, tensor in ledger.header.inputs),
        param_bytes=param_bytes(ledger),
        buffer_bytes=buffer_bytes(ledger),
        leaf_output_bytes=sum(nbytes for _, nbytes in outputs),
        parameterised_output_bytes=sum(nbytes for leaf, nbytes in outputs if leaf.params or leaf.tied),
        hooked_output_bytes=sum(
            given[module.path]
            for module in ledger.modules
            if module.path and module.calls and module.type not in _LISTS
        ),
        kept_for_backward_bytes=_most_alive(kept) if trains else None,
        gradient_bytes=categories["gradient"],
        optimizer_state_bytes=categories["optimizer-state"],
        activation_gradient_bytes=sum(storage.nbytes for storage in errors) if trains else None,
        live_activation_gradient_bytes=_most_alive(errors) if trains else None,
        every_output_bytes=every_output_bytes(ledger),
    )


def every_output_bytes(ledger: Ledger) -> int:
    """Bytes of what all ops of a model give in one forward pass, functions too; what is changed in place is no new
    output, and the loss is no part of the model."""
    ops = (
        op for op in ledger.ops if op.phase == "forward" and op.module != LOSS and op.kind != "view" and not op.mutates
    )
    return sum(tensor.nbytes for op in ops for tensor in op.outputs[:1]) // ledger.header.accumulate


def _given(ledger: Ledger) -> dict[str, int]:
    """Bytes of the outputs of every module in one forward pass. One that is called again may give another size: where
    each call is one op, as of an activation, they are those of its ops."""
    passes = ledger.header.accumulate
    ops: dict[str, list[Op]] = defaultdict(list)
    for op in ledger.ops:
        if op.phase == "forward" and op.kind != "view" and op.outputs:
            ops[op.module].append(op)
    given = {}
    for module in ledger.modules:
        given[module.path] = module.pass_output_bytes(passes)
        if module.calls > passes and len(ops[module.path]) == module.calls:
            given[module.path] = sum(op.outputs[0].nbytes for op in ops[module.path]) // passes
    return given


_LISTS = ("Sequential", "ModuleList")
"""Modules that torchsummary does not hook."""


def _leaves(modules: Iterable[Module]) -> list[Module]:
    parents = {module.path.rpartition(".")[0] for module in modules if module.path}
    return [module for module in modules if module.path not in parents and module.path]


def _most_alive(storages: Iterable[Storage]) -> int:
    """The most bytes of them that live at once: the micro-batches of an accumulated step follow one another."""
    changes: Counter[int] = Counter()
    for storage in storages:
        if storage.born is not None and not storage.host:
            changes[storage.born] += storage.nbytes
            if storage.dies is not None:
                changes[storage.dies] -= storage.nbytes
    alive = most = 0
    for moment in sorted(changes):
        alive += changes[moment]
        most = max(most, alive)
    return most


def rows(ledger: Ledger, by: By = "module") -> list[SummaryRow]:
    """The summary's rows: modules in the order of the model, types and ops the costliest first."""
    whole = total(ledger.ops)
    if by == "module":
        return _module_rows(ledger, whole)
    key = type_of(ledger) if by == "type" else name_of
    rows = [_row(name, "", sums, whole) for name, sums in _sums(ledger.ops, key).items()]
    return sorted(rows, key=lambda row: (row.totals.flops + row.totals.recompute_flops, row.totals.bytes), reverse=True)


PhaseSums = dict[str, Totals]


def _sums(ops: Iterable[Op], key: Callable[[Op], str]) -> dict[str, PhaseSums]:
    """Sums by key and phase, views left out: they are rows that cost nothing."""
    groups: dict[str, dict[str, list[Op]]] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        if op.kind != "view":
            groups[key(op)][op.phase].append(op)
    return {name: {phase: total(found) for phase, found in phases.items()} for name, phases in groups.items()}


def name_of(op: Op) -> str:
    return op.name


def type_of(ledger: Ledger) -> Callable[[Op], str]:
    """The type of the leaf module an op runs in; the op itself where it was called between modules."""
    leaves = {module.path: module.type for module in _leaves(ledger.modules)}

    def type_of(op: Op) -> str:
        if op.module in OUTSIDE:
            return op.module
        return leaves.get(op.module, op.packet)

    return type_of


def _module_rows(ledger: Ledger, whole: Totals) -> list[SummaryRow]:
    """Every module with all that runs inside it, and below it what it does itself, so that the rows below it add up;
    then loss, optimizer and the rest, which are no modules."""
    inside: dict[str, PhaseSums] = defaultdict(dict)
    names = row_names(ledger)
    for path, sums in _sums(ledger.ops, lambda op: names[op.index]).items():
        for ancestor in [path] if path in OUTSIDE else ancestry(path):
            for phase, value in sums.items():
                inside[ancestor][phase] = inside[ancestor].get(phase, Totals()) + value
    all_params: Counter[str] = Counter()
    all_trainable: Counter[str] = Counter()
    for module in ledger.modules:
        for path in ancestry(module.path):
            all_params[path] += module.params
            all_trainable[path] += module.trainable_params
    rows = [
        replace(
            _row(module.path, module.type + (" (tied)" if module.tied else ""), inside.get(module.path, {}), whole),
            calls=module.calls,
            depth=module.path.count(".") + 1 if module.path else 0,
            output=module.outputs[0] if module.outputs else None,
            params=all_params[module.path],
            trainable_params=all_trainable[module.path],
            kind="module",
        )
        for module in ledger.modules
    ]
    rows = _with_own(rows, _own_rows(ledger, inside, names, whole))
    called = {LOSS: ledger.header.loss, OPTIMIZER: ledger.header.optimizer}
    for path in OUTSIDE:
        if inside.get(path):
            rows.append(replace(_row(path, called.get(path) or "", inside[path], whole), calls=1, kind="outside"))
    return rows


def _own_rows(
    ledger: Ledger, inside: dict[str, PhaseSums], names: list[str], whole: Totals
) -> dict[str, list[SummaryRow]]:
    """By module that holds others: the parameters it has itself, and the functions it calls, in the order of calls."""
    rows: dict[str, list[SummaryRow]] = defaultdict(list)
    holders = {module.path.rpartition(".")[0] for module in ledger.modules if module.path}
    for module in ledger.modules:
        if module.path in holders and module.params:
            name = below(module.path, OWN_PARAMETERS)
            rows[module.path].append(
                replace(
                    _row(name, "own parameters", {}, whole),
                    depth=name.count(".") + 1,
                    params=module.params,
                    trainable_params=module.trainable_params,
                    kind="parameters",
                )
            )
    calls: dict[str, list[Op]] = defaultdict(list)
    for op in ledger.ops:
        if op.kind != "view" and is_function(names[op.index]):
            calls[names[op.index]].append(op)
    for name, ops in calls.items():
        forward = [op for op in ops if op.phase == "forward"]
        first = (forward or ops)[0]
        row = replace(
            _row(name, function_type(len(forward)), inside[name], whole),
            depth=name.count(".") + 1,
            calls=len(forward or ops),
            output=first.outputs[0].shape if first.outputs else None,
            kind="function",
        )
        rows[name.rpartition(".")[0]].append(row)
    return rows


def function_type(calls: int) -> str:
    """What stands where a module has its class."""
    if not calls:
        return "in backward"
    return "function" if calls == 1 else f"{calls} × function"


def _with_own(rows: list[SummaryRow], own: dict[str, list[SummaryRow]]) -> list[SummaryRow]:
    """The modules, parents first, and behind all that is inside a module what it does itself."""
    ordered: list[SummaryRow] = []
    open_: list[str] = []

    def leave(path: str | None) -> None:
        """Modules that are over when this one begins; `None`: all."""
        while open_ and (path is None or not (open_[-1] == "" or path.startswith(open_[-1] + "."))):
            ordered.extend(own.get(open_.pop(), ()))

    for row in rows:
        leave(row.name)
        ordered.append(row)
        open_.append(row.name)
    leave(None)
    return ordered


def ancestry(path: str) -> list[str]:
    paths = [path]
    while path:
        path = path.rpartition(".")[0]
        paths.append(path)
    return paths


def _row(name: str, kind: str, sums: PhaseSums, step: Totals) -> SummaryRow:
    """Of some ops, each of which is a call; a part of the step."""
    totals = sum(sums.values(), Totals())
    share = ratio(totals.flops, step.flops) if step.flops else ratio(totals.other_flops, step.other_flops)
    forward, backward = (sums.get(phase, Totals()) for phase in ("forward", "backward"))
    return SummaryRow(name, kind, 0, totals.ops, None, 0, 0, totals, forward, backward, share)
