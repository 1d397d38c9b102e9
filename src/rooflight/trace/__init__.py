"""A step, run once on tensors without data, written down as a ledger: one row for every aten call."""

from rooflight.trace.stage import TraceOptions
from rooflight.trace.tracer import trace

__all__ = ["TraceOptions", "trace"]
