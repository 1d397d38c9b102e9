"""Which line of Python asked for an op: of those that the host waits for, whoever reads the account wants to know."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import torch

COPYING = frozenset({"aten::_to_copy", "aten::copy_"})
"""Wait where they bring something to the host."""
WAITING = COPYING | {
    "aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal",
    "aten::masked_select", "aten::_unique2", "aten::unique_dim",
}  # fmt: skip
_OURS = Path(__file__).parents[1]
_MODELS = _OURS / "models" / "architectures"
"""Are read as anybody's."""
_STEPS = str(Path(__file__).parent / "stage.py")
"""Runs the step: who called it from outside asked for the trace, not for the op."""
_TORCHS = Path(torch.__file__).parent


def python_line() -> str:
    """`train/loop.py:12`: the innermost line that is neither torch's nor rooflight's; else torch's own, as of an
    optimizer. Two parts of the path say enough, and nothing of whose machine it was."""
    frame = sys._getframe(1)
    of_torch = ""
    while frame is not None and frame.f_code.co_filename != _STEPS:
        name = frame.f_code.co_filename
        if not name.startswith("<"):
            owner = _owner(name)
            if owner == "":
                return _said(name, frame.f_lineno)
            if owner == "torch" and not of_torch:
                of_torch = _said(name, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return of_torch


def is_foreign(filename: str) -> bool:
    """Is it torch's or rooflight's, or of no file?"""
    return filename.startswith("<") or _owner(filename) != ""


@lru_cache(maxsize=1024)
def _owner(name: str) -> str:
    path = Path(name)
    if path.is_relative_to(_OURS) and not path.is_relative_to(_MODELS):
        return "rooflight"
    if path.is_relative_to(_TORCHS):  # not those whose names begin alike, as torchvision
        return "dispatcher" if "/utils/_python_dispatch" in name or "/_ops.py" in name else "torch"
    return ""


def _said(name: str, line: int) -> str:
    return f"{'/'.join(Path(name).parts[-2:])}:{line}"
