"""Which torch this is, for what differs between versions and cannot be asked otherwise."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""`(2, 13)` of 2.13.0+cpu."""
