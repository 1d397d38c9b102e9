"""What a notebook shows: tables, and the roofline as an image that needs no script and no network."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.reporting.charts.chart import Chart
from rooflight.study.api import load
from tests.fixtures.measured_ledgers import HEADER, toy
from tests.fixtures.paths import ROOT
from tests.fixtures.recordings import recording

IMAGE = re.compile(r'<img alt="([^"]*)" style="[^"]*" src="data:image/svg\+xml;base64,([^"]+)">')


def image_of(shown: str) -> tuple[str, str]:
    """Its words for those who cannot see it, and the drawing."""
    (found,) = IMAGE.findall(shown)
    drawing = base64.b64decode(found[1]).decode()
    ElementTree.fromstring(drawing)
    return found[0], drawing


def test_a_measured_step_shows_its_table_and_its_roofline():
    shown = recording("h200/mnist-cnn-infer-fp32")._repr_html_()
    words, drawing = image_of(shown)
    assert words == "Roofline of mnist-cnn, inference on NVIDIA H200 SXM 141 GB: times recorded"
    assert "whole step" in drawing
    assert "<table" in shown
    assert "<script" not in shown + drawing
    assert not re.search(r"(src|href)=.?http", shown + drawing)


def test_an_estimate_says_where_its_times_are_predicted():
    shown = rooflight.estimate("mnist-cnn", batch=8)._repr_html_()
    assert image_of(shown)[0].endswith("on NVIDIA H200 SXM 141 GB: times predicted")
    assert "Times are predicted for NVIDIA H200 SXM 141 GB (calibrated" in shown


def test_a_step_without_a_roof_shows_its_table_and_says_why():
    unknown = toy(header=msgspec.structs.replace(HEADER, device="NVIDIA GB999"))
    shown = unknown._repr_html_()
    assert "<table" in shown
    assert not IMAGE.findall(shown)
    assert "not here: the roofline, NVIDIA GB999 is not in the database" in shown
    joined = toy(ops=(*toy().ops, msgspec.structs.replace(toy().ops[0], index=8, rank=1)))
    shown = joined._repr_html_()
    assert not IMAGE.findall(shown)
    assert "not here: the roofline, this ledger holds 2 ranks" in shown


def test_a_roofline_of_its_own_is_interactive_and_has_a_picture():
    chart = recording("h200/mnist-cnn-infer-fp32").roofline()
    assert isinstance(chart, Chart)
    bundle = chart._repr_mimebundle_()
    (vega,) = (key for key in bundle if key.startswith("application/vnd.vegalite.v"))
    assert bundle[vega]["datasets"]["points"]
    assert bundle["image/svg+xml"].startswith("<svg")
    assert bundle["text/plain"] == chart.title
    estimate = rooflight.estimate("mnist-cnn", batch=8)
    assert estimate.roofline("a100").title.endswith("on NVIDIA A100 SXM4 80 GB: times predicted")
    with pytest.raises(BadInput, match="name a device"):
        estimate.roofline()
    with pytest.raises(BadInput, match="did you mean"):
        estimate.roofline("h2000")


def test_a_comparison_is_tables_and_a_data_frame():
    found = rooflight.compare("recorded:h200/mnist-cnn-infer-fp32", "recorded:h200/mnist-cnn-infer-tf32")
    shown = found._repr_html_()
    assert shown.count("<table") >= 2
    assert "wall time" in shown
    frame = found.to_pandas()
    rows = found.rows()
    assert list(frame["module"]) == [row.name for row in rows]
    conv2 = frame.set_index("module").loc["conv2"]
    assert conv2["time_ratio"] == pytest.approx(conv2["time_s_b"] / conv2["time_s_a"])
    assert conv2["flops_a"] == next(row.a.flops for row in rows if row.name == "conv2")
    assert "op" in found.to_pandas("op").columns


def test_predictions_are_tables():
    shown = rooflight.predict("mnist-cnn", on="h200,l4", batch=8)._repr_html_()
    assert "<table" in shown
    assert "h200" in shown
    assert "l4" in shown
    assert "<script" not in shown


def test_a_study_is_tables():
    found = load(ROOT / "studies" / "recorded" / "h200" / "vgg-roofline")
    shown = found._repr_html_()
    assert shown.count("<table") >= 2
    assert "vgg19" in shown
    assert "<script" not in shown
