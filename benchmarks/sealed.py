"""Look at the sealed half of the drawn steps: a summary, never a row.

usage: sealed.py WORK     (WORK names the piece of work, in a few words; two looks at most for each)

Prints mean, p90, worst, coverage and median half-width, and appends them with the commit to sealed_looks.csv. Nothing
else in this repository reads those rows (tests/test_held_out.py).
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from drawn_rows import RESULTS, Judged, figures, judged, rows
from time_errors import error_figures

ROOT = Path(__file__).parents[1]
LOOKS = ROOT / "benchmarks" / "sealed_looks.csv"
SEALED = RESULTS / "draw_sealed.json.gz"
MOST_LOOKS = 2
PRINTED = (
    "predicted", "gpu_mean", "gpu_p90", "gpu_worst", "gpu_coverage", "gpu_half_width", "wall_mean", "wall_p90",
    "wall_host_bound_mean", "wall_host_bound_p90", "allocated_median", "allocated_p90", "reserved_median",
    "reserved_p90",
)  # fmt: skip
COLUMNS = ("date", "work", "commit", *PRINTED)


def looks(work: str, file: Path = LOOKS) -> int:
    """How often the piece of work has looked."""
    if not file.exists():
        return 0
    with file.open() as text:
        return sum(row["work"] == work for row in csv.DictReader(text))


def commit() -> str:
    """The commit that is judged; what is not committed cannot be named."""
    if git("status", "--porcelain", "src", "benchmarks"):
        sys.exit("commit src and benchmarks first: a look belongs to a commit")
    return git("rev-parse", "--short=8", "HEAD")


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def main() -> None:
    work = " ".join(sys.argv[1:]).strip()
    if not work or work.startswith("-"):
        sys.exit(__doc__)
    if looks(work) >= MOST_LOOKS:
        sys.exit(f"{work!r} has looked {MOST_LOOKS} times already: go on with the open rows (drawn_rows.py)")
    head = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "work": work, "commit": commit()}
    outcomes = list(judged(rows(SEALED)))
    errors = [outcome.gpu.error for outcome in outcomes if isinstance(outcome, Judged)]
    summary = figures(outcomes) | error_figures("gpu", errors, "worst")
    line = head | {name: f"{summary[name]:.4g}" for name in PRINTED}
    with LOOKS.open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS).writerow(line)
    for name, value in line.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:  # a calibration or trace of this user would be taken first
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] = empty
        main()
