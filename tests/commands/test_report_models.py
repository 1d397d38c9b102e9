"""`rooflight report` of several ledgers and of models by name; `estimate` and `predict` that draw."""

from __future__ import annotations

import csv
import io

import pytest

from rooflight.files import save
from tests.fixtures.recordings import recording

NETS = ("mnist-cnn,mnist-cnn-5x5", "--batch", "64,128", "--on", "v100-sxm2-16")


@pytest.fixture
def report(run):
    return run.of("report")


def test_models_by_name_are_estimated_and_predicted(report) -> None:
    code, out, err = report(*NETS, "--to", "csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["model"], row["batch"]) for row in rows] == [
        ("mnist-cnn", "64"), ("mnist-cnn", "128"), ("mnist-cnn-5x5", "64"), ("mnist-cnn-5x5", "128"),
    ]  # fmt: skip
    for row in rows:
        flops, moved, time_s = (float(row[name]) for name in ("flops", "bytes", "gpu_busy_s"))
        assert float(row["intensity"]) == pytest.approx(flops / moved)
        assert float(row["flops_per_s"]) == pytest.approx(flops / time_s)
        assert float(row["bytes_per_s"]) == pytest.approx(moved / time_s)
    assert float(rows[1]["flops"]) == pytest.approx(2 * float(rows[0]["flops"]))


def test_their_roofline_and_bars_are_pictures(report, tmp_path) -> None:
    drawn = tmp_path / "roofline.svg"
    code, _, err = report(*NETS, "--chart", "roofline", "-o", drawn)
    assert code == 0, err
    assert "mnist-cnn, batch 64" in drawn.read_text() and "mnist-cnn-5x5, batch 128" in drawn.read_text()
    bars = tmp_path / "bars.svg"
    code, _, err = report("mnist-cnn,mnist-cnn-5x5", "--chart", "bars", "--of", "params", "-o", bars, "--on", "h200")
    assert code == 0, err
    assert "21.8 k" in bars.read_text() and "1.20 M" in bars.read_text()


def test_the_charts_of_several_ledgers_are_listed(report) -> None:
    step = "recorded:h200/mnist-cnn-infer-tf32"
    code, out, _ = report(step, step, step, "--chart", "list")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["roofline", "bars"]


def test_three_ledgers_are_a_table_in_the_terminal(report, tmp_path) -> None:
    names = ("mnist-cnn-infer-tf32", "mnist-cnn-infer-fp32")
    paths = []
    for name in names:
        paths.append(tmp_path / f"{name}.json")
        save(recording(f"h200/{name}"), paths[-1])
    code, out, err = report(*paths, "recorded:h200/mnist-cnn-train-tf32", "--on", "h200")
    assert code == 0, err
    assert "recorded" in out and "GFLOP/s" in out and "rooflight report" in out


def test_estimate_and_predict_draw_what_fits(run, tmp_path) -> None:
    def title(*arguments) -> str:
        path = tmp_path / "drawn.svg"
        code, out, err = run(*arguments, "-o", path, "--force")
        assert code == 0 and not out, err
        return path.read_text()

    assert "Conv2d" in title("estimate", "mnist-cnn", "--batch", 8)
    assert "Roofline" in title("estimate", "mnist-cnn", "--batch", 8, "--chart", "roofline")
    devices = title("predict", "mnist-cnn", "--on", "v100,a100")
    assert "v100-sxm2-16" in devices and "a100-sxm-80" in devices
    assert "batch" in title("predict", "mnist-cnn", "--batch", "1,64")


def test_how_to_repeat_it_has_its_devices(report) -> None:
    code, out, err = report(*NETS, columns=200)
    assert code == 0, err
    commands = [line for line in out.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5 and all("--on v100-sxm2-16" in line for line in commands)
    assert commands[1] == "$ rooflight report mnist-cnn --batch 64 --on v100-sxm2-16 -o report.html"
