"""What a table says of the model itself: how many layers it has, and what it gets. `layers` means many things, and a
number that is none of them is not called wrong."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from rooflight import formatting
from rooflight.analysis.claims.claim import Amount, Answer, CannotTell, Claim, JudgedClaim, Shape, right, unknown, wrong
from rooflight.analysis.claims.ledger_query import scope_of
from rooflight.analysis.claims.model_parts import leaves
from rooflight.analysis.claims.quantities import QUANTITIES
from rooflight.analysis.finding import Finding
from rooflight.ledger import Ledger, Module
from rooflight.units import Unit

if TYPE_CHECKING:
    from rooflight.analysis.claims.judging import ClaimsJudge

_TYPES = {"conv": ("Conv", "convolutions"), "linear": ("Linear", "linear layers"), "fc": ("Linear", "linear layers")}
_SHORTCUT = re.compile(r"downsample|shortcut", re.IGNORECASE)


def judged_layers(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The verdict on a number of layers: of a type, which the row or its quantity names, or of the whole model."""
    scope = scope_of(judge.book(claim), claim, "layers")
    word = next((word for word in _TYPES if word in claim.quantity.lower()), None)
    assert isinstance(claim.stated, Amount)
    if scope.part.kind == "type":
        return judge.compared(judge.case(claim))
    inside = [module for module in leaves(scope.ledger) if module in scope.part.modules]
    if word is not None:
        kind, text = _TYPES[word]
        modules = [module for module in inside if module.type.startswith(kind)]
        counts = {f"{text} of {scope.part.name}": len(modules)}
        main = [module for module in modules if not _SHORTCUT.search(module.path)]
        counts[f"{text} of {scope.part.name}, those of shortcuts left out"] = len(main)
    else:
        counts = _ways_to_count(scope.ledger, inside)
    for text, count in counts.items():
        if claim.stated.holds(Fraction(count)):
            return right(claim, Answer(count, text, "the modules"), text)
    if word is not None:
        text, count = next(iter(counts.items()))
        return wrong(claim, Answer(count, text, "the modules"))
    listed = ", ".join(f"{count} {text}" for text, count in counts.items())
    return unknown(claim, f"which layers are meant must be said: it has {listed}", "a quantity such as conv layers")


def _ways_to_count(ledger: Ledger, inside: list[Module]) -> dict[str, int]:
    weighed = [module for module in inside if module.params or module.tied]
    matrices = [module for module in weighed if module.type.startswith(("Conv", "Linear"))]
    counts = {
        "modules without children": len(inside),
        "of them with parameters": len(weighed),
        "convolutions and linear layers": len(matrices),
        "of these without shortcuts": sum(not _SHORTCUT.search(module.path) for module in matrices),
    }
    blocks: Counter[str] = Counter()
    for module in ledger.modules:
        parent, _, name = module.path.rpartition(".")
        if name.isdecimal() and module not in inside:
            blocks[parent] += 1
    if blocks:
        parent, count = blocks.most_common(1)[0]
        counts[f"blocks in {parent or 'the model'}"] = count
    return counts


def judged_input(judge: ClaimsJudge, claim: Claim) -> JudgedClaim:
    """The verdict on what the step gets; a picture may be named by its height alone. Of a layer an image size is that
    of what it gives."""
    assert isinstance(claim.stated, Shape) and claim.named is not None
    scope = scope_of(judge.book(claim), claim, "input_shape")
    sizes = claim.stated.sizes
    if scope.part.kind != "total":
        if len(sizes) != 1:
            raise CannotTell(f"the size of what {scope.part.name} gives is one number", "output shape")
        half = Fraction(1, 2)
        amount = Amount(Fraction(sizes[0]), sizes[0] - half, sizes[0] + half, Unit("", "count"))
        named = replace(claim.named, quantity=QUANTITIES["output_size"])
        return replace(judge.judged_anew(replace(claim, named=named, stated=amount)), claim=claim)
    inputs = scope.ledger.header.inputs
    if not inputs:
        raise CannotTell("the ledger does not tell what the step gets")
    first, *rest = inputs[0][1].shape or (1,)
    shape = (int(first * scope.scale), *rest)
    answer = Answer(shape, f"input {formatting.shape(shape)}", "the trace")
    channels_last = (*shape[2:], shape[1]) if len(shape) == 4 else ()
    if sizes in {shape[place:] for place in range(len(shape))} | {channels_last, (first, *rest)}:
        return right(claim, answer)
    if len(shape) != 4:
        raise CannotTell(f"the step was traced with an input of {formatting.shape(shape)}", "a row of its shape")
    found = [Finding("shape-of-the-input", "that is what it gives", None)] if sizes == scope.module.outputs[0] else []
    return wrong(claim, answer, *found)
