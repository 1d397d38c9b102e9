"""What a step can run into, each as one line that says where and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from rooflight.errors import OutOfMemory, RooflightError, TraceFailed
from rooflight.models.shapes import explain_shape_errors


@contextmanager
def failures_explained(model: nn.Module, *, on_data: bool = False) -> Iterator[None]:
    """What a step can run into, each as one line that says where; `on_data`: it runs on real tensors."""
    try:
        with explain_shape_errors(model):
            yield
    except (RooflightError, KeyboardInterrupt):
        raise
    except torch.OutOfMemoryError as error:
        text = (str(error).splitlines() or ["out of memory"])[0]
        raise OutOfMemory(f"out of memory on the device: try a smaller batch ({text})") from error
    except Exception as error:
        raise (_plain(error) if on_data else _explained(error)) from error


_DATA_DEPENDENT = (
    "item()", "Cannot copy out of meta tensor", "data-dependent", "data dependent", "nonzero", "meta tensors",
    "to numpy", "DataDependent", "_local_scalar_dense", "truth value", "Boolean value",
)  # fmt: skip


def _plain(error: Exception) -> TraceFailed:
    text = (str(error).strip().splitlines() or [""])[0]
    missing = isinstance(error, TypeError) and "forward() missing" in text
    hint = "; pass what it is called with behind the model, or, of a model by name, --input" if missing else ""
    return TraceFailed(f"{_where(error)}: {type(error).__name__}: {text}{hint}")


def _explained(error: Exception) -> TraceFailed:
    where = _where(error)
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if "no fake impl or Meta kernel" in text:
        operator = text.partition(": ")[0]
        return TraceFailed(
            f"{where}: {operator} cannot run on tensors without data; pass real tensors and trace on='cpu', or, if it "
            "is your own operator, give it torch.library.register_fake"
        )
    signs = [sign for sign in _DATA_DEPENDENT if sign in str(error) or sign in type(error).__name__]
    if signs and isinstance(error, (RuntimeError, TypeError)):  # as torch raises them
        return TraceFailed(
            f"{where}: the model looks at values of its data here, which a trace without data does not have ({text}); "
            "pass real tensors and trace on='cpu', or take this branch out of the model"
        )
    return _plain(error)


def _where(error: Exception) -> str:
    """The innermost line outside torch and rooflight: the user's own, if there is one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _foreign(f.filename)]
    if not frames:
        return "the model's forward"
    frame = frames[-1]
    return f"{frame.filename}:{frame.lineno} ({(frame.line or '').strip()})"


_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parents[1]


def _foreign(filename: str) -> bool:
    path = Path(filename)
    ours = path.is_relative_to(_OURS) and not path.is_relative_to(_OURS / "models" / "architectures")
    return ours or path.is_relative_to(_TORCH) or filename.startswith("<")
