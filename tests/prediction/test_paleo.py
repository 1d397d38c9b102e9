"""The spec tier: PALEO's arithmetic by hand, its constant, and what it cannot say."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

import rooflight
from rooflight.errors import BadInput
from rooflight.hardware import devices
from rooflight.hardware.roofs import Demand, demand_of, is_unknown, roofs_of
from rooflight.ledger import FORMAT_VERSION, Ledger, Measurement, Value, total
from rooflight.prediction import paleo
from rooflight.reporting.sections.predict_document import predict_document
from tests.fixtures.measured_ledgers import HEADER, cost, op
from tests.fixtures.notes import note_texts
from tests.fixtures.recordings import recording

V100, A100, H200 = (devices.find(name) for name in ("v100-sxm2-16", "a100-sxm-40", "h200"))


def book(*ops, seconds: float | None = None) -> Ledger:
    rows = ()
    if seconds is not None:
        rows = (Measurement(scope="step", quantities={"gpu_busy_s": Value(seconds, "kineto: kernels")}),)  # type: ignore[assignment]
    return Ledger(format_version=FORMAT_VERSION, header=HEADER, ops=ops, measurements=rows)


def matmul(precision: str = "fp32"):
    return op(0, "forward", "fc", "aten::mm", cost(19_500_000, 1_555_000, 3_110_000), precision=precision)


def test_one_op_by_hand():
    found = paleo.spec_time(book(matmul()), A100, ppp=0.5)
    # 19.5 MFLOP at 19.5 TFLOP/s, 1.555 MB and 3.11 MB at 1,555 GB/s: 1 + 1 + 2 microseconds, at half the speed.
    (row,) = found.ops
    assert (row.read_s, row.compute_s, row.write_s) == pytest.approx((1e-6, 1e-6, 2e-6))
    assert found.time_s == pytest.approx(8e-6)
    assert found.op_times_s == {0: pytest.approx(8e-6)}
    assert paleo.spec_time(book(matmul()), A100, ppp=0.5, form="flops").time_s == pytest.approx(2e-6)


def test_the_precision_it_runs_in_decides_the_roof():
    at_a100 = paleo.spec_time(book(matmul("tf32")), A100, ppp=1.0, form="flops").time_s
    assert at_a100 == pytest.approx(19_500_000 / 156e12)
    # A V100 has no TF32: the same op runs in fp32 on its CUDA cores, not on its fp16 tensor cores.
    at_v100 = paleo.spec_time(book(matmul("tf32")), V100, ppp=1.0, form="flops").time_s
    assert at_v100 == pytest.approx(19_500_000 / 15.7e12)
    with pytest.raises(BadInput, match=r"V100 .* has no units for bf16 matrix work: it has fp16, fp32, fp64"):
        paleo.spec_time(book(matmul("bf16")), V100)


def test_convolutions_run_as_tf32_and_matmuls_do_not():
    step = rooflight.estimate("mnist-cnn", batch=64)
    roofs = roofs_of(A100)
    used = {
        row.packet: roofs.matrix(row.precision).flops_per_s / 1e12 for row in step.ops if row.cost and row.cost.flops
    }
    assert used == {"aten::convolution": 156, "aten::addmm": 19.5}


def test_work_outside_matrices_has_the_cores():
    roofs = roofs_of(H200)
    assert roofs.other("bf16") == roofs.other("fp32")
    assert roofs.other("int64") == roofs.other("fp32")
    assert roofs.other("fp64").precision == "fp64"
    both = Demand(matrix_flops=989, other_flops=67_000, bytes_read=0, bytes_written=0, precision="bf16")
    peaks = roofs.matrix("bf16").flops_per_s, roofs.other("bf16").flops_per_s
    # Side by side: the longer of the two.
    assert both.compute_s(roofs) == max(989 / peaks[0], 67_000 / peaks[1])


@pytest.mark.parametrize("name", devices.names())
def test_roofs_are_the_devices_own(name):
    device = devices.find(name)
    roofs = roofs_of(device)
    for precision in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"):
        peak = device.peak(precision)
        if peak is None:
            with pytest.raises(BadInput, match=f"no units for {precision}"):
                roofs.matrix(precision)
        else:
            assert roofs.matrix(precision).flops_per_s == peak.value
            assert roofs.matrix(precision).source == peak.source
    assert roofs.slope().bytes_per_s == device.bandwidth_bytes_per_s.value
    assert roofs.other("fp32").flops_per_s == device.core_peak("fp32").value


def test_the_step_is_the_sum_of_its_ops():
    step = rooflight.estimate("resnet18", batch=8, step="train")
    found = paleo.spec_time(step, H200)
    assert sum(found.op_times_s.values()) == pytest.approx(found.time_s)
    bandwidth = H200.bandwidth_bytes_per_s.value
    assert sum(row.read_s for row in found.ops) == pytest.approx(total(step.ops).bytes_read / bandwidth)
    low, high = found.interval_s
    assert low < found.time_s < high
    assert high / low == pytest.approx(1 / 0.21)


def test_an_op_without_a_formula_takes_no_time():
    unknown = msgspec.structs.replace(matmul(), cost=None)
    found = paleo.spec_time(book(unknown), A100)
    assert found.time_s == 0
    assert demand_of(unknown) is None
    assert is_unknown(unknown)
    view = msgspec.structs.replace(matmul(), kind="view")
    assert demand_of(view) is None
    assert not is_unknown(view)


def test_ppp_is_what_a_measurement_says():
    measured = book(matmul(), seconds=16e-6)
    found = paleo.ppp_of_step(measured, A100)
    assert found.value == pytest.approx(0.25)
    assert paleo.spec_time(measured, A100, ppp=found).time_s == pytest.approx(16e-6)
    assert paleo.ppp_of_step(measured, A100, form="flops").value == pytest.approx(1 / 16)
    assert "computed: toy, batch 8, gpu-busy 1.6e-05 s" in found.source
    with pytest.raises(BadInput, match="no wall time was measured of toy"):
        paleo.ppp_of_step(measured, A100, scope="wall")
    with pytest.raises(BadInput, match="less than the 4e-06 s it needs at the peak"):
        paleo.ppp_of_step(book(matmul(), seconds=1e-6), A100)
    with pytest.raises(BadInput, match="no op of toy has a formula"):
        paleo.ppp_of_step(book(msgspec.structs.replace(matmul(), cost=None), seconds=1e-6), A100)


def test_ppp_of_a_recording():
    recorded = recording("h200/vgg19-infer-fp32")
    plain = paleo.ppp_of_step(recorded, H200, form="flops").value
    whole = paleo.ppp_of_step(recorded, H200).value
    by_wall = paleo.ppp_of_step(recorded, H200, scope="wall").value
    assert 0.2 < plain < whole < 1
    assert by_wall < whole


def test_the_default_says_what_it_is():
    tensor, cores = paleo.default_ppp(H200), paleo.default_ppp(devices.find("k80"))
    assert (tensor.value, tensor.low, tensor.high) == (0.62, 0.21, 1.0)
    assert cores.value == 0.62
    assert "PALEO's for cuDNN in fp32 (TITAN X, 2016)" in cores.source
    assert "tensor cores" in tensor.source
    assert "tensor cores" not in cores.source
    text = paleo.spec_time(book(matmul()), H200).text
    assert text.startswith("PALEO: (read + compute + write) / PPP 0.62 (default: PALEO's for cuDNN")
    assert (
        paleo.spec_time(book(matmul()), H200, ppp=0.5, form="flops").text == "PALEO: (FLOPs / peak) / PPP 0.5 (given)"
    )


@pytest.mark.parametrize(
    ("ppp", "message"),
    [
        (62, "as a fraction, 0.62?"),
        (1e6, "measured FLOP/s over the peak's"),
        (0, "for ever"),
        (float("nan"), "for ever"),
    ],
)
def test_bad_ppp(ppp, message):
    with pytest.raises(BadInput, match="PPP") as found:
        paleo.spec_time(book(matmul()), A100, ppp=ppp)
    assert message in str(found.value)


def test_the_plain_form():
    assert paleo.flops_time_s(30e9, 10e12, 0.5) == pytest.approx(6e-3)
    assert paleo.throughput(16, 0.5) == 32
    assert paleo.ppp_of_flops(30e9, 6e-3, 10e12) == pytest.approx(0.5)
    with pytest.raises(BadInput, match="another unit did the work"):
        paleo.ppp_of_flops(30e9, 1e-3, 10e12)
    with pytest.raises(BadInput, match="above 0"):
        paleo.ppp_of_flops(30e9, 0, 10e12)
    with pytest.raises(BadInput, match="nor the peak 0"):
        paleo.flops_time_s(30e9, 0)
    with pytest.raises(BadInput, match="no throughput"):
        paleo.throughput(1, 0)


def test_the_best_that_one_ppp_can_do():
    at_peak, times = [1.0, 1.0, 1.0, 2.0], [2.0, 2.0, 4.0, 4.0]

    def error(ppp: float) -> float:
        return sum(abs(a / ppp / t - 1) for a, t in zip(at_peak, times, strict=True))

    best = paleo.best_ppp(at_peak, times)
    assert best == 0.5
    assert all(error(best) <= error(k / 100) + 1e-12 for k in range(1, 101))
    with pytest.raises(BadInput, match="at least one step"):
        paleo.best_ppp([], [])


def test_no_torch():
    program = (
        "import sys, rooflight.prediction.paleo, rooflight.prediction.roofline, rooflight.analysis.sanity.ratios; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_flops_over_peak_of_vgg16_on_a_k80():
    """Document 004, question 4: the plain ratio, in single and in double precision, of one die."""
    found = rooflight.predict("vgg16", on="k80", batch=1)
    single, double = found[0].flops_over_peak
    # 15,470,264,320 multiply-adds; 4.368 TFLOP/s fp32 and 1.456 TFLOP/s fp64.
    assert (single.precision, double.precision) == ("fp32", "fp64")
    assert single.time_s == pytest.approx(2 * 15_470_264_320 / 4.368e12)
    assert double.time_s == pytest.approx(2 * 15_470_264_320 / 1.456e12) == pytest.approx(21.25e-3, rel=1e-4)
    assert single.throughput == pytest.approx(141.2, rel=1e-3)
    assert "FLOPs over peak: 7.08 ms, 141 samples/s (4.368 TFLOP/s fp32); in double precision 21.3 ms" in str(
        note_texts(predict_document(found).notes)
    )


def test_flops_over_peak_by_precision():
    mixed = rooflight.predict("mnist-cnn", on="a100-sxm-40", batch=2)[0].flops_over_peak
    # conv1 and conv2 in TF32 (156 TFLOP/s), fc1 and fc2 in fp32 (19.5 TFLOP/s).
    convolutions = 2 * 2 * (32 * 26 * 26 * 9 + 64 * 24 * 24 * 32 * 9)
    linears = 2 * 2 * (9216 * 128 + 128 * 10)
    assert mixed[0].time_s == pytest.approx(convolutions / 156e12 + linears / 19.5e12)
    assert mixed[0].precision == "fp32 + tf32" and mixed[0].peak_flops_per_s is None
    assert [
        time.precision for time in rooflight.predict("mnist-cnn", on="a100-sxm-40", dtype="bf16")[0].flops_over_peak
    ] == ["bf16"]
    several = rooflight.predict("mnist-cnn", on="a100-sxm-40", batch=[1, 2, 4, 8])
    assert not [note for note in note_texts(predict_document(several).notes) if "over peak" in note]
