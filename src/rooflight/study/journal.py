"""What a study found, as a journal that many processes write at once: each in a file of its own, one line for every
side of a cell that it has finished. Lines can be read in any order, and reading one twice changes nothing."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from rooflight.errors import BadFile
from rooflight.files import UNDECODABLE, with_notes
from rooflight.ledger import Note
from rooflight.study.cell import Key, Side, StudyCell, notes_now, values_now

JOURNAL = "journal"
EntryState = Literal["done", "failed", "wanted", "again", "lost"]


class StoreBroken(BadFile):
    """The folder cannot be written: no failure of a cell, but the end of the study for now."""


class JournalEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of the journal: what became of one side of a cell, or what is to become of it.

    `wanted`: somebody has the device and will measure. `again`: as many failures as `tries` says are forgiven. `lost`:
    what was done at `lost_at` is to be done again, because its ledger is gone or is not the file that was written.
    """

    key: str
    """The cell's id; of an estimate, that of the step, which all devices share."""
    side: Side
    state: EntryState
    at: float
    """Seconds since 1970, for people."""
    values: dict[str, int | float] = {}
    facts: dict[str, str] = {}
    notes: tuple[Note, ...] = ()
    failure: str = ""
    ledger: str = ""
    digest: str = ""
    """SHA-256 of the ledger's file; unknown in journals of earlier versions."""
    seconds: float | None = None
    tries: int = 0
    lost_at: float | None = None


class _EntryOf4(JournalEntry, frozen=True):
    """Of before notes had codes."""

    notes: tuple[str, ...] = ()  # type: ignore[assignment]


Progress = Callable[[JournalEntry], None]
"""Told of every side of a cell that is finished, done or failed, whoever wrote it down."""


class LedgerFile(NamedTuple):
    """A ledger in the study's folder."""

    name: str
    """Relative to the folder."""
    digest: str


class StudyJournal:
    """The journal of one study, as one process sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, int] = {}
        self._done: dict[Key, list[JournalEntry]] = {}
        self._failed: dict[Key, list[JournalEntry]] = {}
        self._forgiven: dict[Key, int] = {}
        self._lost: dict[Key, set[float]] = {}
        self._wanted: set[Key] = set()
        self._segment: Path | None = None
        self.progress: Progress = lambda entry: None
        self.refresh()

    def refresh(self, *, surely: bool = False) -> None:
        """Read what others, and we, wrote since the last time. `surely`: what other machines wrote as well.

        A network file system may show an old listing until this machine changes the folder, and old sizes until a file
        is opened: that matters to whoever has just been given a lock, and is about to begin.
        """
        if surely:
            _change(self.folder / JOURNAL)
        entries: list[JournalEntry] = []
        ours = None if self._segment is None else self._segment.name
        for name, size in sorted(_sizes(self.folder / JOURNAL)):
            if size > self._read.get(name, 0) or (surely and name != ours):
                entries += self._rest_of(name)
        for entry in entries:
            key = (entry.key, entry.side)
            if entry.state == "done":
                self._done.setdefault(key, []).append(entry)
            elif entry.state == "failed":
                self._failed.setdefault(key, []).append(entry)
            elif entry.state == "again":
                self._forgiven[key] = max(self._forgiven.get(key, 0), entry.tries)
            elif entry.state == "lost" and entry.lost_at is not None:
                self._lost.setdefault(key, set()).add(entry.lost_at)
            else:
                self._wanted.add(key)
        for entry in entries:
            if entry.state in ("done", "failed"):
                self.progress(entry)

    def _rest_of(self, name: str) -> list[JournalEntry]:
        path, start = self.folder / JOURNAL / name, self._read.get(name, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                content = file.read()
        except OSError as error:
            raise BadFile("read-failed", f"cannot read {path}: {error.strerror or error}; may you read it?") from error
        # What has no end of line is being written at this moment, or its process was killed while it wrote.
        complete = content[: content.rfind(b"\n") + 1]
        entries = []
        for line in complete.splitlines():
            try:
                entry = _decoded(line)
                entries.append(replace(entry, values=values_now(entry.values)))
            except UNDECODABLE as error:
                raise BadFile(
                    "damaged-file",
                    f"{path} is damaged, or of another version of rooflight ({error}): remove it, and what "
                    "it told will be found again",
                ) from None
        self._read[name] = start + len(complete)
        return entries

    def is_open(self, key: Key) -> bool:
        """Is it still to be done?"""
        return not self.done_entries(key) and self.failures(key) <= self._forgiven.get(key, 0)

    def done_entries(self, key: Key) -> list[JournalEntry]:
        """What counts; more than one where two machines did it at once."""
        lost = self._lost.get(key, ())
        return [entry for entry in self._done.get(key, ()) if entry.at not in lost]

    def failures(self, key: Key) -> int:
        return len(self._failed.get(key, ()))

    def entry(self, key: Key) -> JournalEntry | None:
        """What became of it in the end; `None`: it is open."""
        if self.is_open(key):
            return None
        done = self.done_entries(key)
        return done[0] if done else max(self._failed[key], key=lambda entry: entry.at)

    def is_wanted(self, key: Key) -> bool:
        """Has somebody said that it will be done, or done it?"""
        return key in self._wanted or key in self._done or key in self._failed

    def record(self, entries: Iterable[JournalEntry]) -> None:
        """Append to the journal, to stay. Lines of a disk that is full are taken back."""
        content = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        if not content:
            return
        is_new = self._segment is None
        path = self._segment = self._segment or self.folder / JOURNAL / _segment_name()
        try:
            with open(path, "ab", buffering=0) as file:
                before = file.tell()
                try:
                    written = 0
                    while written < len(content):
                        written += file.write(content[written:])
                    os.fsync(file)
                except BaseException:  # also Ctrl-C: half a line must not have another one behind it
                    file.truncate(before)
                    raise
            if is_new:
                _sync_folder(path.parent)
        except OSError as error:
            raise broken(self.folder, error, f"cannot write {path}: {error.strerror or error}") from error
        self.refresh()

    def want(self, cells: Iterable[StudyCell]) -> None:
        """Write down, once, that these will be measured, so that whoever reads the folder knows that they wait."""
        keys = [cell.key("measured") for cell in cells]
        self.record(_entry(key, "wanted") for key in keys if not self.is_wanted(key))

    def forgive_keys(self, keys: Iterable[Key]) -> int:
        """Let those that failed be tried once more; how many they are."""
        failed = [key for key in dict.fromkeys(keys) if not self.done_entries(key) and not self.is_open(key)]
        self.record(replace(_entry(key, "again"), tries=self.failures(key)) for key in failed)
        return len(failed)

    def lose_keys(self, keys: Iterable[Key]) -> None:
        """Let these be done once more, though they were done."""
        lost = [replace(_entry(key, "lost"), lost_at=entry.at) for key in keys for entry in self.done_entries(key)]
        self.record(lost)
        self.forgive_keys((entry.key, entry.side) for entry in lost)


_DECODER = msgspec.json.Decoder(JournalEntry)
_DECODER_OF_4 = msgspec.json.Decoder(_EntryOf4)


def _decoded(line: bytes) -> JournalEntry:
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError as error:
        try:
            old = _DECODER_OF_4.decode(line)
        except UNDECODABLE:
            raise error from None
        return with_notes(JournalEntry, old, notes_now(old.notes))


def done(
    cell: StudyCell,
    side: Side,
    *,
    values: Mapping[str, int | float],
    facts: Mapping[str, str] | None = None,
    notes: Sequence[Note] = (),
    ledger: LedgerFile | None = None,
    seconds: float | None = None,
) -> JournalEntry:
    return replace(
        _entry(cell.key(side), "done"),
        values=dict(values),
        facts=dict(facts or {}),
        notes=tuple(notes),
        ledger="" if ledger is None else ledger.name,
        digest="" if ledger is None else ledger.digest,
        seconds=seconds,
    )


def failed(cell: StudyCell, side: Side, reason: str, *, seconds: float | None = None) -> JournalEntry:
    return replace(_entry(cell.key(side), "failed"), failure=" ".join(reason.split()), seconds=seconds)


def _entry(key: Key, state: EntryState) -> JournalEntry:
    return JournalEntry(key=key[0], side=key[1], state=state, at=time.time())


_HOST = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-") or "host"


def _segment_name() -> str:
    return f"{_HOST}-{os.getpid()}-{time.time_ns():x}.jsonl"


def _change(folder: Path) -> None:
    """For a moment, so that everybody must look again."""
    path = folder / f".{_HOST}-{os.getpid()}"
    with suppress(OSError):  # a full disk is told where something is to be kept
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """A new file's name is to stay, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _sizes(folder: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(folder) as files:
            return [(file.name, file.stat().st_size) for file in files if file.name.endswith(".jsonl")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile("read-failed", f"cannot read {folder}: {error.strerror or error}; may you read it?") from error


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def broken(folder: Path, cause: BaseException | None, text: str) -> StoreBroken:
    """What could not be written into a study's folder: `text`, unless there is no space for it."""
    if isinstance(cause, OSError) and cause.errno in _NO_SPACE:
        text = (
            f"{folder}: {cause.strerror}; what was finished is kept: make space, then go on with: "
            f"rooflight study {folder}"
        )
    return StoreBroken("study-not-writable", text)
