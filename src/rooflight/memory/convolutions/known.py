"""Whose workspaces are taken for a GPU: its own where `rooflight calibrate` recorded them there, else the H200's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rooflight.hardware.workspace_points import WorkspacePoints, by_precision
from rooflight.hardware.workspaces import shipped
from rooflight.memory.convolutions import ConvolutionWorkspaces

ORIGIN = "h200"
_ENOUGH = 1000
"""Layers in a precision: fewer say less of a GPU than all those of the H200."""
TAKEN_OVER = "cuDNN's workspaces are taken to be the H200's"


class DeviceWorkspaces:
    """`own`: what was recorded, by the device's name."""

    def __init__(self, own: Mapping[str, Sequence[WorkspacePoints]] | None = None) -> None:
        self._own: dict[str, list[WorkspacePoints]] = {}
        for device, points in (own or {}).items():
            enough = [some for some in points if len(some.rows) >= _ENOUGH]
            if enough:
                self._own[device] = enough
        self._made: dict[str, ConvolutionWorkspaces] = {}

    def origin(self, device: str) -> str:
        """The name of the device whose workspaces they are."""
        return device if device in self._own else ORIGIN

    def of(self, device: str) -> ConvolutionWorkspaces:
        if device not in self._own:
            return _shipped()
        if device not in self._made:
            self._made[device] = ConvolutionWorkspaces(self._rows(device))
        return self._made[device]

    def _rows(self, device: str) -> dict[str, list[list[int]]]:
        """A precision in which too little was recorded there is the H200's; an H200's own are added to those."""
        own, known = by_precision(self._own[device]), _shipped_rows()
        if device == ORIGIN:
            own = {precision: [*rows, *known.get(precision, [])] for precision, rows in own.items()}
        return known | own


@lru_cache(maxsize=1)
def _shipped_rows() -> dict[str, list[list[int]]]:
    table = shipped(ORIGIN)
    return {} if table is None else table.by_precision()


@lru_cache(maxsize=1)
def _shipped() -> ConvolutionWorkspaces:
    return ConvolutionWorkspaces(_shipped_rows())
