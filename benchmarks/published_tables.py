"""Public tables of times as CSV, as published_calibrations.py and hosts.py read them."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path


def table(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))
