"""Conditions on B by A, as `time > 1.05`: whether a comparison fails them, with the noise of its runs in mind.

The language is that of hypotheses; a name stands for the ratio B/A of the quantity. A condition that holds at the
medians but not everywhere between the ends of the runs' own spread is undecided, and fails nothing.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from rooflight import formatting, summary
from rooflight.analysis.comparison.bridge import Bridge
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.spread import Spread, ratio_of, spread_of
from rooflight.errors import BadInput
from rooflight.ledger import total
from rooflight.metrics import DRAM_BYTES, Number
from rooflight.study.hypotheses.comparison import calculated, held
from rooflight.study.hypotheses.hypothesis import ARITHMETIC, SIGNS, Hypothesis, NumberLiteral, QuantityTerm
from rooflight.study.hypotheses.lookup import UnavailableValue
from rooflight.study.hypotheses.scanner import Scanner
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import executed_flops, rates
from rooflight.summary.reliability import doubt

GateOutcome = Literal["fails", "undecided", "passes"]
_MOST_NAMES = 6


@dataclass(frozen=True)
class ComparedRatio:
    """A quantity on both sides, and B by A."""

    name: str
    a: Spread
    b: Spread
    ratio: Spread
    bridge: Bridge | None
    """Its causes, where they are known."""


@dataclass(frozen=True)
class RegressionVerdict:
    """What came of a condition."""

    condition: str
    """As it was given."""
    outcome: GateOutcome
    """`fails`: the condition holds, whatever the noise."""
    ratios: tuple[ComparedRatio, ...]
    """Of the quantities that it names."""
    doubt: str = ""
    """Why times are not to be believed, where one is named and they are not."""

    @property
    def sentence(self) -> str:
        """One line: which condition, by how much, and the largest cause."""
        parts = [f"{self.condition}: {self.outcome}"]
        for ratio in self.ratios:
            write = _WRITE[ratio.name]
            ends = f"{write(ratio.a.value)} → {write(ratio.b.value)}"
            text = f"{ratio.name} of B is {ratio.ratio.value:.4g} × that of A ({ends}"
            if ratio.ratio.varies:
                text += f"; {ratio.ratio.low:.4g} to {ratio.ratio.high:.4g} within the spread of the runs"
            parts.append(f"{text})")
        if self.outcome == "undecided":
            noise = "within the noise of the runs: measure again, with more steps or on a quieter machine"
            parts.append(self.doubt or noise)
        causes = [cause for ratio in self.ratios if (cause := _cause(ratio.bridge))] if self.outcome == "fails" else []
        return "; ".join((*parts, *dict.fromkeys(causes)))


def _cause(bridge: Bridge | None) -> str:
    if bridge is None or bridge.largest is None:
        return ""
    write: Callable[[Number], str] = formatting.seconds if bridge.unit == "second" else formatting.whole_count
    write = formatting.whole_bytes if bridge.unit == "byte" else write
    amount = bridge.largest.amount
    return f"largest cause: {bridge.largest.name} {'−' if amount < 0 else '+'}{write(abs(amount))} of {bridge.quantity}"


def condition(text: str) -> Hypothesis:
    """A condition that was read and makes sense; else what is wrong with it, and which names there are."""
    if not text.strip():
        raise BadInput(f"--fail-if is empty: write a condition such as 'time > 1.05'; {_there_are()}")
    try:
        read = Scanner(text, None).hypothesis()
        _check(read, read.tree, of_truth=True)
    except BadInput as error:
        raise BadInput(f"--fail-if {text!r}: {error}; {_there_are()}") from None
    return read


def _there_are() -> str:
    return f"quantities, each as B/A: {', '.join(_SIDES)}"


def judge_condition(read: Hypothesis, comparison: Comparison) -> RegressionVerdict:
    """With the ratios of a comparison. `BadInput` where a side does not know a quantity."""
    names = list(dict.fromkeys(term.name for _, term in read.terms(read.tree)))
    ratios = {name: _ratio(name, comparison, read.text) for name in names}
    point = _truth(read, read.tree, {name: ratio.ratio.value for name, ratio in ratios.items()})
    corners = itertools.product(*({ratio.ratio.low, ratio.ratio.high} for ratio in ratios.values()))
    sure = all(_truth(read, read.tree, dict(zip(ratios, corner, strict=True))) for corner in corners)
    doubted = _doubt(comparison) if _TIMES.intersection(names) else ""
    outcome: GateOutcome = "passes" if not point else "fails" if sure and not doubted else "undecided"
    return RegressionVerdict(read.text, outcome, tuple(ratios.values()), doubted)


def _doubt(comparison: Comparison) -> str:
    """What a measurement itself says of its times; no regression is told from these."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        if said := doubt(side):
            return f"{name}: {said}"
    return ""


def _check(read: Hypothesis, node: ast.expr, *, of_truth: bool) -> None:
    match node:
        case ast.BoolOp(values=parts) if of_truth:
            for part in parts:
                _check(read, part, of_truth=True)
        case ast.UnaryOp(op=ast.Not(), operand=part) if of_truth:
            _check(read, part, of_truth=True)
        case ast.Compare(left=left, comparators=[right, *_]) if of_truth:
            for part in (left, right):
                _check(read, part, of_truth=False)
            if not read.terms(node):
                raise BadInput("only numbers are compared: name a quantity")
            if len(node.comparators) > (2 if isinstance(node.ops[-1], ast.In) else 1):
                raise BadInput("a comparison cannot be compared again: join two of them with 'and'")
        case ast.BinOp(left=left, right=right) if not of_truth:
            _check(read, left, of_truth=False)
            _check(read, right, of_truth=False)
        case ast.UnaryOp(op=ast.USub(), operand=part) if not of_truth:
            _check(read, part, of_truth=False)
        case ast.Name() if not of_truth:
            _check_leaf(read, node)
        case _:
            raise BadInput(
                f"{read.written(node)!r} is no {'comparison, such as time > 1.05' if of_truth else 'number'}"
            )
    if len({term.name for _, term in read.terms(read.tree)}) > _MOST_NAMES:
        raise BadInput(f"more than {_MOST_NAMES} quantities in one condition: give --fail-if several times")


def _check_leaf(read: Hypothesis, node: ast.Name) -> None:
    leaf = read.leaf(node)
    if isinstance(leaf, QuantityTerm):
        if leaf.name not in _SIDES:
            raise BadInput(f"{leaf.name} is not compared here")
        if leaf.filters or leaf.layer or leaf.side:
            raise BadInput(f"{leaf.name} is B/A of the whole step: leave what stands behind it out")
    elif isinstance(leaf, NumberLiteral):
        if leaf.dimension is not None and not leaf.text.endswith("%"):
            raise BadInput(f"{leaf.text} has a unit, and B/A has none: write a ratio, such as 1.05")
    else:
        raise BadInput(f"{read.written(node)!r} is no ratio")


def _truth(read: Hypothesis, node: ast.expr, ratios: Mapping[str, Number]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(read, part, ratios) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(read, part, ratios) for part in parts)
        case ast.UnaryOp(operand=part):
            return not _truth(read, part, ratios)
    compare = cast(ast.Compare, node)
    left, right, *within = (_number(read, part, ratios) for part in (compare.left, *compare.comparators))
    return held(SIGNS[type(compare.ops[0])], left, right, *within)[0]


def _number(read: Hypothesis, node: ast.expr, ratios: Mapping[str, Number]) -> Number:
    leaf = read.leaf(node)
    if isinstance(leaf, QuantityTerm):
        return ratios[leaf.name]
    if isinstance(leaf, NumberLiteral):
        return leaf.value
    if isinstance(node, ast.UnaryOp):
        return -_number(read, node.operand, ratios)
    operation = cast(ast.BinOp, node)
    left, right = (_number(read, part, ratios) for part in (operation.left, operation.right))
    try:
        return calculated(ARITHMETIC[type(operation.op)], left, right)
    except UnavailableValue as error:
        raise BadInput(f"--fail-if {read.text!r}: {error}") from None


def _ratio(name: str, comparison: Comparison, text: str) -> ComparedRatio:
    sides = {"A": comparison.a, "B": comparison.b}
    spreads = {side: _SIDES[name](measured, comparison) for side, measured in sides.items()}
    missing = [side for side, spread in spreads.items() if spread is None]
    if missing:
        raise BadInput(
            f"--fail-if {text!r}: {name} of {' and '.join(missing)} is not known; "
            f"known of both: {', '.join(_known(comparison)) or 'nothing'}"
        )
    a, b = cast(Spread, spreads["A"]), cast(Spread, spreads["B"])
    ratio = ratio_of(b, a)
    if ratio is None:
        raise BadInput(f"--fail-if {text!r}: {name} of A is 0, and B/A is nothing")
    bridges = {bridge.quantity: bridge for bridge in comparison.bridges}
    return ComparedRatio(name, a, b, ratio, bridges.get(_BRIDGES.get(name, "")))


def _known(comparison: Comparison) -> list[str]:
    return [
        name
        for name, of in _SIDES.items()
        if of(comparison.a, comparison) is not None and of(comparison.b, comparison) is not None
    ]


_Of = Callable[[Measured, Comparison], Spread | None]


def _step(*names: str) -> _Of:
    """Of the whole step; several are added up."""

    def of(side: Measured, _: Comparison) -> Spread | None:
        values = [spread_of(side.step[name]) for name in names if name in side.step]
        if len(values) < len(names):
            sums = [side.total.get(name) for name in names]
            known = [amount for amount in sums if amount is not None]
            return Spread.exact(sum(known)) if len(known) == len(names) else None
        return Spread(*(sum(getattr(value, end) for value in values) for end in ("value", "low", "high")))

    return of


def _time(name: str) -> _Of:
    def of(side: Measured, comparison: Comparison) -> Spread | None:
        cell = None if comparison.predicted is None or side is not comparison.b else comparison.predicted.prediction
        interval = None if cell is None else {"wall_time_s": cell.time_interval_s}.get(name, cell.gpu_time_interval_s)
        if interval is not None and name in side.step:
            return Spread(side.step[name].value, interval.low, interval.high)
        return _step(name)(side, comparison)

    return of


def _flops(side: Measured, comparison: Comparison) -> Spread | None:
    """Executed where both sides were counted, else useful."""
    if comparison.flops_basis == ("executed", "executed"):
        done = executed_flops(side)
    else:
        done = total(side.ledger.ops).flops or None
    return None if done is None else Spread.exact(done)


def _bytes(side: Measured, comparison: Comparison) -> Spread | None:
    """Of DRAM where both sides were counted, else compulsory."""
    if comparison.bytes_basis == ("DRAM", "DRAM"):
        return _step(*DRAM_BYTES)(side, comparison)
    asked = total(side.ledger.ops).bytes
    return Spread.exact(asked) if asked else None


def _memory(name: str) -> _Of:
    def of(side: Measured, comparison: Comparison) -> Spread | None:
        joined = comparison.memory.joined
        if joined is None:
            return _step(name)(side, comparison)
        known = getattr(joined.a if side is comparison.a else joined.b, name)
        return None if known is None else Spread.exact(known)

    return of


def _rate(name: str) -> _Of:
    """A rate lies the other way round than the time that it is of."""

    def of(side: Measured, comparison: Comparison) -> Spread | None:
        rate, time = getattr(rates(side), name), _time("wall_time_s")(side, comparison)
        if rate is None or time is None or time.low <= 0:
            return None
        return Spread(rate, rate * time.value / time.high, rate * time.value / time.low)

    return of


_SIDES: dict[str, _Of] = {
    "time": _time("wall_time_s"),
    "gpu_busy": _time("gpu_busy_s"),
    "kernel_time": _step("kernel_time_s"),
    "throughput": _rate("samples_per_s"),
    "tokens": _rate("tokens_per_s"),
    "flops": _flops,
    "bytes": _bytes,
    "memory": _memory("peak_allocated_bytes"),
    "reserved": _memory("peak_reserved_bytes"),
    "kernels": _step("kernels"),
    "params": lambda side, _: Spread.exact(summary.params(side.ledger)) if side.ledger.modules else None,
}
"""By the names of hypotheses."""
_TIMES = frozenset({"time", "gpu_busy", "kernel_time", "throughput", "tokens"})
_BRIDGES = {
    "time": "time", "throughput": "time", "tokens": "time", "gpu_busy": "time", "kernel_time": "time",
    "flops": "FLOPs", "bytes": "DRAM bytes", "memory": "memory", "reserved": "memory",
}  # fmt: skip
"""Whose causes tell why."""
_WRITE: dict[str, Callable[[Number], str]] = {
    "time": formatting.seconds,
    "gpu_busy": formatting.seconds,
    "kernel_time": formatting.seconds,
    "throughput": lambda rate: f"{formatting.whole_count(rate)}/s",
    "tokens": lambda rate: f"{formatting.whole_count(rate)}/s",
    "bytes": formatting.whole_bytes,
    "memory": formatting.whole_bytes,
    "reserved": formatting.whole_bytes,
    "flops": formatting.whole_count,
    "kernels": formatting.whole_count,
    "params": formatting.whole_count,
}


def judge_all(conditions: Sequence[Hypothesis], comparison: Comparison) -> list[RegressionVerdict]:
    """In their order."""
    return [judge_condition(read, comparison) for read in conditions]
