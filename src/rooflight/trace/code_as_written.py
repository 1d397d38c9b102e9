"""A step's code as it was written, while it is followed: nothing of it compiled, and no checks of values it has not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rooflight.trace.control_flow import control_flow_followed
from rooflight.trace.dynamo import eagerly, scripts_as_written

_TRANSFORMERS_SWITCH = "TRANSFORMERS_DISABLE_TORCH_CHECK"


@contextmanager
def code_as_written(*, on_data: bool, timed: bool) -> Iterator[None]:
    """`timed`: scripts stay as torch makes them, for what is measured is what runs without a trace."""
    with (
        eagerly(),
        nullcontext() if timed else scripts_as_written(),
        control_flow_followed(),
        nullcontext() if on_data else _values_unchecked(),
    ):
        yield


@contextmanager
def _values_unchecked() -> Iterator[None]:
    """transformers counts the image tokens among token numbers, which tensors without data do not have: its own switch
    leaves such checks out."""
    before = os.environ.get(_TRANSFORMERS_SWITCH)
    os.environ[_TRANSFORMERS_SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_TRANSFORMERS_SWITCH, None)
        else:
            os.environ[_TRANSFORMERS_SWITCH] = before
