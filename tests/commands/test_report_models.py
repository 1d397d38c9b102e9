"""`rooflight report` of several ledgers and of models by name; `estimate` and `predict` that draw."""

from __future__ import annotations

import csv
import io
from functools import partial

import pytest

from rooflight.files import save
from tests.fixtures.recordings import recording

NETS = ("mnist-cnn,mnist-cnn-5x5", "--batch", "64,128", "--on", "v100-sxm2-16")


@pytest.fixture
def report(run):
    return partial(run, "report")


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mnist-cnn,nothing",), "'nothing': no such model"),
        (("recorded:h200/mnist-cnn-infer-tf32", "--batch", 4), "--batch is for models by name"),
        (("mnist-cnn,mnist-cnn-5x5", "--chart", "bars", "--of", "parms", "-o", "x.png"), "quantities are flops"),
        (("mnist-cnn,mnist-cnn-5x5", "--of", "params", "-o", "x.png"), "--of says what"),
        (("nowhere.json",), "nowhere.json"),
        (("mnist-cnn,mnist-cnn-5x5", "--by", "op"), "--by is of one ledger, and these are 2"),
        (("mnist-cnn,mnist-cnn-5x5", "--depth", 1, "--csv"), "--depth is of one ledger"),
        (("mnist-cnn,mnist-cnn-5x5", "--explain", "conv1"), "--explain is of one ledger"),
        (("recorded:h200/mnist-cnn-infer-tf32",) * 2 + ("--explain", "conv1"), "--explain is of one ledger"),
        (("mnist-cnn,mnist-cnn-5x5", "--chart", "bars", "--of", "", "-o", "x.png"), "--of is empty"),
        (("mnist-cnn,mnist-cnn-5x5", "--on", "k80", "--dtype", "bf16"), "bf16"),
    ],
)
def test_what_is_wrong_is_one_line(report, arguments, said) -> None:
    code, out, err = report(*arguments)
    assert code == 2 and not out and said in err and "Traceback" not in err and len(err.splitlines()) == 1


def test_a_wrong_chart_is_answered_with_those_of_this_input(report, tmp_path) -> None:
    step = "recorded:h200/mnist-cnn-infer-tf32"
    code, _, err = report(step, "--chart", "nope", "-o", tmp_path / "a.png")
    assert code == 2
    assert "no chart 'nope' in this report: it has roofline, memory, lanes, shares, sweep, devices, bars" in err
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

    assert "Shares by type of layer" in title("estimate", "mnist-cnn", "--batch", 8)
    assert "Roofline of mnist-cnn" in title("estimate", "mnist-cnn", "--batch", 8, "--chart", "roofline")
    assert "mnist-cnn: devices side by side" in title("predict", "mnist-cnn", "--on", "v100,a100")
    assert "mnist-cnn: against the batch" in title("predict", "mnist-cnn", "--batch", "1,64")
    code, _, err = run("predict", "mnist-cnn", "--chart", "lanes", "-o", tmp_path / "x.png")
    assert code == 2 and "no chart 'lanes' of this prediction: it has devices" in err
    code, _, err = run("estimate", "mnist-cnn", "--chart", "memory")
    assert code == 2 and "-o chart.png" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("estimate", "mnist-cnn", "--json"), "--json prints, and -o x.png draws"),
        (("predict", "mnist-cnn", "--csv"), "--csv prints, and -o x.png draws"),
        (("estimate", "mnist-cnn", "--by", "op"), "--by is of the table"),
        (("estimate", "mnist-cnn", "--depth", 2), "--depth is of the table"),
        (("estimate", "mnist-cnn", "--chart", "lanes"), "there is no chart 'lanes' of this"),
    ],
)
def test_what_a_picture_does_not_take_is_refused(run, arguments, said) -> None:
    code, out, err = run(*arguments, "-o", "x.png")
    assert code == 2 and not out and said in err and "--to" not in err and len(err.splitlines()) == 1


def test_how_to_repeat_it_has_its_devices(report) -> None:
    code, out, err = report(*NETS, columns=200)
    assert code == 0, err
    commands = [line for line in out.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5 and all("--on v100-sxm2-16" in line for line in commands)
    assert commands[1] == "$ rooflight report mnist-cnn --batch 64 --on v100-sxm2-16 -o report.html"
