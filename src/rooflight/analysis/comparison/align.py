"""The ops of two ledgers joined: by their keys, and where sequences differ by what they do, in their order.

Another device, another torch or another batch may run other ops for the same thing: cuDNN's batch norm or torch's own,
one attention kernel or another, in place or not. Those are aligned inside the same call of the same module. What is
left stays visible.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rooflight.ledger import Ledger, Op

_FAMILIES = (
    ("batch_norm", "batch_norm"), ("attention", "attention"), ("layer_norm", "layer_norm"), ("dropout", "dropout"),
    ("convolution", "convolution"), ("max_pool", "max_pool"), ("avg_pool", "avg_pool"), ("softmax", "softmax"),
    ("addmm", "mm"), ("baddbmm", "mm"), ("bmm", "mm"), ("::mm", "mm"), ("linear", "mm"), ("lstm", "rnn"),
    ("gru", "rnn"), ("_to_copy", "copy"), ("clone", "copy"), ("copy_", "copy"),
)  # fmt: skip


@dataclass(frozen=True)
class Alignment:
    """Pairs of ops, and those that only one side has; views are left out."""

    by_key: int
    by_family: tuple[tuple[Op, Op], ...]
    only_a: tuple[Op, ...]
    only_b: tuple[Op, ...]
    partners: Mapping[int, int]
    """The op of B that stands for an op of A, by their indices; views too, where their keys are the same."""


def align(a: Ledger, b: Ledger) -> Alignment:
    """Ranks may differ."""
    ops_a, ops_b = _counted(a), _counted(b)
    keys_a, keys_b = {op.key[1:] for op in ops_a}, {op.key[1:] for op in ops_b}
    left_a = [op for op in ops_a if op.key[1:] not in keys_b]
    left_b = [op for op in ops_b if op.key[1:] not in keys_a]
    waiting: dict[tuple[str, str, int, str], deque[int]] = defaultdict(deque)
    for index, op in enumerate(left_b):
        waiting[_place(op)].append(index)
    pairs = {index: waiting[_place(op)].popleft() for index, op in enumerate(left_a) if waiting[_place(op)]}
    paired_b = set(pairs.values())
    of_b = {op.key[1:]: op.index for op in reversed(b.ops)}
    by_key = {op.index: of_b[op.key[1:]] for op in a.ops if op.key[1:] in of_b}
    by_family = {left_a[index].index: left_b[partner].index for index, partner in pairs.items()}
    return Alignment(
        by_key=len(ops_a) - len(left_a),
        by_family=tuple((left_a[index], left_b[partner]) for index, partner in pairs.items()),
        only_a=tuple(op for index, op in enumerate(left_a) if index not in pairs),
        only_b=tuple(op for index, op in enumerate(left_b) if index not in paired_b),
        partners=by_key | by_family,
    )


def _counted(ledger: Ledger) -> list[Op]:
    return [op for op in ledger.ops if op.kind != "view"]


def _place(op: Op) -> tuple[str, str, int, str]:
    return op.phase, op.module, op.call, family(op)


def family(op: Op) -> str:
    """What an op does, whoever does it: `aten::cudnn_batch_norm` and `aten::native_batch_norm` are one."""
    packet = op.packet
    backward = ".backward" if "backward" in packet else ""
    for part, name in _FAMILIES:
        if part in packet:
            return name + backward
    return packet.removesuffix("_")


def names(pairs: Iterable[tuple[Op, Op]]) -> dict[tuple[str, str], int]:
    """How often which op stands for which."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for a, b in pairs:
        counts[a.name, b.name] += 1
    return dict(counts)
