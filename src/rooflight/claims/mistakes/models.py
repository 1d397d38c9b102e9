"""One model's numbers under another's name: what the same row would be for the built-in models of the same family."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from rooflight.claims import conventions, estimated, retrace
from rooflight.claims.book import Book, Scope
from rooflight.claims.case import Case, Trial
from rooflight.claims.places import place_of
from rooflight.claims.result import Candidate


def family(model: str) -> str:
    """`resnet` of `resnet50`."""
    return re.split(r"[\d:_-]", model.lower())[0]


def siblings(model: str) -> list[str]:
    """Built-in models whose name begins alike; they are traced in a few hundredths of a second."""
    from rooflight.models import builtin_names

    return [name for name in builtin_names() if family(name) == family(model) and name != model]


def _models(case: Case) -> Iterator[Candidate]:
    """Of an estimate in inference: its siblings are traced the same way."""
    header = case.scope.ledger.header
    if header.step != "infer" or header.batch is None or case.name not in estimated.ANSWERS:
        return
    if case.scope.place.kind not in ("total", "type"):
        return
    for name in siblings(header.model):
        other = retrace.traced(name, header.batch)
        if other is None:
            continue
        book = Book(other)
        scope: Scope = replace(case.scope, book=book, place=place_of(other, case.claim.layer))
        answer = estimated.ANSWERS[case.name](scope)
        text = f"that is the value of {name}, not of {header.model}"
        yield Candidate("another-model", text, answer.value)
        for found in conventions.conventions(replace(case, scope=scope, answer=answer)):
            yield Candidate(f"another-model+{found.code}", f"{text}, in another convention: {found.text}", found.value)


COSTLY: tuple[Trial, ...] = (_models,)
