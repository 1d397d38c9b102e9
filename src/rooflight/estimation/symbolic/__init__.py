"""The closed form of a step: exact polynomials in batch B and sequence S, and how they grow."""

from rooflight.estimation.symbolic.form import ClosedForm, ClosedFormRow, closed_form

__all__ = ["ClosedForm", "ClosedFormRow", "closed_form"]
