"""Hypotheses of a study: claims in a small grammar, judged by the rows of its cells."""

from rooflight.study.hypotheses.grammar import parse
from rooflight.study.hypotheses.judge import claims, judge, unknown_names
from rooflight.study.hypotheses.tree import Claim
from rooflight.study.hypotheses.verdict import Judged

__all__ = ["Claim", "Judged", "claims", "judge", "parse", "unknown_names"]
