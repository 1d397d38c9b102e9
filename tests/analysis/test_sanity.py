"""Numbers worked out by hand are judged: one test for every sentence that the documents' rows do not bring about."""

from __future__ import annotations

import pytest

import rooflight
from rooflight.analysis.sanity import StatedRun, judge, link_claim, roof_point
from rooflight.analysis.sanity.ratios import compare, explain, memory_ratio
from rooflight.errors import BadInput
from rooflight.hardware import devices

V100, A100, GH200 = (devices.find(name) for name in ("v100-sxm2-16", "a100-sxm-40", "gh200"))
K80, K80_BOARD = devices.find("k80"), devices.find("k80-board")


def codes(**given) -> list[str]:
    return [finding.code for finding in judge(StatedRun(**given)).findings]


def test_nothing_is_wrong_with_right_numbers():
    found = judge(
        StatedRun(
            device=A100,
            precision="tf32",
            flops=156e9,
            useful_flops=156e9,
            counted="all-units",
            bytes=1.555e9,
            time_s=1.25e-3,
            gpu_busy_s=1.25e-3,
            batch=4,
            peak_flops_per_s=156e12,
            bandwidth_bytes_per_s=1555e9,
            stated={"intensity": 100.3, "ridge": 100.3, "percent_of_roof": 80.0, "throughput": 3200},
            bound="compute",
        )
    )
    assert found.findings == ()
    assert found.percent_of_roof == pytest.approx(80)
    assert found.ppp == pytest.approx(0.8)
    assert found.text == ["compute side: 100 FLOP/byte is right of the ridge at 100; 80% of the attainable 156 TFLOP/s"]


@pytest.mark.parametrize(
    ("device", "precision", "peak", "code"),
    [
        (A100, "tf32", 19.5e12, "peak-of-another-precision"),
        (V100, "tf32", 125e12, "peak-of-another-precision"),
        (V100, "fp32", 157e12, "peak-off-by-ten"),
        (V100, "fp32", 15.7e9, "peak-off-by-ten"),
        (A100, "bf16", 624e12, "peak-of-two"),
        (K80, "fp32", 8.73e12, "peak-of-two"),
        (A100, "tf32", 42e12, "peak-unknown"),
    ],
)
def test_peaks(device, precision, peak, code):
    assert codes(device=device, precision=precision, peak_flops_per_s=peak) == [code]


@pytest.mark.parametrize(
    ("bandwidth", "code"),
    [
        (300e9, "link-for-memory"),
        (150e9, "link-for-memory"),
        (900e6, "bandwidth-off-by-ten"),
        (9e12, "bandwidth-off-by-ten"),
        (7200e9, "bits-for-bytes"),
        (555e9, "bandwidth-unknown"),
    ],
)
def test_bandwidths(bandwidth, code):
    assert codes(device=V100, precision="fp32", bandwidth_bytes_per_s=bandwidth) == [code]


def test_boards():
    assert codes(device=K80_BOARD, precision="fp32") == ["board-for-die"]
    assert codes(device=K80_BOARD, precision="fp32", processes=2) == []
    assert codes(device=K80, precision="fp32") == []


def test_links():
    assert link_claim(V100, 300e9, "gpu-gpu") is None
    assert link_claim(V100, 300e9, "gpu-cpu").text == (
        "300 GB/s is NVLink (both directions together), between GPUs, not between GPU and CPU; the host is reached by "
        "PCIe, 15.8 GB/s in one direction"
    )
    assert link_claim(V100, 15.75e9, "gpu-cpu") is None
    assert link_claim(GH200, GH200.links_bytes_per_s["nvlink-c2c"].value, "gpu-cpu") is None
    assert link_claim(V100, 42e9, "gpu-gpu").code == "link-unknown"


def test_conclusions():
    run = dict(device=V100, precision="fp32", flops=15.7e9, bytes=1.57e9)
    # 10 FLOP/byte is left of the ridge at 17.4: 9 TFLOP/s are attainable.
    assert codes(**run, time_s=2e-3, bound="memory") == []
    assert codes(**run, time_s=2e-3, bound="compute") == ["wrong-side"]
    assert codes(**run, time_s=2e-2, bound="memory") == ["far-from-the-roof"]
    assert codes(**run, time_s=2e-2) == []
    assert codes(**run, time_s=1e-3) == ["above-the-roof"]
    assert codes(**run, time_s=2e-3, gpu_busy_s=1e-3) == ["host-bound"]
    assert codes(**run, time_s=2e-3, time_scope="wall", counted="all-units") == ["scopes-mixed"]
    assert codes(**run, time_scope="wall", counted="all-units") == []
    assert codes(**run, time_s=2e-3, time_scope="wall", counted="all-units", gpu_busy_s=1.9e-3) == []


def test_stated_results():
    found = judge(StatedRun(device=V100, precision="fp32", flops=15.7e9, time_s=2e-3, stated={"flops_per_s": 7.85e11}))
    assert [finding.text for finding in found.findings] == [
        "performance: 7.85e+12 FLOP/s follows, 7.85e+11 was stated (0.1 times that)"
    ]
    with pytest.raises(BadInput, match="'speed' is no result that can be checked: there are ridge, "):
        judge(StatedRun(device=V100, precision="fp32", stated={"speed": 1.0}))
    near = judge(StatedRun(device=V100, precision="fp32", flops=17.45664e9, time_s=1, stated={"flops_per_s": 17.5e9}))
    assert near.findings[0].text == "performance: 1.74566e+10 FLOP/s follows, 1.75e+10 was stated (+0.25%)"


def test_a_time_is_predicted_where_none_was_measured():
    found = judge(StatedRun(device=V100, precision="fp32", flops=15.7e9, ppp=0.5, batch=8))
    assert found.time_s == pytest.approx(2e-3)
    assert found.throughput == pytest.approx(4000)
    assert found.findings == ()
    assert codes(device=V100, precision="fp32", flops=15.7e9, ppp=1.0) == ["ppp-too-good"]
    with pytest.raises(BadInput, match=r"as a fraction, 0\.62"):
        judge(StatedRun(device=V100, precision="fp32", flops=15.7e9, ppp=62))


def test_points_of_a_roof():
    assert roof_point(V100, "fp32", intensity=1, flops_per_s=900e9) is None
    assert roof_point(V100, "fp32", intensity=100, flops_per_s=15.7e12) is None
    assert roof_point(V100, "fp32", intensity=0, flops_per_s=0) is None
    assert roof_point(V100, "fp32", intensity=0, flops_per_s=1e9).code == "origin"
    assert roof_point(V100, "fp32", intensity=1, flops_per_s=9e12).code == "roof-off-by-ten"
    assert roof_point(V100, "fp32", intensity=1, flops_per_s=1e12).code == "off-the-roof"


def test_ratios_are_taken_apart():
    assert explain(2.01).text == "2.01 = 2 (a multiply-add is 2 FLOP)"
    assert explain(1.5).factors == {"a multiply-add is 2 FLOP": 0.5, "a training step is about 3 forwards": 3}
    assert explain(1.1).text == "1.1 is explained by no convention"
    assert explain(64 * 1.2, {"the batch": 64}).text == "76.8 = 64 (the batch) x 1.2, which is what wants a cause"
    with pytest.raises(BadInput, match="no factors"):
        explain(0)


def test_comparisons():
    runs = [
        judge(StatedRun(device=device, precision="fp32", flops=1e12, time_s=time))
        for device, time in ((V100, 2.0), (A100, 1.0))
    ]
    same = compare(*runs, preferred=A100.name)
    assert [finding.code for finding in same.findings] == ["faster"]
    assert same.times_as_fast == 2
    assert same.bytes_change_percent is None
    more = judge(StatedRun(device=V100, precision="fp32", flops=3e12, time_s=2.1))
    assert compare(runs[0], more, same_work=False).findings[0].text == (
        "3 times the FLOPs took 1.05 times the time: most of it is overhead that both have"
    )
    slower = judge(StatedRun(device=V100, precision="fp32", flops=3e12, time_s=6.0))
    assert compare(runs[0], slower, same_work=False).findings == ()


def test_memory_of_training_is_not_its_parameters():
    step = rooflight.estimate("resnet18", batch=4, step="train")
    one, two = memory_ratio(1e9, step), memory_ratio(1e9, step, replicas=2)
    assert one.per_parameters == pytest.approx(1e9 / (4 * 11_689_512))
    assert two.per_parameters == pytest.approx(one.per_parameters / 2)
    assert one.per_kept < one.per_parameters
    assert "activations kept for backward" in one.finding.text
    with pytest.raises(BadInput, match="step train"):
        memory_ratio(1e9, rooflight.estimate("resnet18"))
