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

import gzip
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from types import MappingProxyType

import msgspec

from rooflight.errors import BadFile
from rooflight.files import UNDECODABLE, with_notes, write_atomically
from rooflight.ledger import Ledger, Note
from rooflight.spec import shell
from rooflight.study.cell import SIDES, Key, Side, StudyCell, StudyRow, notes_now, values_now
from rooflight.study.journal import JOURNAL, JournalEntry, LedgerFile, StudyJournal, broken, failed
from rooflight.study.locks import Locks
from rooflight.study.plan import StudyPlan, merged, read_plan, to_toml
from rooflight.study.rates import with_rates

PLAN, LEDGERS, LOCK, INDEX = "study.toml", "ledgers", "lock", "index.json"
INDEX_VERSION = 2
_LEFT_BEHIND = re.compile(r"\.(.+\.json\.gz|index\.json|study\.toml)\.\w+|\.[A-Za-z0-9-]+-\d+")
"""Names of files that are not yet what they will be."""


class Store(StudyJournal):
    """One study's folder, as one process sees it: its plan, and what its journal says of the plan's cells."""

    def __init__(self, folder: Path, plan: StudyPlan) -> None:
        super().__init__(folder)
        self.plan = plan
        self.cells = plan.cells
        self.by_id = {cell.id: cell for cell in self.cells}
        self._locks: Locks | None = None

    # --- reading ---

    def sides(self, cell: StudyCell) -> list[Side]:
        """What the cell asks for, as far as anybody knows."""
        if cell.impossible:
            return []
        asked: list[Side] = ["estimated"]
        asked += ["predicted"] if cell.on is not None else []
        waits = self.plan.measure is True and cell.is_on_one_device
        if self.is_measurable(cell) and (waits or self.is_wanted((cell.id, "measured"))):
            asked.append("measured")
        return asked

    @property
    def keys(self) -> list[Key]:
        """Of all sides that the cells ask for, each once."""
        return list(dict.fromkeys(cell.key(side) for cell in self.cells for side in self.sides(cell)))

    def is_measurable(self, cell: StudyCell) -> bool:
        """Could some machine measure it?"""
        return self.plan.measure is not False and (cell.is_on_one_device or cell.is_data_parallel)

    def row(self, cell: StudyCell, damaged: Mapping[Key, str] = MappingProxyType({})) -> StudyRow:
        """`damaged`: ledgers of which a note must be made."""
        sides = self.sides(cell)
        entries = {side: entry for side in sides if (entry := self.entry(cell.key(side))) is not None}
        failures = {side: entry.failure for side, entry in entries.items() if entry.state == "failed"}
        notes = [Note("not-measured", cell.unmeasured)] if cell.unmeasured and self.plan.measure is not False else []
        if cell.impossible:
            return StudyRow(
                cell=cell, state="impossible", notes=(Note("impossible", f"impossible: {cell.impossible}"),)
            )
        for side, entry in entries.items():
            damage = damaged.get(cell.key(side))
            notes += [*entry.notes, *([_damage_note(side, damage, self.folder)] if damage else [])]
        return StudyRow(
            cell=cell,
            state="waiting" if len(entries) < len(sides) else "failed" if failures else "done",
            values=with_rates(
                cell, {name: value for entry in entries.values() for name, value in entry.values.items()}
            ),
            facts={name: fact for entry in entries.values() for name, fact in entry.facts.items()},
            failures=failures,
            notes=tuple(dict.fromkeys(notes)),
            ledgers={side: entry.ledger for side, entry in entries.items() if entry.ledger},
            seconds={side: entry.seconds for side, entry in entries.items() if entry.seconds is not None},
        )

    @property
    def rows(self) -> list[StudyRow]:
        return [self.row(cell) for cell in self.cells]

    def open_sides(self, cell: StudyCell) -> list[Side]:
        """What of the cell is still to be done."""
        return [side for side in self.sides(cell) if self.is_open(cell.key(side))]

    def waiting(self) -> list[StudyCell]:
        return [cell for cell in self.cells if self.open_sides(cell)]

    def damaged_ledgers(self) -> dict[Key, str]:
        """Ledgers that the journal knows and that are gone, or are not the files that were written; in words."""
        return {key: damage for key in self.keys if (damage := self._damage(self.done_entries(key)))}

    def _damage(self, entries: Sequence[JournalEntry]) -> str:
        """Of several that did the same at once the last one wrote the file: any of them may be it."""
        with_ledger = [entry for entry in entries if entry.ledger]
        if not with_ledger:
            return ""
        try:
            content = (self.folder / with_ledger[0].ledger).read_bytes()
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"{UNREADABLE} ({error.strerror or error})"
        digests = {entry.digest for entry in with_ledger}
        return "" if digests & {"", _digest(content)} else "is not the file that was written"

    def is_intact(self, entry: JournalEntry) -> bool:
        """Is the ledger of an entry the one that was written?"""
        return bool(entry.ledger) and not self._damage([entry])

    # --- writing ---

    def save_ledger(self, ledger: Ledger, cell: StudyCell, side: Side) -> LedgerFile:
        """Whoever comes second writes the same, or newer."""
        name = f"{LEDGERS}/{'.'.join(cell.key(side))}.json.gz"
        # Packed in haste: a study of many batches would else spend most of its time on it.
        content = gzip.compress(msgspec.json.encode(ledger), compresslevel=1, mtime=0)
        self._write(name, content)
        return LedgerFile(name, _digest(content))

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_atomically(self.folder / name, content, force=True)
        except BadFile as error:
            raise broken(self.folder, error.__cause__, str(error)) from error

    def forgive(self) -> int:
        """Let what failed be tried once more; how many sides of cells that are."""
        return self.forgive_keys(cell.key(side) for cell in self.cells for side in SIDES)

    def write_index(self) -> Path:
        """All rows in one file, for programs; those too that another process has added to the plan meanwhile."""
        now = open_study(self.folder)
        index = _StudyIndex(format_version=INDEX_VERSION, title=now.plan.title, rows=now.rows)
        self._write(INDEX, msgspec.json.encode(index))
        return self.folder / INDEX

    def tidy(self) -> None:
        """Remove what killed processes left half-written, if nobody else is here."""
        with self.locks.alone() as alone:
            if alone:
                for folder in (self.folder, self.folder / LEDGERS, self.folder / JOURNAL):
                    for name in filter(_LEFT_BEHIND.fullmatch, _names(folder)):
                        (folder / name).unlink(missing_ok=True)

    # --- who works on what ---

    @property
    def locks(self) -> Locks:
        """Whoever only reads needs none, nor the permission to have one."""
        if self._locks is None:
            self._locks = Locks(self.folder / LOCK)
            self._locks.be_present()
        return self._locks

    def is_free(self, key: Key) -> bool:
        """Is no other process at it?"""
        return self.locks.is_free(".".join(key))

    def holding(self, key: Key, *, wait: bool = False) -> AbstractContextManager[bool]:
        """Nobody else works on it while the block lasts, if it is ours. `wait`: until it is."""
        return self.locks.holding(".".join(key), wait=wait)

    def fail(self, cell: StudyCell, side: Side, reason: str) -> None:
        """Write down that it failed, unless it was done meanwhile or somebody else is at it."""
        with self.holding(cell.key(side)) as is_ours:
            if is_ours:
                self.refresh()
                if self.is_open(cell.key(side)):
                    self.record([failed(cell, side, reason)])

    def close(self) -> None:
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(folder: str | Path) -> list[StudyRow]:
    """What became of every cell of a study, in the order of its plan."""
    folder = Path(folder)
    if (folder / PLAN).is_file() and not (folder / JOURNAL).is_dir() and (folder / INDEX).is_file():
        return _rows_in(folder / INDEX)  # as results are passed on: without the journal
    store = open_study(folder)
    damaged = store.damaged_ledgers()
    return [store.row(cell, damaged) for cell in store.cells]


def _damage_note(side: Side, damage: str, folder: Path) -> Note:
    if damage.startswith(UNREADABLE):
        return Note("damaged-ledger", f"the ledger of what was {side} {damage}: may you read it?")
    where = "" if side == "estimated" else " where its device is"
    return Note(
        "damaged-ledger",
        f"the ledger of what was {side} {damage}; it is made again{where} with: {shell('study', folder)}",
    )


UNREADABLE = "cannot be read"
"""How the damage of a ledger begins that is there, and may be whole: it is left as it is."""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_plan_in(folder: str | Path) -> StudyPlan:
    """The plan of a study's folder."""
    return read_plan(Path(folder) / PLAN)[0]


def is_study(path: Path) -> bool:
    return (path / PLAN).is_file() and ((path / JOURNAL).is_dir() or (path / INDEX).is_file())


class _StudyIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int
    title: str
    rows: list[StudyRow]


class _RowOf1(StudyRow, frozen=True):
    """Of before notes had codes."""

    notes: tuple[str, ...] = ()  # type: ignore[assignment]


class _IndexOf1(_StudyIndex, frozen=True):
    rows: list[_RowOf1]  # type: ignore[assignment]


def _index_in(content: bytes) -> _StudyIndex:
    try:
        return msgspec.json.decode(content, type=_StudyIndex)
    except msgspec.ValidationError as error:
        try:
            old = msgspec.json.decode(content, type=_IndexOf1)
        except UNDECODABLE:
            raise error from None
        rows = [with_notes(StudyRow, row, notes_now(row.notes)) for row in old.rows]
        return _StudyIndex(format_version=old.format_version, title=old.title, rows=rows)


def _rows_in(path: Path) -> list[StudyRow]:
    try:
        index = _index_in(path.read_bytes())
    except OSError as error:
        raise BadFile("read-failed", f"cannot read {path}: {error.strerror or error}; may you read it?") from error
    except UNDECODABLE as error:
        raise BadFile(
            "damaged-file", f"{path} is no index of a study: {error}; remove it, and it is written again"
        ) from None
    if not 1 <= index.format_version <= INDEX_VERSION:
        raise BadFile(
            "unknown-format",
            f"{path} has format {index.format_version}, and this rooflight reads {INDEX_VERSION}: use the "
            "rooflight that wrote it",
        )
    return [msgspec.structs.replace(row, values=with_rates(row.cell, values_now(row.values))) for row in index.rows]


def _begun(folder: Path) -> str:
    return shell("study", "STUDY.toml", output=folder)


def open_study(folder: Path) -> Store:
    """A study's folder that is there already, and can be gone on with."""
    if not folder.exists():
        raise BadFile("folder-not-found", f"{folder} does not exist: a study is begun with `{_begun(folder)}`")
    if not folder.is_dir():
        raise BadFile("not-a-folder", f"{folder} is a file, no study's folder: give the folder, or a .toml file")
    if not is_study(folder):
        raise BadFile(
            "not-a-study",
            f"{folder} is no study's folder: it has no {PLAN} and {JOURNAL}/; one is begun with `{_begun(folder)}`",
        )
    if not (folder / JOURNAL).is_dir():
        raise BadFile(
            "no-journal",
            f"{folder} holds results without their journal: `rooflight report` shows them, and "
            f"`{shell('study', folder / PLAN, output='NEW')}` finds them anew",
        )
    return Store(folder, read_plan_in(folder))


def begin(folder: Path, plan: StudyPlan, text: str | None = None) -> Store:
    """The folder of this plan, made or gone on with; `text`: the plan's file as it was given."""
    _with_plan_in(folder, plan)  # refuses before anything is written
    _make(folder)
    with closing(Locks(folder / LOCK)) as locks:
        locks.be_present()  # whoever tidies would take a plan that is being written for one left behind
        with locks.holding("plan"):
            before, both = _with_plan_in(folder, plan)
            if both != before:
                written = text if text and both == plan else to_toml(both)
                write_atomically(folder / PLAN, written.encode(), force=True)
    return Store(folder, both)


def _with_plan_in(folder: Path, plan: StudyPlan) -> tuple[StudyPlan | None, StudyPlan]:
    """Return the plan that the folder has, and that plan together with `plan`."""
    if not (folder / PLAN).exists():
        return None, plan
    before = read_plan_in(folder)
    return before, merged(before, plan, str(folder))


def _make(folder: Path) -> None:
    """Only an empty folder, or a study's own, becomes a study's folder."""
    if folder.exists() and not folder.is_dir():
        raise BadFile("not-a-folder", f"{folder} is a file: give a folder for the study")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may be writing the plan at this moment, under a name that begins so, or was killed doing it.
        names = {name for name in _names(folder) if not name.startswith((f".{PLAN}.", f".{INDEX}."))}
        others = sorted(names - {PLAN, JOURNAL, LEDGERS, LOCK, INDEX})
        if others and not (folder / PLAN).exists():
            raise BadFile(
                "folder-not-empty",
                f"{folder} holds other things ({others[0]}): give a new or empty folder for the study",
            )
        for name in (JOURNAL, LEDGERS):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise BadFile(
            "write-failed", f"cannot make {folder}: {error.strerror or error}; give another folder"
        ) from error
    if not os.access(folder, os.W_OK):
        raise BadFile("no-permission", f"no permission to write into {folder}: give another folder")


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile("read-failed", f"cannot read {folder}: {error.strerror or error}; may you read it?") from error
