"""A study's folder: the plan, a journal of what was found, the ledgers, and an index made from them.

    study.toml    the plan, so that the folder resumes and replicates by itself
    journal/      one file for every process that found something, one line for every side of a cell it finished
    ledgers/      what was estimated and measured, as `rooflight report` and `rooflight compare` read it
    lock          who works on what; always empty
    index.json    made from the journal when a study ends: every cell, what became of it, and where its ledgers are

No two processes write the same file, nothing is ever written over, and a line counts only when it is whole: so a
process can be killed at any moment, and others can go on beside it.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from rooflight.errors import BadFile
from rooflight.files import write_atomically
from rooflight.ledger import Ledger
from rooflight.study.cell import SIDES, Cell, Row, Side, State
from rooflight.study.locks import Locks
from rooflight.study.plan import Plan, merged, read_plan, to_toml

PLAN, JOURNAL, LEDGERS, LOCK, INDEX = "study.toml", "journal", "ledgers", "lock", "index.json"
INDEX_VERSION = 1


class StoreBroken(BadFile):
    """The folder cannot be written: no failure of a cell, but the end of the study for now."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of the journal: what became of one side of a cell, or what is to become of it.

    `wanted`: somebody has the device and will measure. `again`: as many failures as `tries` says are forgiven. Entries
    can be read in any order, and reading one twice changes nothing.
    """

    key: str
    """The cell's id; of an estimate, that of the step, which all devices share."""
    side: Side
    state: Literal["done", "failed", "wanted", "again"]
    at: float
    """Seconds since 1970, for people."""
    values: dict[str, int | float] = {}
    facts: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    failure: str = ""
    ledger: str = ""
    seconds: float | None = None
    tries: int = 0


Key = tuple[str, Side]


def step_of(cell: Cell) -> Cell:
    """The cell without its device: what is estimated."""
    return replace(cell, on=None, gpus=1, parallel=None)


def key_of(cell: Cell, side: Side) -> Key:
    return (step_of(cell).id if side == "estimated" else cell.id), side


def lock_of(key: Key) -> str:
    """What a process holds while it works on this."""
    return ".".join(key)


class Store:
    """One study's folder, as one process sees it."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan
        self.cells = plan.cells
        self.by_id = {cell.id: cell for cell in self.cells}
        self._locks: Locks | None = None
        self._read: dict[str, int] = {}
        self._done: dict[Key, Entry] = {}
        self._failed: dict[Key, list[Entry]] = {}
        self._forgiven: dict[Key, int] = {}
        self._wanted: set[Key] = set()
        self._segment: Path | None = None
        self.heard: Callable[[Entry], None] = lambda entry: None
        """Told of every entry that is new to us, whoever wrote it."""
        self.refresh()

    @property
    def locks(self) -> Locks:
        """Whoever only reads needs none, nor the permission to have one."""
        if self._locks is None:
            self._locks = Locks(self.folder / LOCK)
            self._locks.be_present()
        return self._locks

    # --- reading ---

    def refresh(self) -> None:
        """Read what others, and we, wrote since the last time."""
        found: list[Entry] = []
        for name, size in sorted(_sizes(self.folder / JOURNAL)):
            if size > self._read.get(name, 0):
                found += self._rest_of(name)
        for entry in found:
            key = (entry.key, entry.side)
            if entry.state == "done":
                self._done.setdefault(key, entry)
            elif entry.state == "failed":
                self._failed.setdefault(key, []).append(entry)
            elif entry.state == "again":
                self._forgiven[key] = max(self._forgiven.get(key, 0), entry.tries)
            else:
                self._wanted.add(key)
        for entry in found:
            self.heard(entry)

    def _rest_of(self, name: str) -> list[Entry]:
        path, start = self.folder / JOURNAL / name, self._read.get(name, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                content = file.read()
        except OSError as error:
            raise BadFile(f"cannot read {path}: {error.strerror or error}") from error
        # What has no end of line is being written at this moment, or its process was killed while it wrote.
        whole = content[: content.rfind(b"\n") + 1]
        found = []
        for line in whole.splitlines():
            try:
                found.append(_DECODER.decode(line))
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise BadFile(f"{path} is damaged, or of another version of rooflight ({error}): remove it, and what "
                              "it told will be found again") from None  # fmt: skip
        self._read[name] = start + len(whole)
        return found

    def is_open(self, key: Key) -> bool:
        """Is it still to be done?"""
        return key not in self._done and self.failures(key) <= self._forgiven.get(key, 0)

    def failures(self, key: Key) -> int:
        return len(self._failed.get(key, ()))

    def sides(self, cell: Cell) -> list[Side]:
        """What the cell asks for, as far as anybody knows."""
        asked: list[Side] = ["estimated"]
        asked += ["predicted"] if cell.on is not None else []
        key: Key = (cell.id, "measured")
        if self.is_measurable(cell) and (
            self.plan.measure is True or key in self._wanted or key in self._done or key in self._failed
        ):
            asked.append("measured")
        return asked

    def is_measurable(self, cell: Cell) -> bool:
        """Could some machine measure it?"""
        return self.plan.measure is not False and cell.on is not None and cell.gpus == 1

    def row(self, cell: Cell) -> Row:
        values: dict[str, int | float] = {}
        facts: dict[str, str] = {}
        failures: dict[Side, str] = {}
        notes: dict[str, None] = {}
        ledgers: dict[Side, str] = {}
        seconds: dict[Side, float] = {}
        waiting = False
        for side in self.sides(cell):
            key = key_of(cell, side)
            entry = self._done.get(key)
            if entry is None and self.is_open(key):
                waiting = True
                continue
            entry = entry or max(self._failed[key], key=lambda one: one.at)
            values.update(entry.values)
            facts.update(entry.facts)
            notes.update(dict.fromkeys(entry.notes))
            if entry.state == "failed":
                failures[side] = entry.failure
            if entry.ledger:
                ledgers[side] = entry.ledger
            if entry.seconds is not None:
                seconds[side] = entry.seconds
        state: State = "waiting" if waiting else "failed" if failures else "done"
        return Row(cell=cell, state=state, values=values, facts=facts, failures=failures, notes=tuple(notes),
                   ledgers=ledgers, seconds=seconds)  # fmt: skip

    @property
    def rows(self) -> list[Row]:
        return [self.row(cell) for cell in self.cells]

    def waiting(self) -> list[Cell]:
        """Cells of which a side is still to be done."""
        return [cell for cell in self.cells if any(self.is_open(key_of(cell, side)) for side in self.sides(cell))]

    # --- writing ---

    def record(self, entries: Iterable[Entry]) -> None:
        """Append to the journal, to stay. Lines of a disk that is full are taken back."""
        content = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        if not content:
            return
        is_new = self._segment is None
        path = self._segment = self._segment or self.folder / JOURNAL / _segment_name()
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _broken(path, error) from error
        try:
            before = os.fstat(file).st_size
            try:
                written = 0
                while written < len(content):
                    written += os.write(file, content[written:])
                os.fsync(file)
            except OSError:
                os.ftruncate(file, before)
                raise
            if is_new:
                _sync_folder(path.parent)
        except OSError as error:
            raise _broken(path, error) from error
        finally:
            os.close(file)
        self.refresh()

    def save_ledger(self, ledger: Ledger, cell: Cell, side: Side) -> str:
        """Its name, relative to the folder. Whoever comes second writes the same, or newer."""
        name = f"{LEDGERS}/{key_of(cell, side)[0]}.{side}.json.gz"
        # Packed in haste: a study of many batches would else spend most of its time on it.
        content = gzip.compress(msgspec.json.encode(ledger), compresslevel=1, mtime=0)
        try:
            write_atomically(self.folder / name, content, force=True)
        except BadFile as error:
            raise _unwritten(self.folder, error) from error
        return name

    def want(self, cells: Iterable[Cell]) -> None:
        """Write down that these will be measured, so that whoever reads the folder knows that they wait."""
        keys: list[Key] = [(cell.id, "measured") for cell in cells]
        self.record(_entry(key, "wanted") for key in keys if key not in self._wanted and self.is_open(key))

    def forgive(self) -> int:
        """Let what failed be tried once more; how many sides of cells that are."""
        keys = list(dict.fromkeys(key_of(cell, side) for cell in self.cells for side in SIDES))
        failed = [key for key in keys if key not in self._done and not self.is_open(key)]
        self.record(_entry(key, "again", tries=self.failures(key)) for key in failed)
        return len(failed)

    def write_index(self) -> Path:
        """All rows in one file, for programs; those too that another process has added to the plan meanwhile."""
        path, now = self.folder / INDEX, open_study(self.folder)
        content = msgspec.json.encode(_Index(format_version=INDEX_VERSION, title=now.plan.title, rows=now.rows))
        try:
            write_atomically(path, content, force=True)
        except BadFile as error:
            raise _unwritten(self.folder, error) from error
        return path

    def tidy(self) -> None:
        """Remove what killed processes left half-written, if nobody else is here."""
        with self.locks.alone() as alone:
            if alone:
                for folder in (self.folder, self.folder / LEDGERS):
                    for name in _names(folder):
                        if name.startswith(".") and re.search(r"\.json(\.gz)?\.\w+$|\.toml\.\w+$", name):
                            (folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._locks is not None:
            self._locks.close()
            self._locks = None


_DECODER = msgspec.json.Decoder(Entry)


def read(folder: str | Path) -> list[Row]:
    """What became of every cell of a study, in the order of its plan."""
    folder = Path(folder)
    if (folder / PLAN).is_file() and not (folder / JOURNAL).is_dir() and (folder / INDEX).is_file():
        return _rows_in(folder / INDEX)  # as results are passed on: without the journal
    return open_study(folder).rows


def read_plan_in(folder: str | Path) -> Plan:
    """The plan of a study's folder."""
    return _plan_in(Path(folder))


def is_study(path: Path) -> bool:
    return (path / PLAN).is_file() and ((path / JOURNAL).is_dir() or (path / INDEX).is_file())


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int
    title: str
    rows: list[Row]


def _rows_in(path: Path) -> list[Row]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Index)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise BadFile(f"{path} is no index of a study: {error}") from None
    if found.format_version != INDEX_VERSION:
        raise BadFile(f"{path} has format {found.format_version}, and this rooflight reads {INDEX_VERSION}")
    return found.rows


def open_study(folder: Path) -> Store:
    """A study's folder that is there already, and can be gone on with."""
    if not folder.exists():
        raise BadFile(f"{folder} does not exist: a study is begun with `rooflight study STUDY.toml -o {folder}`")
    if not folder.is_dir():
        raise BadFile(f"{folder} is a file, no study's folder")
    if not is_study(folder):
        raise BadFile(f"{folder} is no study's folder: it has no {PLAN} and {JOURNAL}/")
    if not (folder / JOURNAL).is_dir():
        raise BadFile(f"{folder} holds results without their journal: `rooflight report` shows them, and `rooflight "
                      f"study {folder / PLAN} -o NEW` finds them anew")  # fmt: skip
    return Store(folder, _plan_in(folder))


def begin(folder: Path, plan: Plan, text: str | None = None) -> Store:
    """The folder of this plan, made or gone on with; `text`: the plan's file as it was given."""
    _make(folder)
    locks = Locks(folder / LOCK)
    try:
        with locks.holding("plan"):
            if (folder / PLAN).exists():
                before, asked = _plan_in(folder), plan
                plan = merged(before, asked, str(folder))
                if plan != before:
                    _write_plan(folder, plan, text if plan == asked else None)
            else:
                _write_plan(folder, plan, text)
    finally:
        locks.close()
    return Store(folder, plan)


def _make(folder: Path) -> None:
    """Only an empty folder, or a study's own, becomes a study's folder."""
    if folder.exists() and not folder.is_dir():
        raise BadFile(f"{folder} is a file: give a folder for the study")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(set(_names(folder)) - {PLAN, JOURNAL, LEDGERS, LOCK, INDEX})
        if others and not (folder / PLAN).exists():
            raise BadFile(f"{folder} holds other things ({others[0]}): give a new or empty folder for the study")
        for name in (JOURNAL, LEDGERS):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise BadFile(f"cannot make {folder}: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise BadFile(f"no permission to write into {folder}: give another folder")


def _plan_in(folder: Path) -> Plan:
    return read_plan(folder / PLAN)[0]


def _write_plan(folder: Path, plan: Plan, text: str | None) -> None:
    write_atomically(folder / PLAN, (text or to_toml(plan)).encode(), force=True)


def done(cell: Cell, side: Side, *, values: Mapping[str, int | float], facts: Mapping[str, str] | None = None,
         notes: Sequence[str] = (), ledger: str = "", seconds: float | None = None) -> Entry:  # fmt: skip
    key, _ = key_of(cell, side)
    return Entry(key=key, side=side, state="done", at=time.time(), values=dict(values), facts=dict(facts or {}),
                 notes=tuple(notes), ledger=ledger, seconds=seconds)  # fmt: skip


def failed(cell: Cell, side: Side, reason: str, *, seconds: float | None = None) -> Entry:
    key, _ = key_of(cell, side)
    return Entry(key=key, side=side, state="failed", at=time.time(), failure=" ".join(reason.split()), seconds=seconds)


def _entry(key: Key, state: Literal["wanted", "again"], *, tries: int = 0) -> Entry:
    return Entry(key=key[0], side=key[1], state=state, at=time.time(), tries=tries)


def _segment_name() -> str:
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-") or "host"
    return f"{host}-{os.getpid()}-{time.time_ns():x}.jsonl"


def _sync_folder(folder: Path) -> None:
    """A new file's name is to stay, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile(f"cannot read {folder}: {error.strerror or error}") from error


def _sizes(folder: Path) -> list[tuple[str, int]]:
    try:
        with os.scandir(folder) as found:
            return [(one.name, one.stat().st_size) for one in found if one.name.endswith(".jsonl")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile(f"cannot read {folder}: {error.strerror or error}") from error


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _broken(path: Path, error: OSError) -> StoreBroken:
    if error.errno in _NO_SPACE:
        return _no_space(path.parent.parent, error)
    return StoreBroken(f"cannot write {path}: {error.strerror or error}")


def _unwritten(folder: Path, error: BadFile) -> StoreBroken:
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _NO_SPACE:
        return _no_space(folder, cause)
    return StoreBroken(str(error))


def _no_space(folder: Path, error: OSError) -> StoreBroken:
    return StoreBroken(f"{folder}: {error.strerror}; what was finished is kept: make space, then go on with: rooflight "
                       f"study {folder}")  # fmt: skip
