"""A step, run once on tensors without data, written down as a ledger: one row for every aten call."""

from typing import TYPE_CHECKING, Any

from rooflight.trace.options import TraceOptions

if TYPE_CHECKING:
    from rooflight.trace.tracer import trace

__all__ = ["TraceOptions", "trace"]


def __getattr__(name: str) -> Any:
    """Only what traces imports torch: a kept trace is predicted without."""
    if name != "trace":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rooflight.trace.tracer import trace

    return trace
