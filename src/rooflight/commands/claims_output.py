"""`rooflight compare A --claims FILE`: prints what a table of claims is worth, and ends with a grade as exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from rooflight.claims import check, read_claims
from rooflight.commands.output import emit, show_page
from rooflight.commands.terminal import say
from rooflight.files import load, write_atomically
from rooflight.reporting import claims_tables
from rooflight.reporting.table import to_csv

WRONG = 1
"""Exit code when something in the table is wrong, or nothing of it could be checked: a table that cannot be read at all
is 2, as everywhere."""


def check_claims(ledger: Path, claims: Path, *, to: str, output: Path | None, force: bool, strict: bool) -> None:
    rows = read_claims(claims)
    checked = check(load(ledger), rows, file=str(claims), strict=strict)
    if to == "text":
        show_page(claims_tables.claims_page(checked))
    else:
        if to == "json":
            content = msgspec.json.encode(claims_tables.claims_data(checked))
        elif to == "csv":
            content = to_csv([claims_tables.full_table(checked)]).encode()
        else:
            content = claims_tables.claims_page(checked).to_markdown().encode()
        if output is None:
            emit(content)
        else:
            write_atomically(output, content, force=force)
            say(f"wrote {output}: {checked.grade}")
    if not checked.passes:
        sys.stdout.flush()
        sys.exit(WRONG)
