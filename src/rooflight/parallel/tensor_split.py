"""Which ops of a transformer block tensor parallelism divides, and what becomes of their time.

Megatron-LM (Shoeybi et al. 2019): the first matmul of a branch is cut by columns (each rank makes a part of the
features), the last by rows (each rank makes a part of the sum), and everything between the two runs on a part of the
heads or features. So a branch is a stretch of ops from its first column matmul to its row matmul, found here in the
order of execution; in backward from the row's matmuls to the last of the columns'. What lies outside (norms,
residuals, dropout) every rank does in full, unless the sequence is cut there too.

The head behind the last block and the loss are cut along the vocabulary, the embedding too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.ledger import LOSS, Cost, Ledger, Op, Tensor, is_inside
from rooflight.parallel.blocks import Model, ModelUnit, is_attention, whole_branches

Role = Literal["column", "row"]

_MATMULS = frozenset({"mm", "addmm"})
TILES = ((256, 128), (128, 256), (128, 128))
"""Rows and columns of the output that one SM works on: the most efficient of cuBLAS (NVIDIA, "Matrix Multiplication
Background User's Guide", section 2.3).
"""
SHORTEST_KERNEL_S = 0.75e-6
"""No kernel gets shorter than this by being cut (the shortest in the H200 recordings take 0.7 to 0.8 us)."""


class Gemm(NamedTuple):
    """`batch` products of [m, k] and [k, n]."""

    batch: int
    m: int
    n: int
    k: int

    def work(self, sms: int) -> int:
        """Multiply-adds an SM has time for while all get through the tiles: whole tiles, in whole rounds.

        The library is taken to choose the tile that wastes least.
        """
        rounds = {
            (rows, columns): math.ceil(self.batch * math.ceil(self.m / rows) * math.ceil(self.n / columns) / sms)
            for rows, columns in TILES
        }
        return min(count * rows * columns * self.k for (rows, columns), count in rounds.items())


@dataclass
class TensorCut:
    """Where a model is cut."""

    inside: set[int] = field(default_factory=set)
    """Ops on a part of the heads, features or vocabulary."""
    outside: set[int] = field(default_factory=set)
    """Ops of blocks that every rank repeats."""
    axis: dict[int, Literal["m", "n", "k"]] = field(default_factory=dict)
    """Weight matmuls, and which of their dimensions is cut."""
    sums_forward: list[int] = field(default_factory=list)
    """Ops after which the ranks' parts are added up."""
    sums_backward: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """The same in backward, with the ops of the weight's gradient that can hide it."""
    weights: set[int] = field(default_factory=set)
    """Storages of the weight matrices that are cut."""
    cut_bytes: int = 0
    replicated: Counter[str] = field(default_factory=Counter)
    """Bytes of what every rank holds whole, by name: norms and biases in one, the matrices each."""

    def held_share(self, ranks: int) -> float:
        """The part of the model's weights that one rank holds."""
        whole = self.replicated.total()
        total = self.cut_bytes + whole
        return (self.cut_bytes / ranks + whole) / total if total else 1.0


def gemm_of(op: Op) -> Gemm | None:
    """The product an op computes; `None` for one that is no plain matmul."""
    matrices = [tensor.shape for tensor in op.inputs if len(tensor.shape) >= 2][-2:]
    if len(matrices) < 2 or not op.outputs:
        return None
    a, b = matrices
    if len(a) == 2 == len(b) and a[1] == b[0]:
        return Gemm(1, a[0], b[1], a[1])
    if len(a) == 3 == len(b) and a[2] == b[1]:
        return Gemm(a[0], a[1], b[2], a[2])
    return None


def tensor_cut_of(ledger: Ledger, model: Model) -> TensorCut:
    """Where tensor parallelism cuts the model; empty `inside` where it has no transformer blocks."""
    parts = TensorCut()
    owners = {module.path for module in ledger.modules if module.params or module.tied}
    for number in model.blocks:
        _cut_block(ledger, model.units[number], owners, parts)
    if model.blocks:
        before = model.units[: model.blocks[0]]
        after = model.units[model.blocks[-1] + 1 :]
        _cut_ends(ledger, before, (model.units[model.blocks[-1]], *after), owners, parts)
        _cut_weights(ledger, [model.units[number].path for number in model.blocks], parts)
    return parts


_VECTORS = "norms and biases"
_MOST_WHOLE = 0.02
"""Of a model's weights: matrices of blocks that may stay whole. Tables of positions are below 1% (T5, Swin)."""


def _cut_weights(ledger: Ledger, blocks: Sequence[str], parts: TensorCut) -> None:
    """Share out the weights by data flow: those that a cut product multiplies are cut, all others are named as whole.

    Raise where more than small tables of a block stay whole: a product was not understood.
    """
    stored = {row.id: row for row in ledger.storages if row.category == "parameter"}
    source = {number: number for number in stored}  # also of the copies that autocast makes
    matrices = set()
    for op in ledger.ops:
        made_of = {source[tensor.storage]: tensor for tensor in op.inputs if tensor.storage in source}
        if op.packet == "aten::_to_copy" and op.phase == "forward":
            source |= {tensor.storage: number for number in made_of for tensor in op.outputs}
        used = {number for number, tensor in made_of.items() if len(tensor.shape) >= 2}
        matrices |= used
        if op.index in parts.axis or op.index in parts.sums_forward:
            parts.weights |= used
    unknown: Counter[str] = Counter()
    for number, row in stored.items():
        block = next((path for path in blocks if is_inside(row.name, path)), None)
        if number in parts.weights:
            parts.cut_bytes += row.nbytes
        elif number not in matrices:
            parts.replicated[_VECTORS] += row.nbytes
        else:
            parts.replicated[row.name if block is None else row.name.removeprefix(f"{block}.")] += row.nbytes
            unknown[row.name] += 0 if block is None else row.nbytes
    share = unknown.total() / max(parts.cut_bytes + parts.replicated.total(), 1)
    if share > _MOST_WHOLE:
        raise BadInput(
            "layout-not-modelled",
            f"tensor parallelism of this model is not modelled: {share:.0%} of its weights would stay whole on every "
            f"rank, such as {unknown.most_common(1)[0][0]}: use fsdp, zero3 or pp",
        )


def _weight_matmuls(ledger: Ledger, ops: Sequence[int], owners: set[str]) -> list[int]:
    return [
        index
        for index in ops
        if (op := ledger.ops[index]).packet.removeprefix("aten::") in _MATMULS
        and op.module in owners
        and gemm_of(op) is not None
    ]


def _roles(ledger: Ledger, unit: ModelUnit, matmuls: Sequence[int]) -> dict[int, Role]:
    """The first weight matmul after attention is a row, so is the last of the block; all others are columns."""
    roles: dict[int, Role] = {}
    weights = set(matmuls)
    attended = False
    for index in unit.forward:
        if is_attention(ledger.ops[index]):
            attended = True
        elif index in weights:
            roles[index] = "row" if attended else "column"
            attended = False
    if matmuls:
        roles[matmuls[-1]] = "row"
    return roles


def _cut_block(ledger: Ledger, unit: ModelUnit, owners: set[str], parts: TensorCut) -> None:
    forward = _weight_matmuls(ledger, unit.forward, owners)
    roles = _roles(ledger, unit, forward)
    back = _backward_roles(ledger, unit, forward, roles, owners, parts)
    for index in forward:
        parts.axis[index] = "n" if roles[index] == "column" else "k"
    inside = _stretches(ledger, unit.forward, roles, first="column", last="row")
    inside |= _stretches(ledger, unit.backward, back, first="row", last="column")
    branch_ops = [index for index in unit.forward if whole_branches(ledger.ops[index])]
    inside |= set(branch_ops)
    parts.inside |= inside
    parts.sums_forward += [index for index in branch_ops for _ in range(whole_branches(ledger.ops[index]))]
    rows = _branches(ledger, unit, [index for index in forward if roles[index] == "row"])
    sums = [branch[-1] for branch in rows]
    parts.sums_forward += sums
    for index, source in _repeats(ledger, unit).items():  # what runs again is cut as it was
        if source in inside:
            parts.inside.add(index)
        if source in parts.axis:
            parts.axis[index] = parts.axis[source]
        if source in sums:
            parts.sums_backward.append((index, ()))
    parts.outside |= {index for index in (*unit.forward, *unit.backward) if index not in parts.inside}
    columns = [index for index, role in sorted(back.items()) if role == "column"]
    for branch in _branches(ledger, unit, columns):
        weight_gradients = tuple(index for index in branch if parts.axis[index] != "k")
        parts.sums_backward.append((branch[-1], weight_gradients))


def _backward_roles(
    ledger: Ledger, unit: ModelUnit, forward: Sequence[int], roles: dict[int, Role], owners: set[str], parts: TensorCut
) -> dict[int, Role]:
    """Each backward matmul belongs to the forward one of its module with the same three sizes; two for each."""
    taken: Counter[int] = Counter()
    backward: dict[int, Role] = {}
    for index in _weight_matmuls(ledger, unit.backward, owners):
        op = ledger.ops[index]
        if op.recompute:
            continue
        gemm = gemm_of(op)
        assert gemm is not None
        for source in reversed(forward):
            forward_gemm = gemm_of(ledger.ops[source])
            assert forward_gemm is not None
            if ledger.ops[source].module != op.module or sorted(forward_gemm) != sorted(gemm) or taken[source] >= 2:
                continue
            taken[source] += 1
            backward[index] = roles[source]
            parts.axis[index] = _backward_axis(roles[source], forward_gemm, gemm)
            break
    return backward


def _repeats(ledger: Ledger, unit: ModelUnit) -> dict[int, int]:
    """The ops that a checkpointed block runs again in backward, and the op of forward that each repeats."""

    def numbered(ops: Iterable[int]) -> Iterator[tuple[int, tuple[str, str, int]]]:
        seen: Counter[tuple[str, str]] = Counter()
        for index in ops:
            key = ledger.ops[index].module, ledger.ops[index].name
            yield index, (*key, seen[key])
            seen[key] += 1

    first = {key: index for index, key in numbered(unit.forward)}
    again = numbered(index for index in unit.backward if ledger.ops[index].recompute)
    return {index: first[key] for index, key in again if key in first}


def _backward_axis(role: Role, forward: Gemm, gemm: Gemm) -> Literal["m", "n", "k"]:
    """Forward made [tokens, in] x [in, out]: the input's gradient sums over `out`, the weight's over tokens."""
    tokens, features_out, features_in = forward.m, forward.n, forward.k
    of_weight = gemm.k == tokens and {gemm.m, gemm.n} == {features_in, features_out}
    if not of_weight:
        return "k" if role == "column" else "n"
    cut = features_out if role == "column" else features_in
    return "m" if gemm.m == cut and gemm.n != cut else "n"


def _stretches(ledger: Ledger, ops: Sequence[int], roles: dict[int, Role], *, first: Role, last: Role) -> set[int]:
    """All ops from the first matmul of one role to the last of the other before the next of the first, with what the
    last one's module does behind it in backward: the gradient of a bias.
    """
    inside: set[int] = set()
    start: int | None = None
    end: int | None = None
    for place, index in enumerate(ops):
        role = roles.get(index)
        if role == first and end is not None:
            inside.update(ops[start : end + 1])
            start = end = None
        if role == first and start is None:
            start = place
        elif role == last and start is not None:
            end = place
        elif end is not None and end == place - 1 and last == "column":
            same = ledger.ops[index].module == ledger.ops[ops[end]].module
            end = place if same else end
    if end is not None:
        inside.update(ops[start : end + 1])
    return inside


def _branches(ledger: Ledger, unit: ModelUnit, ops: Sequence[int]) -> Iterable[list[int]]:
    """Ops by the child of the block they run in: attention and MLP."""
    branches: dict[str, list[int]] = {}
    for index in ops:
        below = ledger.ops[index].module[len(unit.path) :].lstrip(".")
        branches.setdefault(below.partition(".")[0], []).append(index)
    return branches.values()


def _cut_ends(
    ledger: Ledger, before: Sequence[ModelUnit], after: Sequence[ModelUnit], owners: set[str], parts: TensorCut
) -> None:
    """The embedding (its rows), the head (its columns) and the loss, all along the vocabulary."""
    embeddings = [index for unit in before for index in unit.forward if ledger.ops[index].packet == "aten::embedding"]
    if embeddings:
        largest = max(embeddings, key=lambda index: next(iter(ledger.ops[index].inputs)).numel)
        parts.sums_forward.insert(0, largest)
        parts.inside |= {index for unit in before for index in unit.backward if "embedding" in ledger.ops[index].name}
    for unit in after:
        for index in (*unit.forward, *unit.backward):
            if ledger.ops[index].module == LOSS:
                parts.inside.add(index)
                parts.outside.discard(index)
    for unit in after[1:]:
        forward = _weight_matmuls(ledger, unit.forward, owners)
        roles: dict[int, Role] = dict.fromkeys(forward, "column")
        backward = _backward_roles(ledger, unit, forward, roles, owners, parts)
        for index in forward:
            parts.axis[index] = "n"
        parts.inside |= {*forward, *backward}
        if backward:
            weight = tuple(index for index in backward if parts.axis[index] != "k")
            parts.sums_backward.append((list(backward)[-1], weight))


def cut_gemm(gemm: Gemm, axis: Literal["m", "n", "k"], ranks: int) -> Gemm:
    return gemm._replace(**{axis: math.ceil(getattr(gemm, axis) / ranks)})


def cut_op(op: Op, axis: Literal["m", "n", "k"] | None, ranks: int) -> Op | None:
    """The op as one rank runs it, for a model of time to look at; `None` where its shapes do not tell."""
    gemm = gemm_of(op)
    if gemm is None or op.cost is None:
        return None
    smaller = cut_gemm(gemm, axis, ranks) if axis else gemm._replace(batch=math.ceil(gemm.batch / ranks))
    names = [name for name, value in op.args.items() if isinstance(value, Tensor) and len(value.shape) >= 2][-2:]
    lead = (smaller.batch,) if gemm.batch > 1 or len(op.outputs[0].shape) == 3 else ()
    shapes = {names[0]: (*lead, smaller.m, smaller.k), names[1]: (*lead, smaller.k, smaller.n)}
    args = {
        name: replace(value, shape=shapes[name], strides=None)
        if isinstance(value, Tensor) and name in shapes
        else value
        for name, value in op.args.items()
    }
    out = op.outputs[0]
    output = replace(out, shape=(*lead, smaller.m, smaller.n), strides=None)
    read = sum(math.prod(shape) for shape in shapes.values()) * out.itemsize
    macs = smaller.batch * smaller.m * smaller.n * smaller.k
    cost = Cost(
        op.cost.origin,
        macs=macs,
        flops=2 * macs,
        other_flops=op.cost.other_flops,
        bytes_read=read,
        bytes_written=output.nbytes,
        flops_causal=2 * macs,
    )
    return replace(op, args=args, outputs=(output, *op.outputs[1:]), cost=cost)
