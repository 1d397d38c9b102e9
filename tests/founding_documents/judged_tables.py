"""What the checker makes of the two sets of tables: the faults that the tests and benchmarks/ratchet.py count."""

from __future__ import annotations

from rooflight.analysis.claims import CheckedTable, check, parse_claims
from tests.founding_documents.claim_tables import ClaimTable
from tests.founding_documents.right_tables import RIGHT
from tests.founding_documents.wrong_tables import WRONG, PlantedTable


def checked(table: ClaimTable) -> CheckedTable:
    found = check(table.ledger, parse_claims(table.csv, "table.csv"))
    assert len(found.rows) == len(table.cells)
    return found


def faults_of_right(table: ClaimTable) -> list[str]:
    """Name the rows of a right table that are called wrong, and what is said against several of them."""
    found = checked(table)
    blamed = [f"{row.claim.where}: {row.verdict}" for row in found.rows if row.verdict in ("wrong", "unreadable")]
    return blamed + [str(finding) for finding in found.findings]


def faults_of_verdict(table: ClaimTable) -> list[str]:
    """Also say if the exit code is not that of a right table."""
    passes = checked(table).passes
    return faults_of_right(table) + ([] if passes is table.checkable else [f"passes: {passes}"])


def faults_of_planted(planted: PlantedTable) -> list[str]:
    """Name what the checker missed in a table with a planted mistake, and the rows that it blamed instead."""
    found = checked(planted.wrong)
    contradicted = {number for finding in found.findings for number in finding.rows}
    faults = [] if planted.planted else ["nothing is planted"]
    for place, row in enumerate(found.rows):
        seen = row.verdict == "wrong" or (row.verdict != "right" and row.claim.row in contradicted)
        if place in planted.planted and not seen:
            faults.append(f"{row.claim.where}: not found, {row.verdict}")
        elif place not in planted.planted and row.verdict == "wrong":
            faults.append(f"{row.claim.where}: blamed")
    return faults + (["the table passes"] if found.passes else [])


def figures() -> dict[str, float]:
    """Return how many tables are judged without a fault."""
    planted = [one.table() for one in WRONG.values()]
    return {
        "right_tables": sum(not faults_of_verdict(make()) for make in RIGHT.values()),
        "wrong_tables": sum(not faults_of_planted(one) and not faults_of_right(one.right) for one in planted),
    }
