"""Counters through ncu: the command, and a real log of an H200 whose kernels find the ops they belong to."""

from __future__ import annotations

import gzip
import shlex
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from import_logs import FOLDER
from torch import nn

import rooflight
from rooflight.counting import metrics
from rooflight.errors import BadInput, CannotMeasure
from rooflight.importing import read
from rooflight.ledger import Kernel, Measurement, Value
from rooflight.measurement.counters import ncu
from rooflight.measurement.options import MeasureOptions

LOG = FOLDER / "h200_mnist_raw.csv.gz"
"""A training step of the model below, batch 64, every op in an NVTX range with its number, backward included."""
CONV2 = 2 * 9 * 32 * 64 * 576 * 64
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


@pytest.fixture(scope="module")
def ledger():
    """The ops of that step. Ours flattens the scores before the loss, which the recorded one did not."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9216, 10)
    )  # fmt: skip
    found = rooflight.estimate(model, torch.randn(64, 1, 28, 28), step="train", optimizer="sgd")
    ops = [op for op in found.ops if not (op.module == "<loss>" and op.name == "aten::view")]
    assert len(found.ops) - len(ops) == 2
    ops = [msgspec.structs.replace(op, index=index) for index, op in enumerate(ops)]
    return msgspec.structs.replace(found, ops=tuple(ops))


@pytest.fixture(scope="module")
def kernels():
    return read(LOG).kernels


@pytest.fixture(scope="module")
def counted(ledger, kernels):
    return ncu.attributed(ledger, kernels)


def of_ops(ledger):
    return {row.ops[0]: row.quantities for row in ledger.measurements if row.scope == "op"}


def row_of(ledger, name, module):
    (op,) = (op for op in ledger.ops if op.name == name and op.module == module)
    return of_ops(ledger)[op.index]


# --- a real log ---


def test_every_kernel_lies_in_the_range_of_an_op_that_computes(ledger, kernels):
    assert len(kernels) == 36
    for kernel in kernels:
        assert ledger.ops[ncu.op_of(kernel)].kind == "compute", kernel.name


@pytest.mark.parametrize(("index", "part"), [
    (0, "implicit_convolve"), (1, "clamp"), (6, "max_pool_forward"), (9, "gemm"), (10, "softmax_warp_forward"),
    (12, "nll_loss_forward"), (14, "nll_loss_backward"), (16, "softmax_warp_backward"), (18, "gemm"), (22, "reduce"),
    (28, "max_pool_backward"), (31, "dgrad"), (36, "wgrad"),
])  # fmt: skip
def test_kernels_do_what_their_op_is_for(ledger, kernels, index, part):
    ours = {
        "implicit_convolve": "convolution", "clamp": "relu", "max_pool_forward": "max_pool2d_with_indices", "gemm": "mm",
        "softmax_warp_forward": "_log_softmax", "nll_loss_forward": "nll_loss_forward", "nll_loss_backward": "nll_loss_backward",
        "softmax_warp_backward": "_log_softmax_backward_data", "reduce": "sum", "max_pool_backward": "max_pool2d_with_indices_backward",
        "dgrad": "convolution_backward", "wgrad": "convolution_backward",
    }  # fmt: skip
    assert ours[part] in ledger.ops[index].name
    assert any(part in kernel.name for kernel in kernels if ncu.op_of(kernel) == index)


def test_the_second_convolution_to_the_last_digit(counted):
    forward = row_of(counted, "aten::convolution", "2")
    assert forward["tensor_flops_tf32"].value == CONV2 == 1_358_954_496
    # Bias, layout kernels and index arithmetic beside it, from the four kernels of the log: FFMA only in the last.
    assert forward[FFMA].value == 64 * 64 * 576
    assert forward["cuda_flops_fp32"].value == 1_384_448 + 18_432 + 4_718_592 + 4_718_592
    assert forward["tensor_flops_tf32"].origin == "ncu: sm__ops_path_tensor_src_tf32_dst_fp32"
    backward = row_of(counted, "aten::convolution_backward", "2")
    assert backward["tensor_flops_tf32"].value == 3_208_642_560 + 1_826_095_104  # dgrad + wgrad, tiles padded


def test_nothing_is_lost_and_nothing_counted_twice(counted, kernels):
    sums, parts = Counter(), Counter()
    for row in of_ops(counted).values():
        sums.update({name: value.value for name, value in row.items()})
    for kernel in kernels:
        parts.update({name: value.value for name, value in kernel.quantities.items()})
    assert {"tensor_flops_tf32", "cuda_flops_fp32", "dram_bytes_read", FFMA} <= set(sums)
    assert all(sums[name] == parts[name] for name in sums)
    assert not any("in no op's range" in note for note in counted.header.notes)
    assert any("36 kernels" in note for note in counted.header.notes)


def test_times_and_rates_are_not_added(ledger):
    quantities = {
        "gpu_time_s": Value(1e-6, "ncu"), "gpu__time_duration.sum": Value(1000, "ncu"), "sm__cycles_active.avg": Value(5, "ncu"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": Value(50, "ncu"), "tensor_flops_tf32": Value(7, "ncu"),
    }  # fmt: skip
    kernel = Kernel(name="k", label="rooflight:3", quantities=quantities)
    row = of_ops(ncu.attributed(ledger, [kernel, kernel]))[3]
    assert {name: value.value for name, value in row.items()} == {"tensor_flops_tf32": 14}


def test_what_was_measured_before_stays(ledger, kernels):
    timed = Measurement(scope="op", ops=(3,), quantities={"gpu_time_s": Value(5e-5, "kineto")})
    untouched = Measurement(scope="op", ops=(2,), quantities={"growth_bytes": Value(0, "allocator")})
    step = Measurement(scope="step", quantities={"wall_time_s": Value(1.0, "clock")})
    before = msgspec.structs.replace(ledger, measurements=(step, untouched, timed))
    found = ncu.attributed(before, kernels)
    assert found.measurements[0] == step
    rows = of_ops(found)
    assert list(rows) == sorted(rows)
    assert rows[2] == untouched.quantities
    assert rows[3]["gpu_time_s"].value == 5e-5 and rows[3]["tensor_flops_tf32"].value == CONV2


def test_kernels_outside_of_ranges_are_told(ledger, kernels):
    strangers = [Kernel(name="k", label="step"), Kernel(name="k", label="rooflight:4000"), Kernel(name="k")]
    found = ncu.attributed(ledger, [*kernels, *strangers])
    assert any(note.startswith("3 of ncu's kernels lie in no op's range") for note in found.header.notes)
    assert of_ops(found).keys() == of_ops(ncu.attributed(ledger, kernels)).keys()


def test_the_timelines_kernels_get_their_counters(ledger, kernels):
    """Where both saw the same kernels of an op, in their order; a copy in between is no kernel of ncu's."""
    launched = [kernel for kernel in kernels if ncu.op_of(kernel) in (0, 3)]
    ours = [Kernel(name=kernel.name, ops=(ncu.op_of(kernel),), time_s=1e-6) for kernel in launched]
    ours.insert(1, Kernel(name="Memset", kind="set", ops=(0,), time_s=1e-6))
    ours.append(Kernel(name="another", ops=(1,), time_s=1e-6))
    ours.append(Kernel(name="one more", ops=(1,), time_s=1e-6))  # ncu saw one kernel in op 1
    ours.append(Kernel(name="fused", ops=(0, 1), time_s=1e-6))
    found = ncu.attributed(msgspec.structs.replace(ledger, kernels=tuple(ours)), kernels).kernels
    assert [kernel.name for kernel in found] == [kernel.name for kernel in ours]
    joined = [kernel for kernel in found if kernel.quantities]
    assert [kernel.name for kernel in joined] == [kernel.name for kernel in launched]
    assert [k.quantities["tensor_flops_tf32"].value for k in joined if k.ops == (3,)] == [0, 0, CONV2, 0]


# --- what is asked for ---


def test_the_command_leaves_caches_and_clocks_alone():
    line = ncu.command_line(["python", "-m", "rooflight"], ["a.sum", "b.sum"])
    text = shlex.join(line)
    for part in ("--profile-from-start off", "--target-processes all", "--nvtx", "--replay-mode kernel", "--cache-control none",
                 "--clock-control none", "--csv", "--page raw", "--print-units base", "--metrics a.sum,b.sum"):  # fmt: skip
        assert part in text
    assert line[-3:] == ["python", "-m", "rooflight"]


@pytest.mark.parametrize(("arguments", "present", "absent"), [
    ({}, {"tf32"}, {"bf16", "fp16", "fp8", "fp64", "int8"}),
    ({"dtype": "bf16"}, {"bf16"}, {"fp16", "fp64"}),
    ({"autocast": "fp16"}, {"fp16", "tf32"}, {"bf16"}),
    ({"dtype": "fp64"}, {"fp64"}, {"tf32", "bf16"}),
])  # fmt: skip
def test_only_tensor_cores_that_can_be_reached_are_asked_for(arguments, present, absent):
    found = ncu.counters_for(rooflight.estimate("mnist-cnn", **arguments), MeasureOptions(levels=("dram", "l2")))
    precisions = {c.quantity.removeprefix("tensor_flops_") for c in found if c.quantity.startswith("tensor_flops_")}
    assert present <= precisions and not absent & precisions
    quantities = {counter.quantity for counter in found}
    assert {"dram_bytes_read", "dram_bytes_written", "l2_bytes", "cuda_flops_fp32"} <= quantities
    assert "l1_bytes" not in quantities


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_is_asked_for(ledger, dtype):
    op = ledger.ops[0]
    tensor = msgspec.structs.replace(op.outputs[0], dtype=dtype)
    changed = msgspec.structs.replace(ledger, ops=(msgspec.structs.replace(op, outputs=(tensor,)),))
    found = ncu.counters_for(changed, MeasureOptions())
    assert "tensor_flops_fp8" in {counter.quantity for counter in found}


@pytest.mark.parametrize("capability", sorted(ncu._CHIPS))
def test_every_chip_has_its_table(capability):
    chip = ncu.chip_of(f"cuda:{capability}")
    assert metrics.cuda_core_counters(chip)


def test_chips_by_target():
    assert ncu.chip_of("cuda") == "GH100" and ncu.chip_of("cuda:80") == "GA100"
    with pytest.raises(CannotMeasure, match=r"compute capability 6\.1"):
        ncu.chip_of("cuda:61")


# --- the op a user means ---


def test_ops_are_found_by_number_name_and_module(ledger):
    ops = ledger.ops
    assert ncu.find_op(ops, "3") is ops[3]
    assert ncu.find_op(ops, "2") is ops[2]  # a number, although a module has that name too
    assert ncu.find_op(ops, "2:").module == "2"
    assert ncu.find_op(ops, "2:backward").name == "aten::convolution_backward"
    assert ncu.find_op(ops, "<loss>:nll").name == "aten::nll_loss_forward"
    for op in ops:
        assert ncu.find_op(ops, ncu.op_name(op)) is op


@pytest.mark.parametrize("text", ["99", "conv7", "2:softmax", "²", "", "-1", "rooflight:3"])
def test_an_op_that_is_not_there_is_one_line(ledger, text):
    with pytest.raises(BadInput) as caught:
        ncu.find_op(ledger.ops, text)
    assert "\n" not in str(caught.value)


def test_the_command_that_opens_an_op_finds_it_again(ledger):
    line = shlex.split(ncu.open_op_command(["python", "-m", "rooflight", "measure", "m"], ledger.ops[3]))
    assert line[0] == "ncu" and line[line.index("--set") + 1] == "full"
    assert ncu.find_op(ledger.ops, line[line.index("--profile-op") + 1]) is ledger.ops[3]


# --- running it: a program of that name that answers as ncu did ---


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Put an `ncu` on PATH that writes what it was called with, prints `text` and ends with `code`."""

    def make(text: str, code: int = 0) -> Path:
        (tmp_path / "answer").write_text(text)
        program = tmp_path / "ncu"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'asked')!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
            f"sys.stdout.write(open({str(tmp_path / 'answer')!r}).read())\nsys.exit({code})\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return tmp_path / "asked"

    return make


def test_ncu_is_run_and_read(ledger, counted, pretend):
    asked = pretend(gzip.decompress(LOG.read_bytes()).decode())
    found = ncu.count(ledger, ["python", "-m", "step"], MeasureOptions(counters="ncu", metrics=("x.sum",)))
    assert found.measurements == counted.measurements
    words = asked.read_text().split("\n")
    assert words[-3:] == ["python", "-m", "step"]
    wanted = words[words.index("--metrics") + 1].split(",")
    assert "sm__ops_path_tensor_src_tf32_dst_fp32.sum" in wanted and wanted[-1] == "x.sum"


def test_an_ncu_that_ends_early_is_told(ledger, pretend):
    pretend(gzip.decompress(LOG.read_bytes()).decode(), code=9)
    found = ncu.count(ledger, ["step"], MeasureOptions(counters="ncu"))
    assert any("exit code 9" in note for note in found.header.notes)


@pytest.mark.parametrize("text", [
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n",
    "==WARNING== No kernels were profiled.\n", "", "Segmentation fault\n",
])  # fmt: skip
def test_an_ncu_that_counts_nothing_is_one_line(ledger, pretend, tmp_path, text):
    pretend(text, code=1)
    with pytest.raises(CannotMeasure, match=r"ncu counted nothing \(exit code 1\)") as caught:
        ncu.count(ledger, ["step"], MeasureOptions(counters="ncu"))
    message = str(caught.value)
    assert "\n" not in message and "/tmp" not in message.replace(str(tmp_path), "")
    if "ERR_NVGPUCTRPERM" in text:
        assert "permission" in message.lower() or "ERR_NVGPUCTRPERM" in message


def test_without_ncu_the_way_out_is_said(ledger, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotMeasure, match=r"ncu is not on PATH.*--counters cupti"):
        ncu.count(ledger, ["step"], MeasureOptions(counters="ncu"))


def test_a_step_on_the_cpu_has_nothing_for_ncu(ledger):
    header = msgspec.structs.replace(ledger.header, target="cpu")
    with pytest.raises(CannotMeasure, match="ran on the CPU"):
        ncu.count(msgspec.structs.replace(ledger, header=header), ["step"], MeasureOptions(counters="ncu"))
