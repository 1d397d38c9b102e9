"""`rooflight compare A --claims FILE`: prints what a table of claims is worth, and ends with a grade as exit code."""

from __future__ import annotations

import sys
from pathlib import Path

from rooflight.analysis.claims import check, read_claims
from rooflight.commands.output import show
from rooflight.commands.terminal import say
from rooflight.files import load
from rooflight.reporting.sections.claims_tables import claims_document

WRONG = 1
"""Exit code when something in the table is wrong, or nothing of it could be checked: a table that cannot be read at all
is 2, as everywhere."""


def check_claims(ledger: Path, claims: Path, *, to: str, output: Path | None, force: bool, strict: bool) -> None:
    rows = read_claims(claims)
    checked = check(load(ledger), rows, file=str(claims), strict=strict)
    show(claims_document(checked), to, output=output, force=force)
    if output is not None:
        say(f"wrote {output}: {checked.grade}")
    if not checked.passes:
        sys.stdout.flush()
        sys.exit(WRONG)
