"""`rooflight accuracy` in every form, and the line that every prediction has."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rooflight
from rooflight.commands.main import cli


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_text() -> None:
    text = run("accuracy", "--on", "t4").output
    assert "t4" in text.splitlines()[0]
    for words in ("device", "kind of model", "length of the step", "source", "90%"):
        assert words in text


def test_several_devices_and_how_the_worst_rows_are_ranked() -> None:
    text = run("accuracy", "--on", "t4,a100").output
    assert text.splitlines()[0].endswith("t4, a100-sxm-80") and "2 devices" in text


def test_json_has_every_row_with_its_error() -> None:
    data = json.loads(run("accuracy", "--on", "t4", "--json").output)
    whole = rooflight.accuracy(on="t4")
    assert len(data["rows"]) == len(whole.rows) and data["steps"]["mean"] == pytest.approx(whole.steps.mean)
    row = data["rows"][0]
    for prediction in row["predictions"].values():
        assert prediction["error"] == pytest.approx(prediction["time_s"] / row["published_s"] - 1)


def test_csv_and_files(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("accuracy", "--on", "t4", "--csv").output)))
    assert {row["device"] for row in rows} == {"t4"}
    for ending, words in (
        (".md", "## By device"),
        (".html", "By device"),
        (".json", '"groups"'),
        (".csv", "published_s"),
    ):
        path = tmp_path / f"accuracy{ending}"
        assert run("accuracy", "--on", "t4", "-o", str(path)).exit_code == 0
        assert words in path.read_text()


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['rooflight', 'accuracy', '--on', 't4']\n"
        "from rooflight.commands.main import cli\n"
        "cli.main(sys.argv[1:], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_prediction_says_how_far_such_ones_were_off() -> None:
    text = " ".join(run("predict", "mnist-cnn", "--on", "t4,a10").output.split())
    assert "checked: t4: " in text and "checked: a10: " in text
    found = rooflight.predict("mnist-cnn", on="t4")[0].checked
    rows = rooflight.accuracy(on="t4").rows
    alike = [row for row in rows if row.kind == "convnet" and row.step == "infer" and row.is_step]
    assert found is not None and (found.model_kind, found.steps) == ("convnet", len(alike))


def test_a_calibration_of_ones_own_was_never_checked(tmp_path: Path) -> None:
    from rooflight.hardware.calibration import shipped

    prediction = rooflight.predict("mnist-cnn", on="h200", calibration=shipped("h200"))[0]
    assert prediction.checked is not None and prediction.checked.steps == 0
