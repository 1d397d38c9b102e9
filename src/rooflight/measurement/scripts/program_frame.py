"""The code of the program itself, among the libraries that call it and are called by it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import torch

_LIBRARIES = (
    "<frozen ",
    *(str(Path(module.__file__ or "").parent) for module in (os, torch)),
    str(Path(__file__).parents[2]),
)
_PACKAGES = ("site-packages", "dist-packages")


def program_frame() -> FrameType | None:
    """What of the program is being run: its names are what models are called by."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES) or any(part in path for part in _PACKAGES)
