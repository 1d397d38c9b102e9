"""Hypotheses of a study: claims in a small grammar, judged by the rows of its cells."""

from rooflight.study.hypotheses.grammar import parse
from rooflight.study.hypotheses.tree import Claim

__all__ = ["Claim", "parse"]
