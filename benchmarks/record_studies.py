"""Makes a folder that a study left on a GPU ready for the repository: studies/recorded/DEVICE/NAME.

usage: record_studies.py DEVICE FOLDER ...    or    record_studies.py --again    (what is there, with today's code)

One segment of a journal instead of one for every process; measured ledgers as they are; numbers made from them,
estimates and predictions by the code of today, so that what is said of an old measurement does not stay behind. Ledgers
of estimates are left out: `rooflight study` makes them anew.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

import rooflight
from rooflight.study.journal import JournalEntry, StudyJournal
from rooflight.study.plan import read_plan
from rooflight.study.store import read
from rooflight.study.values import measured

HERE = Path(__file__).resolve().parent.parent / "studies"
RECORDED = HERE / "recorded"


def record(source: Path, target: Path) -> None:
    plan, _ = read_plan(source / "study.toml")
    text = (source / "study.toml").read_bytes()
    lines, files = [], {}
    for entry in done_in(source):
        if entry.side == "measured":
            ledger = rooflight.load(source / entry.ledger)
            values, facts = measured(ledger, plan.layers)
            lines.append(msgspec.json.encode(msgspec.structs.replace(entry, values=values, facts=facts)))
            files[entry.ledger] = (source / entry.ledger).read_bytes()
    if target.exists():
        shutil.rmtree(target)
    (target / "journal").mkdir(parents=True)
    (target / "ledgers").mkdir()
    (target / "study.toml").write_bytes(text)
    (target / "journal" / "recorded.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for name, content in files.items():
        (target / name).write_bytes(content)
    # What was not measured is found here: estimates and predictions need no GPU.
    subprocess.run(
        [sys.executable, "-m", "rooflight", "study", str(target), "--quiet"],
        check=True, capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    found = [
        entry if entry.side == "measured" else msgspec.structs.replace(entry, ledger="", digest="")
        for entry in done_in(target)
    ]
    shutil.rmtree(target / "journal")
    (target / "journal").mkdir()
    (target / "journal" / "recorded.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, found)) + b"\n")
    for path in target.glob("ledgers/*.estimated.*"):
        path.unlink()
    for name in ("lock", "index.json"):
        (target / name).unlink(missing_ok=True)
    rows = read(target)
    failed = [row.cell.slug for row in rows if row.state != "done"]
    print(f"{target.name:24} {len(rows):3} cells, {len(files):3} measured, not done: {failed}", flush=True)


def done_in(folder: Path) -> list[JournalEntry]:
    journal = StudyJournal(folder)
    done = [journal.done_entries(key)[0] for key in journal._done]
    return sorted(done, key=lambda entry: entry.at)


def main() -> None:
    if sys.argv[1:] == ["--again"]:
        pairs = [(folder, folder) for folder in sorted(RECORDED.glob("*/*"))]
    else:
        pairs = [(Path(name), RECORDED / sys.argv[1] / Path(name).name) for name in sys.argv[2:]]
    for source, target in pairs:
        record(source, target)


main()
