"""Ledgers of a study that were deleted, swapped or cut short: noticed by the journal's digests, named, and made again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import rooflight
from rooflight.commands.main import cli
from rooflight.study.api import load
from rooflight.study.cell import StudyCell
from rooflight.study.journal import done
from rooflight.study.store import open_study
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA, ROOT

pytestmark = pytest.mark.usefixtures("one_worker")

MISSING = "is missing"
OTHER = "is not the file that was written"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "s"
    rooflight.study("mnist-cnn", batch=[2, 3], on="h200", layers=["conv2"], folder=folder)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "s"))


def ledgers(folder: Path) -> list[Path]:
    """Of batch 2 and of batch 3."""
    return [folder / row.ledgers["estimated"] for row in open_study(folder).rows]


def study(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["study", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [
        json.loads(line) for path in (folder / "journal").glob("*.jsonl") for line in path.read_bytes().splitlines()
    ]


def delete(two: Path, three: Path) -> None:
    two.unlink()


def truncate(two: Path, three: Path) -> None:
    two.write_bytes(two.read_bytes()[:-100])


def swap(two: Path, three: Path) -> None:
    first, second = two.read_bytes(), three.read_bytes()
    two.write_bytes(second)
    three.write_bytes(first)


def test_the_journal_knows_the_digest_of_every_ledger(folder: Path) -> None:
    kept = {line["ledger"]: line["digest"] for line in lines_of(folder) if "ledger" in line}
    assert kept == {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in ledgers(folder)
    }


@pytest.mark.parametrize(
    ("damage", "count", "what"),
    [(delete, 1, MISSING), (truncate, 1, OTHER), (swap, 2, OTHER)],
    ids=["deleted", "cut off", "swapped"],
)
def test_what_is_damaged_is_named_and_made_again(folder: Path, damage, count: int, what: str) -> None:
    before = [path.read_bytes() for path in ledgers(folder)]
    rows = load(folder).rows
    damage(*ledgers(folder))

    # A report changes nothing: it says what is wrong, and shows the values, which the journal has.
    found = load(folder).rows
    assert [row.values for row in found] == [row.values for row in rows]
    notes = [note for row in found for note in note_texts(row.notes)]
    said = f"the ledger of what was estimated {what}; it is made again with: rooflight study {folder}"
    assert notes == [said] * count
    shown = CliRunner().invoke(cli, ["report", str(folder)])
    assert shown.exit_code == 0 and what in " ".join(shown.output.split())  # a long folder wraps the line

    # Going on makes it again, once, and says so in one line.
    words = [line for line in study(folder).stderr.splitlines() if what in line]
    name = rows[0].cell.alone.id
    more = " (and those of 1 more)" if count == 2 else ""
    assert words == [f"the ledger of {name}.estimated{more} {what}: made again"]
    assert [path.read_bytes() for path in ledgers(folder)] == before
    again = load(folder).rows
    assert again == [replace(row, seconds=now.seconds) for row, now in zip(rows, again, strict=True)]
    assert what not in study(folder).stderr
    assert sum(line["state"] == "lost" for line in lines_of(folder)) == count


def test_a_folder_that_is_whole_is_left_alone(folder: Path) -> None:
    before = lines_of(folder)
    assert "ledger of" not in study(folder).stderr
    assert lines_of(folder) == before


def test_python_makes_it_again_too(folder: Path) -> None:
    two, _ = ledgers(folder)
    two.unlink()
    rooflight.study(folder)
    assert two.exists()


def test_a_swapped_ledger_is_no_source_of_a_prediction(folder: Path) -> None:
    """The times of layers are told by the ops of the estimate: another batch's are not taken for them."""
    swap(*ledgers(folder))
    store = open_study(folder)
    entries = [store.entry((cell.alone.id, "estimated")) for cell in store.cells]
    assert all(entry is not None and not store.is_intact(entry) for entry in entries)


def test_a_journal_without_digests_is_read_and_what_is_missing_is_made(tmp_path: Path) -> None:
    """As earlier versions wrote it: what is gone is noticed, what was changed cannot be."""
    folder = Path(shutil.copytree(DATA / "formats_6dd1d43" / "study", tmp_path / "old"))
    store = open_study(folder)
    named = {str(line["ledger"]) for line in lines_of(folder) if line.get("ledger")}
    assert named and all("digest" not in line for line in lines_of(folder))
    assert set(store.damaged_ledgers().values()) <= {MISSING}
    study(folder)
    assert all((folder / name).exists() for name in named)
    assert not open_study(folder).damaged_ledgers()


def test_a_measurement_is_not_thrown_away_where_it_cannot_be_repeated(tmp_path: Path) -> None:
    """Its device is not here: the values stay, and the line says where the ledger can be made."""
    recorded = ROOT / "studies" / "recorded" / "h200" / "paleo-k80"
    folder = Path(shutil.copytree(recorded, tmp_path / "paleo-k80"))
    before = load(folder).rows
    measured = next(row for row in before if "measured" in row.ledgers)
    (folder / measured.ledgers["measured"]).unlink()
    (after,) = (row for row in load(folder).rows if row.cell == measured.cell)
    assert after.values == measured.values
    assert [note for note in note_texts(after.notes) if MISSING in note] == [
        "the ledger of what was measured is missing; it is made again where its device is with: "
        f"rooflight study {folder}"
    ]
    said = study(folder).stderr
    assert f"{measured.cell.id}.measured is missing: its values are kept, and it is made again where its device" in said
    assert load(folder).rows[before.index(measured)].values == measured.values


def test_two_that_wrote_at_once_do_not_accuse_each_other(folder: Path) -> None:
    """Machines without common locks may both do a cell: the file is that of the one who was last."""
    store = open_study(folder)
    cell, ledger = store.cells[0], rooflight.load(ledgers(folder)[0])
    file = store.save_ledger(replace(ledger, ops=ledger.ops[:-1]), cell, "estimated")
    assert list(store.damaged_ledgers().values()) == [OTHER]
    store.record([done(StudyCell(model="mnist-cnn", batch=2), "estimated", values={}, ledger=file)])
    assert not store.damaged_ledgers()
