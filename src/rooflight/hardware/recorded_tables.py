"""Tables that were recorded on a device, on disk: gzipped JSON with a version, decoded strictly. Calibrations and the
workspaces of cuDNN are such; those that come with rooflight lie in `calibrations/`."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from rooflight import files
from rooflight.errors import BadFile, BadInput

FOLDER = "calibrations"
MOST = 1 << 62
"""Nothing that is counted or timed comes near: larger whole numbers are no numbers of a device."""


class _Versioned(Protocol):
    @property
    def format_version(self) -> int: ...


Table = TypeVar("Table", bound=_Versioned)


@dataclass(frozen=True)
class TableFormat(Generic[Table]):
    """One kind of table."""

    type: type[Table]
    what: str
    """In words: `calibration`."""
    version: int
    remedy: str
    """How an error's line ends: what to do."""
    fault_of: Callable[[Table], str | None]
    """What types do not say: what is wrong with its numbers."""
    after_fault: str
    """What to do then."""

    def decode(self, content: bytes, source: str) -> Table:
        try:
            text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            table = self._of_this_version(text, source)
        except (msgspec.MsgspecError, OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
            raise BadInput("damaged-file", f"{source} is no {self.what} file: {error}; {self.remedy}") from None
        if (fault := self.fault_of(table)) is not None:
            raise BadInput("damaged-file", f"{source}: {fault}; {self.after_fault}")
        return table

    def _of_this_version(self, text: bytes, source: str) -> Table:
        """Read in one go. Only what does not fit is read again: that it is of another version is said first."""
        try:
            table = msgspec.json.decode(text, type=self.type)
        except msgspec.ValidationError:
            document = msgspec.json.decode(text)
            self._check_version(document.get("format_version") if isinstance(document, dict) else None, source)
            raise
        self._check_version(table.format_version, source)
        return table

    def _check_version(self, version: object, source: str) -> None:
        if version != self.version:
            raise BadInput(
                "unknown-format",
                f"{source}: {self.what} format {_short(version)}, this rooflight reads {self.version}; {self.remedy}",
            )

    def read(self, path: Path) -> Table:
        try:
            content = files.read_bytes(path, what=self.what)
        except BadFile as error:
            raise BadInput(error.code, f"{error}, or {self.remedy}") from None
        return self.decode(content, str(path))

    def shipped(self, name: str, source: str) -> Table | None:
        """A table that comes with rooflight; `None`: there is none of that name."""
        file: Any = resources.files("rooflight.hardware") / FOLDER / f"{name}.json.gz"
        return self.decode(file.read_bytes(), source) if file.is_file() else None


def _short(version: object) -> str:
    text = repr(version)
    return text if len(text) <= 20 else f"{text[:20]}..."


def encode(table: msgspec.Struct) -> bytes:
    """Two percent smaller would take two and a half times as long: two seconds of a hundred thousand points."""
    return gzip.compress(msgspec.json.encode(table), 6, mtime=0)
