"""What a step can run into, each as one line that says where and what to do."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from rooflight.errors import OutOfMemory, RooflightError, TraceFailed
from rooflight.models.shapes import explain_shape_errors
from rooflight.trace.python_line import is_foreign


@contextmanager
def failures_explained(
    model: nn.Module | None = None, *, on_data: bool = False, known: Sequence[str] = ()
) -> Iterator[None]:
    """What a step can run into, each as one line that says where; `on_data`: it runs on real tensors. Without a model
    it is somebody's own code, and the line that failed says most. `known`: what is told of how the model was made,
    which may be why its own code fails."""
    try:
        with nullcontext() if model is None else explain_shape_errors(model):
            yield
    except (RooflightError, KeyboardInterrupt):
        raise
    except torch.OutOfMemoryError as error:
        text = _first_line(error)
        raise OutOfMemory("out-of-memory", f"out of memory on the device: try a smaller batch ({text})") from error
    except Exception as error:
        raise (_plain(error, known) if on_data else _explained(error, known)) from error


_LONGEST = 200
"""Characters of what is quoted: torch's own explanations may take a page."""


def _first_line(error: Exception) -> str:
    """What it says, or what it is."""
    return _cut((str(error).strip().splitlines() or [type(error).__name__])[0])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} ..."


_DATA_DEPENDENT = (
    "item()", "Cannot copy out of meta tensor", "data-dependent", "data dependent", "nonzero", "meta tensors",
    "to numpy", ".numpy()", "DataDependent", "_local_scalar_dense", "truth value", "Boolean value",
)  # fmt: skip


_NO_SHAPES = ("no fake impl", "could not find the fake impl", "from the 'Meta' backend")
"""What torch says of an operator that cannot tell the shapes of its results."""
_HAS_A_CLASS = "already associated to a python object of type FakeTensor"
_OPERATOR = re.compile(r"\w+::\w+")


def _plain(error: Exception, known: Sequence[str]) -> TraceFailed:
    text = _first_line(error) if str(error).strip() else ""
    missing = isinstance(error, TypeError) and "forward() missing" in text
    hint = "; pass what it is called with behind the model, or, of a model by name, --input" if missing else ""
    return TraceFailed("model-failed", f"{_where(error)}: {type(error).__name__}: {'; '.join((text + hint, *known))}")


def _explained(error: Exception, known: Sequence[str]) -> TraceFailed:
    where = _where(error)
    text = _first_line(error)
    if any(sign in text for sign in _NO_SHAPES):
        operator = _OPERATOR.search(text)
        return TraceFailed(
            "no-meta-kernel",
            f"{where}: {operator[0] if operator else 'an operator'} cannot run on tensors without data; trace it on "
            "real data with --real-data, or, if it is your own operator, give it torch.library.register_fake",
        )
    if "FlexAttention" in text or "HigherOrderOperator" in text:
        return TraceFailed(
            "no-meta-kernel",
            f"{where}: this part runs only where it is compiled, or on real data; trace it with --real-data, or use "
            f"plain operators ({text})",
        )
    if _HAS_A_CLASS in text:
        return TraceFailed(
            "tensor-subclass",
            f"{where}: the step makes a tensor of a class of its own here, which one without data cannot be; make it "
            "before the step, or run the step once on its own data with --real-data",
        )
    signs = [sign for sign in _DATA_DEPENDENT if sign in str(error) or sign in type(error).__name__]
    if signs and isinstance(error, (RuntimeError, TypeError)):  # as torch raises them
        return TraceFailed(
            "data-dependent",
            f"{where}: the model looks at values of its data here, which a trace without data does not have "
            f"({text.partition('. ')[0]}); "
            "trace it on real data with --real-data, or take this branch out of the model",
        )
    return _plain(error, known)


def _where(error: Exception) -> str:
    """The innermost line outside torch and rooflight: the user's own, if there is one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_foreign(f.filename)]
    if not frames:
        return "the step"
    frame = frames[-1]
    return f"{frame.filename}:{frame.lineno} ({_cut((frame.line or '').strip())})"
