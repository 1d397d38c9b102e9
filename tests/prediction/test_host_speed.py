"""Whose host a GPU is taken to have, and how sure that is."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rooflight.hardware.calibration import published_name, shipped
from rooflight.hardware.devices import find
from rooflight.ledger import Value
from rooflight.prediction.api import predict
from rooflight.prediction.host_speed import CALIBRATED_HOST, GIVEN_HOST, HOST_RATIO, IDLE_CALL, HostSpeed, usual_host
from rooflight.prediction.resolve_devices import predictor_of
from rooflight.prediction.tiers import predictor
from rooflight.reporting.sections.predict_document import predict_document
from tests.fixtures.paths import ROOT


def test_a_host_is_as_old_as_its_gpu_but_no_older_or_newer_than_those_that_are_known() -> None:
    # exp(-0.031 - 0.234 (year - 2018.5)): 2016 1.74, 2017 1.38, 2018 1.09, 2020 0.68, 2022 0.43
    ratios = {
        name: usual_host(find(name)).ratio for name in ("p100-pcie", "v100-sxm2-16", "t4", "rtx-3090", "rtx-4090")
    }
    assert list(ratios.values()) == pytest.approx([1.74, 1.38, 1.09, 0.68, 0.43], abs=0.006)
    assert usual_host(find("k80")).ratio == ratios["p100-pcie"]
    assert usual_host(find("b200")).ratio == usual_host(find("mi300x")).ratio == ratios["rtx-4090"]


def test_a_host_at_the_end_of_the_line_is_less_sure() -> None:
    # 0.505 sqrt(1 + 1/6 + (year - 2018.5)^2 / 31.5): 2018 0.548, 2022 0.630
    middle, end = (usual_host(find(name)).deviation for name in ("t4", "rtx-4090"))
    assert (middle, end) == (pytest.approx(0.548, abs=0.001), pytest.approx(0.630, abs=0.001))


def test_a_calibration_of_another_device_knows_no_host_of_this_one() -> None:
    given, _ = predictor_of(find("t4"), None, shipped("h200"))
    assert given.host_speed == GIVEN_HOST and given.host_speed.deviation > CALIBRATED_HOST.deviation


def test_costs_of_the_host_grow_and_those_between_kernels_stay() -> None:
    costs = {"gemm.infer": Value(2e-5, "a test"), "gap": Value(1e-6, "a test"), "graph.replay": Value(4e-5, "a test"),
             IDLE_CALL: Value(6e-6, "a test")}  # fmt: skip
    slower = HostSpeed(1.5, 0.5, "another").costs(costs)
    assert slower["gemm.infer"].value == pytest.approx(3e-5) and "times 1.5, another" in slower["gemm.infer"].origin
    assert {key: value for key, value in slower.items() if key != "gemm.infer"} == {
        key: value for key, value in costs.items() if key != "gemm.infer"
    }
    assert CALIBRATED_HOST.costs(costs) == costs


def test_who_published_single_ops_tells_the_host_of_the_chip() -> None:
    published = shipped(published_name("a100-pcie-40"))
    assert published is not None
    told = published.host[HOST_RATIO].value
    for name in ("a100-pcie-40", "a100-sxm-80"):
        assert predictor(find(name)).host_speed.ratio == told
    # nobody's single ops on these tell it; the calibrated one has its own
    assert predictor(find("rtx-4090")).host_speed == usual_host(find("rtx-4090"))
    assert predictor(find("h200")).host_speed == predictor(find("h200"), "transferred").host_speed == CALIBRATED_HOST


def test_a_host_bound_step_takes_as_long_as_its_host_and_says_how_unsure_that_is() -> None:
    on = predict("resnet18", on=["h200", "a100-pcie-40", "v100-pcie-32"], batch=1, advice=False)
    walls = {row.device: row for row in on}
    assert walls["a100-pcie-40"].host_time_s is not None and walls["v100-pcie-32"].host_time_s is not None
    assert walls["a100-pcie-40"].time_s < walls["v100-pcie-32"].time_s  # its host is newer
    for row in on:
        low, high = row.time_interval_s.low, row.time_interval_s.high
        wider = math.log(high / low)
        assert wider > (1.7 if row.device != "h200" else 0.6)  # 2 x 1.645 x 0.55, or 0.25


def test_a_call_on_an_idle_gpu_is_what_was_measured() -> None:
    """The constant in the calibration is that of the measured calls."""
    rows = json.loads((ROOT / "benchmarks" / "h200" / "results" / "idle_calls.json").read_text())["rows"]
    beyond = [row["idle_s"] - row["row_s"] for row in rows if row["kind"] == "single"]
    calibration = shipped("h200")
    assert calibration is not None
    assert calibration.host[IDLE_CALL].value == pytest.approx(float(np.median(beyond)) - 2e-6, abs=2e-7)


def test_python_says_as_the_command_does_that_hosts_decide() -> None:
    several = predict("mnist-cnn", on="h200,rtx-4090,l4", batch=8)
    assert {row.bound for row in several} == {"host"}
    said = repr(several).splitlines()
    # One line a device, and one on their order.
    assert len(said) == 1 + 3 + 1
    assert said[-1].startswith(
        "host-bound, so which is fastest is a matter of hosts, which are not known; least GPU time"
    )
    assert said[-1] == predict_document(several).lines[0]
    # Of one device there is no order.
    assert len(repr(predict("mnist-cnn", on="rtx-4090", batch=8)).splitlines()) == 2
