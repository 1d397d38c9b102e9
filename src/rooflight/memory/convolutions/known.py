"""Whose workspaces are taken for a GPU: its own where `rooflight calibrate` recorded them there, else the H200's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rooflight.hardware.workspace_points import WorkspacePoints, by_precision
from rooflight.hardware.workspaces import shipped
from rooflight.memory.convolutions import ConvolutionWorkspaces

ORIGIN = "h200"
_ENOUGH = 100
"""Layers in a precision: fewer say less of a GPU than all those of the H200."""
TAKEN_OVER = "cuDNN's workspaces are taken to be the H200's"


class DeviceWorkspaces:
    """`own`: what was recorded, by the device's name."""

    def __init__(self, own: Mapping[str, Sequence[WorkspacePoints]] | None = None) -> None:
        enough = {device: [some for some in points if len(some.rows) >= _ENOUGH] for device, points in (own or {}).items()}
        self._own = {device: points for device, points in enough.items() if points}
        self._made: dict[str, ConvolutionWorkspaces] = {}

    def origin(self, device: str) -> str:
        """The name of the device whose workspaces they are."""
        return device if device in self._own else ORIGIN

    def of(self, device: str) -> ConvolutionWorkspaces:
        if device not in self._own:
            return _shipped()
        if device not in self._made:
            # A precision in which too little was recorded there is the H200's.
            self._made[device] = ConvolutionWorkspaces(_shipped_rows() | by_precision(self._own[device]))
        return self._made[device]


@lru_cache(maxsize=1)
def _shipped_rows() -> dict[str, list[list[int]]]:
    table = shipped(ORIGIN)
    return {} if table is None else table.by_precision()


@lru_cache(maxsize=1)
def _shipped() -> ConvolutionWorkspaces:
    return ConvolutionWorkspaces(_shipped_rows())
