"""How far rooflight came in a process: kept in a small file that is true at every moment, however the process ends."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

import msgspec

from rooflight.ledger import Note

Found = Literal["", "train", "infer"]
"""What ends a step: that of an optimizer, or the call of a model."""
Doing = Literal["nothing", "timed", "recorded", "counted", "over"]


class ScriptStatus(msgspec.Struct, omit_defaults=True):
    """What was done in one process, step by step. Steps are counted from 1."""

    pid: int
    steps_asked: str
    """The range of steps, as `3:`."""
    rank: int = 0
    world: int = 1
    found: Found = ""
    steps: int = 0
    """Steps that ended while we were looking."""
    doing: Doing = "nothing"
    """What the step that runs now is used for; `over`: everything is done, and nobody looks any more."""
    timed: list[int] = []
    recorded: list[int] = []
    """More than one where the first was unlike the others; the last counts."""
    counted: list[int] = []
    plain_s: float | None = None
    """A step without us: the median of those that were timed."""
    recorded_s: float | None = None
    """The recorded step, with all that recording it takes."""
    added_s: float = 0.0
    """What the program took longer for us, so far."""
    put_off: str = ""
    """Why a step that was to be recorded was not."""
    stopped: bool = False
    """The program was ended because everything was measured."""
    failure: str = ""
    notes: list[Note] = []


class StatusFile:
    """One process's; written in place, since it is written at every step."""

    def __init__(self, folder: Path) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._path = folder / f"status-{self.name}.json"
        self._file: int | None = None
        self._length = 0

    def write(self, status: ScriptStatus) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        text = msgspec.json.encode(status)
        os.pwrite(self._file, text.ljust(self._length), 0)  # blanks over what was longer
        self._length = max(self._length, len(text))
