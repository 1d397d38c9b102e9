"""A profiler's SQLite database, read as data: only its plain tables, only by column, and nothing of it is run.

A database may hold views, triggers, virtual tables and computed columns, all of which are code of whoever wrote it. It
is opened read-only, and what is asked of it may do nothing but read the columns of tables (SQLite's authorizer).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooflight.errors import BadFile

MAGIC = b"SQLite format 3\0"
Stored = int | float | str | bytes | None
"""Any column may hold any of them: SQLite does not check types."""
_MOST = 2**62


def is_database(path: Path) -> bool:
    """By its first bytes, so that one larger than memory need not be read."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class SqliteTables:
    """The tables of a database and their rows; `name` is what messages call it."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name = name
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        plain = [table for table, made in listed if str(made).upper().startswith("CREATE TABLE")]
        self.columns = {
            table: tuple(row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})"))
            for table in plain
        }
        connection.set_authorizer(_may_only_read)
        self._connection = connection

    def __contains__(self, table: str) -> bool:
        return table in self.columns

    def rows(self, table: str, *columns: str) -> Iterator[StoredRow]:
        """These columns of all rows, one by one, in the order of the file; `None` for a column it has not."""
        there = self.columns.get(table)
        if there is None:
            return
        asked = ", ".join(_quoted(name) if name in there else "NULL" for name in columns)
        found = self._connection.execute(f"SELECT {asked} FROM {_quoted(table)}")
        for number, cells in enumerate(found, start=1):
            yield StoredRow(self.name, table, number, dict(zip(columns, cells, strict=True)))


class StoredRow:
    """A row, whose cells are asked for by type."""

    def __init__(self, name: str, table: str, number: int, cells: dict[str, Stored]) -> None:
        self._place = f"{name}, row {number} of {table}"
        self._cells = cells

    def whole(self, column: str) -> int | None:
        """A whole number; `None` where there is nothing."""
        value = self._cells[column]
        if value is None or (isinstance(value, int) and abs(value) <= _MOST):
            return value
        raise self.bad(f"{column} is {str(value)[:40]!r}, which is no whole number")

    def needed(self, column: str) -> int:
        value = self.whole(column)
        if value is None:
            raise self.bad(f"{column} is empty")
        return value

    def size(self, column: str) -> int | None:
        """How many, which nothing can be fewer than none of."""
        value = self.whole(column)
        if value is not None and value < 0:
            raise self.bad(f"{column} is {value}")
        return value

    def text(self, column: str) -> str:
        value = self._cells[column]
        return value if isinstance(value, str) else ""

    def bad(self, what: str) -> BadFile:
        return BadFile("damaged-file", f"{self._place}: {what}: the database is damaged, export it again")


@contextmanager
def opened(path: Path, content: bytes | None = None) -> Iterator[SqliteTables]:
    """A database, read-only; `content` where it was unpacked into memory."""
    if _is_open(path, content):
        raise _unfinished(path)
    try:
        if content is None:
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        else:
            connection = sqlite3.connect(":memory:")
            connection.deserialize(_without_log(content))
        try:
            tables = SqliteTables(str(path), connection)
            if not tables.columns and _has_log(content if content is not None else _head(path)):
                raise _unfinished(path)
            yield tables
        finally:
            connection.close()
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        raise BadFile("damaged-file", f"{path} is no whole SQLite database ({error}): export it again") from None


# A write-ahead log: what was written lies in FILE-wal until it is brought into the database, which nobody but a writer
# may do. Two bytes of the head say that there may be one; they stay when it was brought in and is gone.
_LOG_PLACE, _LOG, _NO_LOG = slice(18, 20), b"\x02\x02", b"\x01\x01"


def _has_log(head: bytes) -> bool:
    return head[_LOG_PLACE] == _LOG


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LOG_PLACE.stop)
    except OSError:
        return b""


def _is_open(path: Path, content: bytes | None) -> bool:
    """Does a log lie beside it? One in memory has none: what is missing shows in its tables."""
    try:
        resolved = path.resolve()
        return content is None and resolved.with_name(f"{resolved.name}-wal").stat().st_size > 0
    except OSError:
        return False


def _without_log(content: bytes) -> bytes:
    """In memory there is no place for one, and SQLite refuses a database that asks for it."""
    if not _has_log(content):
        return content
    return content[: _LOG_PLACE.start] + _NO_LOG + content[_LOG_PLACE.stop :]


def _unfinished(path: Path) -> BadFile:
    return BadFile(
        "unfinished-file",
        f"{path} is not finished: what was written last is in its -wal file; close the program that writes it, or run "
        "`sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'` on the database where it was written, and import it then",
    )


_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})


def _may_only_read(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
