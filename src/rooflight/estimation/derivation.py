"""The pen-and-paper derivation of a layer, as data: formula, substitution, result, for every op that runs in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs

from rooflight.errors import BadInput, RooflightError
from rooflight.estimation.costs import work_of
from rooflight.ledger import OUTSIDE, Cost, Ledger, Module, Note, Op, Tensor, is_inside
from rooflight.ops.expressions import evaluate, symbols
from rooflight.ops.fused_layers import FusedPart, fused_parts
from rooflight.ops.registry import Work

# What the letters of a formula mean, by a word in the op's name; the first that fits speaks.
_MEANINGS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "conv",
        {
            "N": "batch", "Cin": "input channels", "Cout": "output channels", "Ho": "output height",
            "Wo": "output width", "Do": "output depth", "Hi": "input height", "Wi": "input width",
            "Di": "input depth", "Kh": "kernel height", "Kw": "kernel width", "Kd": "kernel depth", "G": "groups",
            "P": "passes", "dy": "elements of the output's gradient",
        },
    ),
    ("attention", {"B": "batch", "H": "heads", "Sq": "queries", "Sk": "keys", "D": "head size", "Dv": "value size",
                   "S": "sequence", "E": "width"}),
    ("encoder_layer", {"B": "batch", "H": "heads", "S": "sequence", "E": "width", "F": "feed-forward width"}),
    ("sparse::", {"z": "nonzeros", "K": "summed over", "N": "columns", "e": "bytes per element",
                  "s": "bytes of the sparse matrix, and of what is added"}),
    ("mm", {"M": "rows", "K": "summed over", "N": "columns", "b": "matrices"}),
    ("pool", {"N": "batch", "C": "channels", "Ho": "output height", "Wo": "output width", "Kh": "window height",
              "Kw": "window width"}),
    ("rnn", {"T": "time steps x batch", "W": "weight elements", "P": "passes", "L": "layers", "D": "directions",
             "H": "hidden size", "c": "operations per element"}),
    ("embedding", {"n": "indices", "D": "row size", "V": "rows of the table", "e": "bytes per element",
                   "i": "bytes per index"}),
    ("norm", {"n": "elements", "C": "channels", "R": "rows", "D": "normalised size"}),
    ("trilinear", {"U": "slices", "F": "terms of the first product", "T": "terms of the second", "R": "results"}),
    ("dist", {"n": "pairs", "D": "coordinates", "M": "rows", "N": "rows of the other"}),
    ("", {"n": "elements", "e": "bytes per element", "i": "bytes per index"}),
)  # fmt: skip


@dataclass(frozen=True)
class MovedTensor:
    """A tensor that is read or written, and its bytes."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class OpDerivation:
    """One op: its work as expressions, and the tensors it moves."""

    op: Op
    work: Work | None
    place: str
    """Path of the module it runs in, below the one that is derived."""
    times: int
    """How many equal ops this stands for."""
    read: tuple[MovedTensor, ...]
    written: tuple[MovedTensor, ...]
    legend: tuple[tuple[str, str, int | float], ...]
    """Symbols with their meaning and value."""
    is_part: bool = False
    """Is it the share of one layer in an op that does the work of several?"""


@dataclass(frozen=True)
class Derivation:
    """A layer and everything that runs in it."""

    ledger: Ledger
    path: str
    module: Module | None
    ops: tuple[OpDerivation, ...]
    notes: tuple[Note, ...] = ()
    """What a reader should know of it."""

    @property
    def modules(self) -> list[Module]:
        return [module for module in self.ledger.modules if is_inside(module.path, self.path)]

    @property
    def params(self) -> int:
        return sum(module.params for module in self.modules)

    @property
    def param_bytes(self) -> int:
        return sum(module.param_bytes for module in self.modules)


def derive(ledger: Ledger, path: str, *, rows: Sequence[str] | None = None, notes: Sequence[Note] = ()) -> Derivation:
    """The derivation of the module at `path`, and of all below it; with `rows`, the row that every op is in
    (`summary.functions.row_names`), also of a function that a module calls."""
    module = next((module for module in ledger.modules if module.path == path), None)
    rows = [op.module for op in ledger.ops] if rows is None else rows
    ops = [op for op in ledger.ops if op.kind == "compute" and is_inside(rows[op.index], path)]
    if ops:
        return Derivation(ledger, path, module, tuple(_derive(alike, path) for alike in _grouped(ops)), tuple(notes))
    inside = _inside_fused(ledger, path)
    if inside:
        around = inside[0].op.name.rpartition(" ")[2]
        said = Note(
            "inside-fused-op",
            f"it runs inside {around}, one op for the whole of {inside[0].op.module or ledger.header.model}: what "
            "passes between its layers is no compulsory byte of it, so of this layer's bytes only the parameters count",
        )
        return Derivation(ledger, path, module, inside, (*notes, said))
    if module is None and path not in OUTSIDE:
        raise BadInput("unknown-layer", f"no layer {path!r} in {ledger.header.model}")
    kind = module.type if module else "phase"
    raise BadInput("idle-layer", f"{path} runs nothing in this step (a {kind} may be idle outside training)")


def _inside_fused(ledger: Ledger, path: str) -> tuple[OpDerivation, ...]:
    """The parts of a layer in ops that do the work of several, where it runs no op of its own."""
    parts = [
        _derive_part(op, part)
        for op in ledger.ops
        if path != op.module and is_inside(path, op.module)
        for part in fused_parts(op)
        if part.layer and is_inside(f"{op.module}.{part.layer}".removeprefix("."), path)
    ]
    return tuple(parts)


def _derive_part(op: Op, part: FusedPart) -> OpDerivation:
    """Of the op's compulsory bytes, a layer has its own parameters."""
    tensors = {name: op.tensor(name) for name in part.parameters if op.has(name)}
    named = {"bias" if "bias" in name else "weight": tensor for name, tensor in tensors.items()}
    work, macs = part.work, evaluate(part.work.macs, part.work.where)
    cost = Cost(
        origin=f"its part of formula {op.packet}",
        macs=macs,
        flops=2 * macs,
        flops_causal=2 * macs,
        other_flops=evaluate(work.other, work.where),
        bytes_read=sum(tensor.nbytes for tensor in named.values()),
        bytes_written=0,
    )
    inside = structs.replace(op, name=f"{part.layer} inside {op.name}", args=dict(named), outputs=(), cost=cost)
    read = tuple(MovedTensor(name, tensor) for name, tensor in named.items())
    return OpDerivation(inside, work, "", 1, read, (), _legend(op, work), is_part=True)


def derive_each(ledger: Ledger) -> tuple[list[OpDerivation], dict[int, int]]:
    """The derivations of all ops that compute, those that are alike once; and by op which of them is its own.

    An op whose tensors do not tell what its formula asks for has none.
    """
    derivations: list[OpDerivation] = []
    which: dict[int, int] = {}
    for ops in _grouped(op for op in ledger.ops if op.kind == "compute"):
        try:
            derived = _derive(ops[:1], ops[0].module)
        except RooflightError:
            continue
        which.update((op.index, len(derivations)) for op in ops)
        derivations.append(derived)
    return derivations, which


def _grouped(ops: Iterable[Op]) -> Iterable[list[Op]]:
    """Those that are alike together."""
    groups: dict[object, list[Op]] = {}
    for op in ops:
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in (*op.inputs, *op.outputs))
        groups.setdefault((op.phase, op.name, shapes, op.recompute, op.cost), []).append(op)
    return groups.values()


def _derive(ops: list[Op], path: str) -> OpDerivation:
    op = ops[0]
    places = list(dict.fromkeys(alike.module.removeprefix(path).removeprefix(".") for alike in ops))
    place = places[0] + (f" and {len(places) - 1} more" if len(places) > 1 else "")
    work = work_of(op)
    read = [MovedTensor(name, tensor) for name in op.args for tensor in op.tensors(name)]
    written = [
        MovedTensor("output" if len(op.outputs) == 1 else f"output {i}", tensor) for i, tensor in enumerate(op.outputs)
    ]
    written += [
        MovedTensor(name, tensor) for name in op.mutates for tensor in op.tensors(name) if tensor not in op.outputs
    ]
    legend = _legend(op, work) if work else ()
    return OpDerivation(op, work, place, len(ops), tuple(read), tuple(written), legend)


def _legend(op: Op, work: Work) -> tuple[tuple[str, str, int | float], ...]:
    meanings = next(words for sign, words in _MEANINGS if sign in op.packet)
    return tuple((symbol, meanings.get(symbol, ""), work.where[symbol]) for symbol in _used(work))


def _used(work: Work) -> list[str]:
    """The symbols that a reader meets in the expressions, in that order."""
    texts = (work.macs, work.causal_macs or 0, work.recompute_macs, work.other, work.reads or 0, work.writes or 0)
    return list(dict.fromkeys(symbol for text in texts for symbol in symbols(text)))
