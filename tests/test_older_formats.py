"""Files that rooflight wrote at 6dd1d43, before quantities were renamed and headers grew: still read, by today's names."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import rooflight
from rooflight import recordings
from rooflight.commands.main import cli
from rooflight.errors import BadFile
from rooflight.files import load, save
from rooflight.hardware.calibration import read as read_calibration
from rooflight.ledger import FORMAT_VERSION, Note
from rooflight.metrics import QUANTITIES
from rooflight.spec import StepSpec
from rooflight.study.api import load as load_study
from rooflight.study.hypotheses import claims
from rooflight.summary.measured import Measured
from rooflight.summary.reliability import UNRELIABLE
from tests.fixtures.paths import DATA
from tests.fixtures.recordings import recording

FOLDER = DATA / "formats_6dd1d43"


@pytest.mark.parametrize("name", ["estimate", "measured", "regions"])
def test_a_ledger_is_read(name: str) -> None:
    ledger = load(FOLDER / f"{name}.json.gz")
    assert ledger.format_version == FORMAT_VERSION > 3
    held = {one for row in (*ledger.measurements, *ledger.kernels) for one in row.quantities}  # type: ignore[attr-defined]
    assert "gpu_time_s" not in held and all(one in QUANTITIES or "__" in one for one in held)


def test_what_an_estimate_says_is_what_it_said() -> None:
    """Parameters and useful FLOPs of the MNIST network; 4 samples, forward and backward."""
    ledger = load(FOLDER / "estimate.json.gz")
    assert sum(module.params for module in ledger.modules) == 1_199_882
    again = rooflight.estimate(StepSpec.of(ledger.header))
    assert [op.cost for op in again.ops] == [op.cost for op in ledger.ops]
    asked = "rooflight estimate mnist-cnn --batch 4 --step train --loss cross-entropy --optimizer momentum"
    assert StepSpec.of(ledger.header).command() == asked


def test_a_measurement_of_a_cpu_and_a_recording_keep_their_times() -> None:
    assert Measured(load(FOLDER / "measured.json.gz")).total.get("host_time_s")
    recorded = Measured(recording("h200/resnet50-train-fp32"))
    assert recorded.origin == "recorded" and recorded.total.get("kernel_time_s") == pytest.approx(9.6396e-3, rel=1e-3)


def test_every_number_of_a_measurement_is_what_the_file_holds() -> None:
    for name, path in {"measured": FOLDER / "measured.json.gz", "regions": FOLDER / "regions.json.gz",
                       "recorded": recordings.path("h200/mnist-cnn-infer-tf32")}.items():  # fmt: skip
        raw = json.loads(gzip.decompress(path.read_bytes()))
        assert raw["format_version"] < FORMAT_VERSION, name
        ledger = load(path)
        for rows, found in ((raw["measurements"], ledger.measurements), (raw.get("kernels", []), ledger.kernels)):
            assert len(rows) == len(found)
            for row, now in zip(rows, found, strict=True):
                held = {
                    "kernel_time_s" if key == "gpu_time_s" else key: one
                    for key, one in row.get("quantities", {}).items()
                }
                assert {key: one.value for key, one in now.quantities.items()} == {  # type: ignore[attr-defined]
                    key: one["value"] for key, one in held.items()
                }, name


def test_notes_of_before_they_had_codes_are_read_and_kept(tmp_path: Path) -> None:
    raw = json.loads(gzip.decompress(recordings.path("h200/resnet50-train-fp32").read_bytes()))
    ledger = recording("h200/resnet50-train-fp32")
    assert raw["header"]["notes"] and ledger.header.notes == tuple(Note("", text) for text in raw["header"]["notes"])
    header = msgspec.structs.replace(ledger.header, notes=(*ledger.header.notes, Note("random-inputs", "made up")))
    today = save(msgspec.structs.replace(ledger, header=header), tmp_path / "today.json")
    assert load(today).header.notes == header.notes
    today.write_text(today.read_text().replace('{"code":"random-inputs","text":"made up"}', '"made up"'))
    with pytest.raises(BadFile) as refused:
        load(today)
    assert refused.value.code == "damaged-file"


def test_a_calibration_is_read() -> None:
    """Three points of each kind of the H200's; the whole of it times every prediction."""
    path = FOLDER / "calibration.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()))
    found = read_calibration(path)
    assert (found.device, found.made) == ("NVIDIA H200", "2026-11-15")
    assert msgspec.to_builtins(found.ceilings) == raw["ceilings"] and msgspec.to_builtins(found.host) == raw["host"]
    assert [point.family for point in found.points] == [point["family"] for point in raw["points"]]
    assert [[list(row) for row in point.rows] for point in found.points] == [point["rows"] for point in raw["points"]]
    assert rooflight.predict("mnist-cnn", calibration=path, on="h200", advice=False)[0].time_s > 0


def test_todays_predictions_have_every_field_of_then_and_its_numbers(tmp_path: Path) -> None:
    """A program that reads them keeps working. Times moved with what is known of the device, amounts did not."""
    then = json.loads((FOLDER / "predictions.json").read_text())
    path = tmp_path / "now.json"
    CliRunner().invoke(cli, ["predict", "mnist-cnn", "--batch", "4", "--on", "h200", "-o", str(path)])
    now = json.loads(path.read_text())
    assert set(then) <= set(now) and set(then["header"]) <= set(now["header"])
    (old,), (new,) = then["predictions"], now["predictions"]
    assert set(old) <= set(new) and set(old["memory"]) <= set(new["memory"])
    for name in ("device", "tier", "batch", "flops", "gpus"):
        assert new[name] == old[name], name
    assert 0.5 < new["kernels"] / old["kernels"] < 2  # as the calibration counted them


def test_a_study_is_read_and_its_claims_are_understood(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(FOLDER / "study", folder)
    rows = load_study(folder).rows
    assert [row.state for row in rows] == ["done", "done"]
    for row in rows:
        assert (
            "gpu_time.predicted" not in row.values and row.values["gpu_busy.predicted"] < row.values["time.predicted"]
        )
        assert 0 < row.values["conv2/kernel_time.predicted"] < row.values["gpu_busy.predicted"]
        assert row.facts["fits"] == "yes"
    index = json.loads((FOLDER / "study" / "index.json").read_text())
    for row, then in zip(rows, index["rows"], strict=True):
        old = {name.replace("gpu_time", "kernel_time" if "/" in name else "gpu_busy"): value
               for name, value in then["values"].items()}  # fmt: skip
        # Rates follow from what is there.
        assert {name: value for name, value in row.values.items() if "_per_s." not in name} == old
        assert row.values["flops_per_s.predicted"] == old["flops.estimated"] / old["time.predicted"]
    (judged,) = claims(load_study(folder).plan.claim, rows)
    assert judged.verdict == "held"
    # As results are passed on, without their journal.
    shutil.rmtree(folder / "journal")
    assert load_study(folder).rows == rows


def test_notes_of_an_older_study_are_read_from_its_index_and_its_journal(tmp_path: Path) -> None:
    """That times are doubted is still known of them."""
    doubted, other = "TIMES UNRELIABLE: others kept the cores busy", "no GPU here"
    wanted = (Note(UNRELIABLE, doubted), Note("", other))
    folder = tmp_path / "study"
    shutil.copytree(FOLDER / "study", folder)
    (journal,) = (folder / "journal").iterdir()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0]["notes"] = [doubted, other]
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert wanted in [row.notes for row in load_study(folder).rows]
    shutil.rmtree(folder / "journal")
    index = json.loads((folder / "index.json").read_text())
    index["rows"][0]["notes"] = [doubted, other]
    (folder / "index.json").write_text(json.dumps(index))
    assert load_study(folder).rows[0].notes == wanted
