"""Hypotheses of a study: claims in a small language, judged by the rows of its cells.

`scanner` puts the text into Python's words, Python's `ast` parses it, `parser` lets through what a claim may be,
`grid` finds the cells that it is about, `judge` compares their numbers, `verdict` is what came of it.
"""

from rooflight.study.hypotheses.hypothesis import Hypothesis, StudyClaim
from rooflight.study.hypotheses.judge import claims, judge, unknown_names
from rooflight.study.hypotheses.parser import parse
from rooflight.study.hypotheses.verdict import JudgedHypothesis

__all__ = ["Hypothesis", "JudgedHypothesis", "StudyClaim", "claims", "judge", "parse", "unknown_names"]
