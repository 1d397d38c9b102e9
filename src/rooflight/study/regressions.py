"""Conditions on B by A, as `time > 1.05`: whether a comparison fails them, with the noise of its runs in mind.

The language is that of hypotheses; a name stands for the ratio B/A of the quantity. A condition that holds at the
medians but not everywhere between the ends of the runs' own spread is undecided, and fails nothing. "Everywhere" is
told part by part: a comparison holds, does not hold, or depends on where in the spread the ratio is.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from rooflight import formatting, summary
from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.bridge import Bridge
from rooflight.analysis.comparison.bridges import FORMULA_BYTES
from rooflight.analysis.comparison.memory_bridge import CONTEXT, RESERVED
from rooflight.analysis.comparison.sides import Comparison
from rooflight.analysis.comparison.spread import Spread, overlap, ratio_of, spread_of
from rooflight.errors import BadInput
from rooflight.ledger import total
from rooflight.metrics import DRAM_BYTES, Number
from rooflight.study.cell import FACTS, QUANTITIES
from rooflight.study.hypotheses.comparison import calculated, held
from rooflight.study.hypotheses.hypothesis import ARITHMETIC, SIGNS, Hypothesis, NumberLiteral, QuantityTerm
from rooflight.study.hypotheses.lookup import UnavailableValue
from rooflight.study.hypotheses.scanner import Scanner
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import executed_flops, rates
from rooflight.summary.reliability import doubt

GateOutcome = Literal["fails", "undecided", "passes"]
_MOST_NAMES = 6
_EQUAL = frozenset({"=", "!=", "~"})
"""Signs that hold or fail in the middle of a spread, and not only beyond a limit."""


@dataclass(frozen=True)
class ComparedRatio:
    """A quantity on both sides, and B by A."""

    name: str
    a: Spread
    b: Spread
    ratio: Spread
    bridge: Bridge | None
    """Its causes, where they are known: those of this quantity alone."""
    is_by_formula: bool = False
    """Is it worked out from shapes, because a side was not counted?"""
    is_predicted: bool = False
    """Are its ends those of a prediction, and not of repeats?"""

    @property
    def title(self) -> str:
        """As `flops by formula`."""
        return f"{self.name} by formula" if self.is_by_formula else self.name

    @property
    def within(self) -> str:
        """Between what its ends lie."""
        return (
            "the 90% interval of the prediction and the spread of A" if self.is_predicted else "the spread of the runs"
        )


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
            text = f"{ratio.title} of B is {ratio.ratio.value:.4g} × that of A ({ends}"
            if ratio.ratio.varies:
                text += f"; {_between(ratio.ratio)} within {ratio.within}"
            parts.append(f"{text})")
        if self.outcome == "undecided":
            parts.append(self.doubt or self._undecided)
        named = [cause for ratio in self.ratios if (cause := _cause(ratio.bridge))] if self.outcome == "fails" else []
        return "; ".join((*parts, *dict.fromkeys(named)))

    @property
    def _undecided(self) -> str:
        if any(ratio.is_predicted for ratio in self.ratios):
            return "within the error of the prediction: only a measurement of B tells"
        return "within the noise of the runs: measure again, with more steps or on a quieter machine"


def _between(ratio: Spread) -> str:
    return f"{ratio.low:.4g} to {ratio.high:.4g}" if math.isfinite(ratio.high) else f"{ratio.low:.4g} or more"


def _cause(bridge: Bridge | None) -> str:
    """The largest, or that most is unexplained: a small cause must not stand for all."""
    if bridge is None:
        return ""
    write: Callable[[Number], str] = formatting.seconds if bridge.unit == "second" else formatting.whole_count
    write = formatting.whole_bytes if bridge.unit == "byte" else write
    largest, left = bridge.largest, bridge.unexplained
    if left * bridge.difference > 0 and (largest is None or abs(left) > abs(largest.amount)):
        name, amount = "most of it is unexplained:", left
    elif largest is not None:
        name, amount = f"largest cause: {largest.name}", largest.amount
    else:
        return ""
    return f"{name} {'−' if amount < 0 else '+'}{write(abs(amount))} of {bridge.quantity}"


def condition(text: str) -> Hypothesis:
    """A condition that was read and makes sense; else what is wrong with it, and which names there are."""
    if not text.strip():
        raise BadInput(
            "empty-expression", f"--fail-if is empty: write a condition such as 'time > 1.05'; {_there_are()}"
        )
    try:
        read = Scanner(text, None).hypothesis()
        _check(read, read.tree, of_truth=True)
    except BadInput as error:
        told = str(error).replace(_OF_HYPOTHESES, "it is none of those below")
        raise error.reworded(f"--fail-if {text!r}: {told}; {_there_are()}") from None
    return read


_OF_HYPOTHESES = f"one of {', '.join([*QUANTITIES, *FACTS])}"
"""What the language has beside the ratios: of no use here, where most of these are not compared."""


def _there_are() -> str:
    return f"quantities, each as B/A: {', '.join(_SIDES)}"


def judge_condition(read: Hypothesis, comparison: Comparison) -> RegressionVerdict:
    """With the ratios of a comparison. `BadInput` where a side does not know a quantity."""
    names = list(dict.fromkeys(term.name for _, term in read.terms(read.tree)))
    ratios = {name: _ratio(name, comparison, read.text) for name in names}
    point = _truth(read, read.tree, {name: Spread.exact(ratio.ratio.value) for name, ratio in ratios.items()})
    sure = _truth(read, read.tree, {name: ratio.ratio for name, ratio in ratios.items()})
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
                raise BadInput("not-comparable", "only numbers are compared: name a quantity")
            if len(node.comparators) > (2 if isinstance(node.ops[-1], ast.In) else 1):
                raise BadInput("not-comparable", "a comparison cannot be compared again: join two of them with 'and'")
        case ast.BinOp(left=left, right=right) if not of_truth:
            _check(read, left, of_truth=False)
            _check(read, right, of_truth=False)
        case ast.UnaryOp(op=ast.USub(), operand=part) if not of_truth:
            _check(read, part, of_truth=False)
        case ast.Name() if not of_truth:
            _check_leaf(read, node)
        case _:
            raise BadInput(
                "not-comparable",
                f"{read.written(node)!r} is no {'comparison, such as time > 1.05' if of_truth else 'number'}",
            )
    if len({term.name for _, term in read.terms(read.tree)}) > _MOST_NAMES:
        raise BadInput(
            "too-many-quantities", f"more than {_MOST_NAMES} quantities in one condition: give --fail-if several times"
        )


def _check_leaf(read: Hypothesis, node: ast.Name) -> None:
    leaf = read.leaf(node)
    if isinstance(leaf, QuantityTerm):
        if leaf.name not in _SIDES:
            raise BadInput("not-comparable", f"{leaf.name} is not compared here")
        if leaf.filters or leaf.layer or leaf.side:
            raise BadInput("not-comparable", f"{leaf.name} is B/A of the whole step: leave what stands behind it out")
    elif isinstance(leaf, NumberLiteral):
        if leaf.text.endswith("%"):
            raise BadInput(
                "not-comparable",
                f"{leaf.text} is {leaf.value:.4g}, and a name here is B/A: write a ratio, such as 1.05 for 5% more",
            )
        if leaf.dimension is not None:
            raise BadInput("not-comparable", f"{leaf.text} has a unit, and B/A has none: write a ratio, such as 1.05")
    else:
        raise BadInput("not-comparable", f"{read.written(node)!r} is no ratio")


def _truth(read: Hypothesis, node: ast.expr, ratios: Mapping[str, Spread]) -> bool | None:
    """Whether a condition holds wherever in their spreads the ratios are; `None`: here so and there not, or parts of it
    hold in different places, of which nobody knows whether they cover all."""
    match node:
        case ast.BoolOp(op=operator, values=parts):
            decides = isinstance(operator, ast.Or)
            found = {_truth(read, part, ratios) for part in parts}
            return decides if decides in found else None if None in found else not decides
        case ast.UnaryOp(operand=part):
            inner = _truth(read, part, ratios)
            return None if inner is None else not inner
    compare = cast(ast.Compare, node)
    left, right, *within = (_number(read, part, ratios) for part in (compare.left, *compare.comparators))
    sign = SIGNS[type(compare.ops[0])]
    outcomes = {held(sign, *corner)[0] for corner in itertools.product(*map(_ends, (left, right, *within)))}
    if sign in _EQUAL and overlap(left, right):
        outcomes.add(sign != "!=")
    return outcomes.pop() if len(outcomes) == 1 else None


def _ends(spread: Spread) -> set[Number]:
    return {spread.low, spread.high}


def _number(read: Hypothesis, node: ast.expr, ratios: Mapping[str, Spread]) -> Spread:
    leaf = read.leaf(node)
    if isinstance(leaf, QuantityTerm):
        return ratios[leaf.name]
    if isinstance(leaf, NumberLiteral):
        return Spread.exact(leaf.value)
    if isinstance(node, ast.UnaryOp):
        inner = _number(read, node.operand, ratios)
        return Spread(-inner.value, -inner.high, -inner.low)
    operation = cast(ast.BinOp, node)
    left, right = (_number(read, part, ratios) for part in (operation.left, operation.right))
    sign = ARITHMETIC[type(operation.op)]
    try:
        value = calculated(sign, left.value, right.value)
    except UnavailableValue as error:
        raise BadInput(
            "not-computable",
            f"--fail-if {read.text!r}: {read.written(node)!r} cannot be worked out, {error.why}: write a condition "
            "such as 'time > 1.05'",
        ) from None
    return _calculated(sign, left, right, value)


def _calculated(sign: str, left: Spread, right: Spread, value: Number) -> Spread:
    """Between the results of the ends; anywhere, where the divisor may be 0 or a result is too large."""
    if not left.varies and not right.varies:
        return Spread.exact(value)
    anywhere = Spread(value, -math.inf, math.inf)
    if sign == "/" and right.low <= 0 <= right.high:
        return anywhere
    try:
        results = [calculated(sign, *corner) for corner in itertools.product(_ends(left), _ends(right))]
    except UnavailableValue:
        return anywhere
    return Spread(value, min(results), max(results))


def _ratio(name: str, comparison: Comparison, text: str) -> ComparedRatio:
    sides = {"A": comparison.a, "B": comparison.b}
    spreads = {side: _SIDES[name](measured, comparison) for side, measured in sides.items()}
    missing = [side for side, spread in spreads.items() if spread is None]
    if missing:
        raise BadInput(
            "unknown-quantity",
            f"--fail-if {text!r}: {name} of {' and '.join(missing)} is not known; "
            f"known of both: {', '.join(_known(comparison)) or 'nothing'}",
        )
    a, b = cast(Spread, spreads["A"]), cast(Spread, spreads["B"])
    ratio = ratio_of(b, a)
    if ratio is None:
        raise BadInput("not-computable", f"--fail-if {text!r}: {name} of A is 0, and B/A is nothing")
    by_formula = _is_by_formula(name, comparison)
    predicted = name in _TIMES and name != "kernel_time" and comparison.predicted is not None
    bridge = _bridge(name, comparison, a, b, by_formula=by_formula)
    return ComparedRatio(name, a, b, ratio, bridge, by_formula, predicted)


def _bridge(name: str, comparison: Comparison, a: Spread, b: Spread, *, by_formula: bool) -> Bridge | None:
    """The causes of this very quantity: what the allocator holds beyond tensors is no cause of what they take."""
    quantity = FORMULA_BYTES if by_formula and name == "bytes" else _BRIDGES.get(name, "")
    found = next((one for one in comparison.bridges if one.quantity == quantity), None)
    if found is None or found.is_by_formula != by_formula:
        return None
    return found.of_part(a.value, b.value, _NO_CAUSES[name]) if name in _NO_CAUSES else found


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


def _executed(side: Measured, _: Comparison) -> Spread | None:
    done = executed_flops(side)
    return None if done is None else Spread.exact(done)


_COUNTED: dict[str, _Of] = {"flops": _executed, "bytes": _step(*DRAM_BYTES)}


def _is_by_formula(name: str, comparison: Comparison) -> bool:
    """Of what is counted: does a side lack it, or a part of it?"""
    count = _COUNTED.get(name)
    return count is not None and any(count(side, comparison) is None for side in (comparison.a, comparison.b))


def _flops(side: Measured, comparison: Comparison) -> Spread | None:
    """Executed where both sides were counted, else useful."""
    if not _is_by_formula("flops", comparison):
        return _executed(side, comparison)
    useful = total(side.ledger.ops).flops
    return Spread.exact(useful) if useful else None


def _bytes(side: Measured, comparison: Comparison) -> Spread | None:
    """Of DRAM where both sides were counted, else compulsory."""
    if not _is_by_formula("bytes", comparison):
        return _COUNTED["bytes"](side, comparison)
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
        if rate is None or time is None or not time.value:
            return None
        most = rate * time.value / time.low if time.low > 0 else math.inf
        return Spread(rate, rate * time.value / time.high, most)

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
_AROUND = frozenset({causes.LAUNCHES, causes.BETWEEN})
_NO_CAUSES = {
    "gpu_busy": _AROUND,
    "kernel_time": _AROUND | {causes.OVERLAP},
    "memory": frozenset({RESERVED, CONTEXT}),
    "reserved": frozenset({CONTEXT}),
}
"""Of quantities that are a part of the bridge's: causes of the rest."""
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
