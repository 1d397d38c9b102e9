"""A closed form as text for a terminal, as LaTeX and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rooflight.estimation.symbolic import ClosedForm, ClosedFormRow
from rooflight.estimation.symbolic.fits import PolynomialFit, point_text
from rooflight.estimation.symbolic.growth import Growth
from rooflight.estimation.symbolic.layers import LikeLayers, alike, at_depth, describe_symbols, ranking
from rooflight.estimation.symbolic.polynomial import ZERO, Point
from rooflight.estimation.symbolic.samples import COSTS, Quantity

WIDTH = 100
_HARD_SPACE = "\N{NO-BREAK SPACE}"

_LINES: tuple[tuple[Quantity, str], ...] = (
    ("macs", "MACs"),
    ("flops", "FLOPs"),
    ("recompute_flops", "recomputed"),
    ("other_flops", "other FLOPs"),
    ("bytes", "bytes"),
)
_BELOW_TOTAL = _LINES[1:]


def to_text(form: ClosedForm, *, depth: int | None = None, top: int = 10) -> str:
    """The total, the ranking of the `top` layers by growth, then every layer; `depth` rolls deeper modules up."""
    layers = alike(form.rows if depth is None else at_depth(form, depth))
    lines = [*_heading(form), "", *_total(form), "", *_ranking(form, top), "", "Layers"]
    for each in layers:
        if each.row.ops:
            lines += _layer(form, each)
    return "\n".join(lines) + "\n"


def _wrapped(first: str, text: str) -> list[str]:
    """`text` after `first`, its further lines below it."""
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]


def _together(parts: Iterable[str]) -> str:
    """A list whose items are not broken over lines."""
    return ", ".join(part.replace(" ", _HARD_SPACE) for part in parts)


def _heading(form: ClosedForm) -> Iterator[str]:
    symbols = ", ".join(f"{name} = {meaning}" for name, meaning in describe_symbols(form).items())
    yield f"Closed form of {form.model} ({form.step}, {form.dtype}): {symbols}"
    batches, sequences = (_axis(form.fitted, axis) for axis in (0, 1))
    fitted = f"B = {batches}" + (f" with S = {sequences}" if sequences else "")
    verified = "; ".join(point_text(point).replace(" ", _HARD_SPACE) for point in form.verified)
    yield from _wrapped(
        "", f"Exact: fitted at {fitted}; verified at {verified}. 1 MAC = 2 FLOPs; bytes are compulsory."
    )
    what = "kept for backward" if form.step == "train" else "outputs of leaf modules"
    yield from _wrapped("", f"Activations are bytes: {what}. Big-O drops constant factors and keeps the model's sizes.")
    for note in form.notes:
        yield from _wrapped("", note.text)


def _axis(points: Iterable[Point], axis: int) -> str:
    return ", ".join(dict.fromkeys(str(point[axis]) for point in points if point[axis] is not None))


def _total(form: ClosedForm) -> Iterator[str]:
    yield f"Total: {form.total.params} parameters"
    yield from _costs(form, form.total, _LINES, terms=True)


def _costs(
    form: ClosedForm, row: ClosedFormRow, quantities: Sequence[tuple[Quantity, str]], *, terms: bool = False
) -> Iterator[str]:
    """`terms`: also which ops a sum of several terms comes from."""
    for phase, costs in row.phases.items():
        growth = row.growth.get(phase)
        yield from _growth_lines(phase, growth, form)
        for quantity, name in quantities:
            yield from _fit_lines(name, costs[quantity])
        if terms and growth is not None and len(growth.terms) > 1:
            for term in growth.terms:
                ops = ", ".join(f"{count} {name}" for name, count in term.ops)
                yield from _wrapped(f"    {term.text} from ", ops)
    yield from _fit_lines("activations", row.activations, indent=2)
    if row.uncounted:
        yield from _wrapped("  not covered: ", ", ".join(row.uncounted))


def _growth_lines(phase: str, growth: Growth | None, form: ClosedForm) -> Iterator[str]:
    if growth is None:
        yield f"  {phase}"
        return
    text = str(growth) + (" bytes" if growth.basis == "bytes" else "")
    longest = growth.in_sequence
    if form.has_sequence and str(longest) != str(growth):
        text += f"; as S grows {longest}"
    yield from _wrapped(f"  {phase:<13} ", ", ".join(part for part in (text, _together(growth.where)) if part))


def _fit_lines(name: str, fit: PolynomialFit, *, indent: int = 4) -> Iterator[str]:
    if fit.polynomial == ZERO:
        return
    start = " " * indent + f"{name:<{15 - indent}} "
    yield from _wrapped(start, str(fit))
    if fit.polynomial is not None and fit.holds:
        yield from _wrapped(" " * len(start) + "for ", _together(map(str, fit.holds)))


def _ranking(form: ClosedForm, top: int) -> Iterator[str]:
    lines = [line for line in ranking(form) if line.growth is not None and line.growth.basis == "flops"]
    yield f"Ranking by growth (all phases; the first {min(top, len(lines))} of {len(lines)} kinds of layer)"
    for place, line in enumerate(lines[:top], 1):
        work = "operations without a closed form" if line.work is None else f"{line.work} operations"
        count = f", {line.layers.count} together" if line.layers.count > 1 else ""
        yield from _wrapped(f"  {place:>3} ", f"{line.growth}  {_name(form, line.layers)}: {work}{count}")


def _name(form: ClosedForm, layers: LikeLayers) -> str:
    return layers.label or form.model


def _layer(form: ClosedForm, layers: LikeLayers) -> Iterator[str]:
    row = layers.row
    facts = [row.type] if row.type else []
    each = f"{layers.count} alike, each " if layers.count > 1 else ""
    if row.params.polynomial != ZERO:
        facts.append(f"{each}{row.params} parameters")
    elif each:
        facts.append(each.rstrip())
    yield from _wrapped(f"{_name(form, layers)}  ", ", ".join(facts)) or [_name(form, layers)]
    yield from _costs(form, row, _BELOW_TOTAL)


# --- LaTeX -----------------------------------------------------------------------------------------------------------


def to_latex(form: ClosedForm, *, depth: int | None = None) -> str:
    """A longtable: layer, phase, quantity, polynomial or Big-O."""
    lines = [r"\begin{longtable}{llll}", r"layer & phase & quantity & closed form \\ \hline"]
    lines += _latex_rows("total", form.total, _LINES)
    for layers in alike(form.rows if depth is None else at_depth(form, depth)):
        if layers.row.ops:
            times = rf" ($\times {layers.count}$, each)" if layers.count > 1 else ""
            name = rf"\texttt{{{_escaped(_name(form, layers))}}}{times}"
            lines += [r"\hline", *_latex_rows(name, layers.row, _BELOW_TOTAL)]
    return "\n".join([*lines, r"\end{longtable}", ""])


def _latex_rows(name: str, row: ClosedFormRow, quantities: Sequence[tuple[Quantity, str]]) -> Iterator[str]:
    def line(phase: str, quantity: str, value: str) -> str:
        return rf"{name} & {phase} & {quantity} & {value} \\"

    for phase, costs in row.phases.items():
        if phase in row.growth:
            growth = row.growth[phase]
            yield line(phase, "Big-O", "; ".join((f"${growth.to_latex()}$", *map(_escaped, growth.where))))
        for quantity, text in quantities:
            if costs[quantity].polynomial != ZERO:
                yield line(phase, text, _latex_fit(costs[quantity]))
    for text, fit in (("parameters", row.params), ("activation bytes", row.activations)):
        if fit.polynomial != ZERO:
            yield line("", text, _latex_fit(fit))


def _latex_fit(fit: PolynomialFit) -> str:
    return f"${fit.polynomial.to_latex()}$" if fit.polynomial is not None else _escaped(fit.reason)


_LATEX = {
    "{": r"\{", "}": r"\}", "_": r"\_", "#": r"\#", "^": r"\^{}", "…": r"\ldots ", "·": r"$\cdot$", "Σ": r"$\Sigma$",
    "²": "$^2$", "³": "$^3$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


# --- JSON ------------------------------------------------------------------------------------------------------------

Json = dict[str, object]


def to_json_dict(form: ClosedForm) -> Json:
    """Everything, every layer by itself. Coefficients that are no whole numbers are text, as in "3/2"."""
    return {
        "model": form.model,
        "step": form.step,
        "dtype": form.dtype,
        "symbols": dict(describe_symbols(form)),
        "fitted": [_point(point) for point in form.fitted],
        "verified": [_point(point) for point in form.verified],
        "traces": form.traces,
        "total": _row(form.total),
        "layers": [_row(row) for row in form.rows],
        "ranking": [
            {
                "layers": [row.path for row in line.layers.rows],
                "big_o": None if line.growth is None else str(line.growth),
                "flops": None if line.work is None else str(line.work),
            }
            for line in ranking(form)
        ],
        "notes": list(form.notes),
    }


def _point(point: Point) -> Json:
    return {"batch": point[0], "sequence": point[1]}


def _row(row: ClosedFormRow) -> Json:
    phases = {
        phase: {
            "big_o": _growth(row.growth[phase]) if phase in row.growth else None,
            **{quantity: _fit(costs[quantity]) for quantity in COSTS},
        }
        for phase, costs in row.phases.items()
    }
    return {
        "path": row.path,
        "type": row.type,
        "ops": row.ops,
        "params": _fit(row.params),
        "activations": _fit(row.activations),
        "phases": phases,
        "uncounted": list(row.uncounted),
    }


def _growth(growth: Growth) -> Json:
    return {
        "text": str(growth),
        "latex": growth.to_latex(),
        "of": growth.basis,
        "as_sequence_grows": str(growth.in_sequence),
        "where": list(growth.where),
        "terms": [{"text": term.text, "ops": dict(term.ops)} for term in growth.terms],
    }


def _fit(fit: PolynomialFit) -> Json:
    if fit.polynomial is None:
        return {"text": None, "reason": fit.reason}
    terms = [
        {"batch": i, "sequence": j, "coefficient": int(value) if value.denominator == 1 else str(value)}
        for (i, j), value in fit.polynomial.terms
    ]
    holds = [str(condition) for condition in fit.holds]
    return {"text": str(fit), "latex": fit.polynomial.to_latex(), "terms": terms, "holds_for": holds}
