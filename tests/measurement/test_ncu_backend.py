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
from torch import nn

import rooflight
from rooflight.errors import BadInput, CannotMeasure
from rooflight.hardware import counter_tables
from rooflight.ledger import Kernel, Measurement, Value
from rooflight.measurement import ncu
from rooflight.measurement.options import MeasureOptions
from rooflight.profiles import read
from tests.fixtures.import_logs import FOLDER
from tests.fixtures.notes import note_texts

LOG = FOLDER / "h200_mnist_ops.csv.gz"
"""A training step of mnist-cnn, every op in an NVTX range with its number: recorded by benchmarks/h200/test_data.py."""
CONV2 = 2 * 9 * 32 * 64 * 576 * 64
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
HFMA = "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"


@pytest.fixture(scope="module")
def ledger():
    """The ops of that step."""
    return rooflight.estimate("mnist-cnn", batch=64, step="train", optimizer="sgd")


@pytest.fixture(scope="module")
def numbered():
    """The ops of a model whose modules have numbers for names."""
    model = nn.Sequential(nn.Linear(28, 28), nn.ReLU(), nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten())
    return rooflight.estimate(model, torch.randn(2, 1, 28, 28), step="train", optimizer="sgd").ops


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
    assert (len(kernels), len(ledger.ops)) == (52, 56)
    for kernel in kernels:
        assert ledger.ops[ncu.op_of(kernel)].kind == "compute", kernel.name
    # And every op that computes has one.
    assert {ncu.op_of(kernel) for kernel in kernels} == {op.index for op in ledger.ops if op.kind == "compute"}


@pytest.mark.parametrize(("index", "part"), [
    (0, "implicit_convolve"), (1, "clamp"), (2, "fprop"), (3, "clamp"), (4, "max_pool_forward"), (5, "fused_dropout"),
    (8, "gemm"), (9, "clamp"), (10, "fused_dropout"), (12, "gemm"), (13, "softmax_warp_forward"),
    (15, "softmax_warp_forward"), (16, "nll_loss_forward"), (17, "FillFunctor"), (18, "nll_loss_backward"),
    (19, "softmax_warp_backward"), (21, "softmax_warp_backward"), (23, "gemm"), (25, "gemm"), (27, "reduce"),
    (32, "masked_scale"), (33, "threshold"), (35, "gemm"), (37, "gemm"), (39, "reduce"), (45, "masked_scale"),
    (46, "max_pool_backward"), (47, "threshold"), (48, "dgrad"), (48, "Conv2dWgrad"), (51, "threshold"), (52, "wgrad"),
    (55, "multi_tensor_apply"),
])  # fmt: skip
def test_kernels_do_what_their_op_is_for(ledger, kernels, index, part):
    ours = {
        "implicit_convolve": "convolution", "clamp": "relu", "max_pool_forward": "max_pool2d_with_indices", "gemm": "mm",
        "fprop": "convolution", "fused_dropout": "native_dropout", "masked_scale": "native_dropout_backward",
        "FillFunctor": "ones_like", "threshold": "threshold_backward", "multi_tensor_apply": "_foreach_add_",
        "softmax_warp_forward": "_log_softmax", "nll_loss_forward": "nll_loss_forward", "nll_loss_backward": "nll_loss_backward",
        "softmax_warp_backward": "_log_softmax_backward_data", "reduce": "sum", "max_pool_backward": "max_pool2d_with_indices_backward",
        "dgrad": "convolution_backward", "wgrad": "convolution_backward", "Conv2dWgrad": "convolution_backward",
    }  # fmt: skip
    assert ours[part] in ledger.ops[index].name
    assert any(part in kernel.name for kernel in kernels if ncu.op_of(kernel) == index)


def test_the_second_convolution_to_the_last_digit(counted):
    forward = row_of(counted, "aten::convolution", "conv2")
    assert forward["tensor_flops_tf32"].value == CONV2 == 1_358_954_496
    # Beside it, on CUDA cores: two layout kernels have an FMUL for each of 64 x 32 x 26 x 26 inputs and 64 x 32 x 3 x 3
    # weights; the convolution an FMUL and an FADD for each of its 64 x 64 x 24 x 24 results; the bias' kernel an FFMA.
    results = 64 * 64 * 24 * 24
    assert forward[FFMA].value == results
    assert forward["cuda_flops_fp32"].value == 64 * 32 * 26 * 26 + 64 * 32 * 3 * 3 + 2 * results + 2 * results
    assert forward["cuda_flops_fp32"].value == 1_384_448 + 18_432 + 4_718_592 + 4_718_592
    assert forward["tensor_flops_tf32"].origin == "ncu: sm__ops_path_tensor_src_tf32_dst_fp32"
    backward = row_of(counted, "aten::convolution_backward", "conv2")
    assert backward["tensor_flops_tf32"].value == 3_208_642_560 + 1_826_095_104  # dgrad + wgrad, tiles padded


def test_the_optimizer_to_the_last_digit(counted):
    # One FFMA for each of 1,199,882 parameters, four at a time. The last bias has 10, which are no fours: for it all
    # 512 threads of a block work on four numbers each.
    update = row_of(counted, "aten::_foreach_add_.List", "<optimizer>")
    assert update[FFMA].value == (320 + 18_496 + 1_179_776 + 1_290) - 10 + 4 * 512 == 1_201_920
    assert update["cuda_flops_fp32"].value == 2 * 1_201_920


def test_nothing_is_lost_and_nothing_counted_twice(counted, kernels):
    sums: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for row in of_ops(counted).values():
        sums.update({name: value.value for name, value in row.items()})
    for kernel in kernels:
        parts.update({name: value.value for name, value in kernel.quantities.items()})
    assert {"tensor_flops_tf32", "cuda_flops_fp32", "dram_bytes_read", FFMA} <= set(sums)
    assert all(sums[name] == parts[name] for name in sums)
    # Compilers load constants by HFMA2: of a step in fp32 that is no arithmetic, while the counter itself stays. What
    # nvprof called flop_count_sp is the CUDA cores' fp32 once more.
    assert set(parts) - set(sums) == {"cuda_flops_fp16", "flop_count_sp"}
    assert sums[HFMA] == parts[HFMA] > 0
    assert not any("in no op's range" in note for note in note_texts(counted.header.notes))
    assert any("52 kernels" in note for note in note_texts(counted.header.notes))


def test_times_and_rates_are_not_added(ledger):
    quantities = {
        "kernel_time_s": Value(1e-6, "ncu"), "gpu__time_duration.sum": Value(1000, "ncu"), "sm__cycles_active.avg": Value(5, "ncu"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": Value(50, "ncu"), "tensor_flops_tf32": Value(7, "ncu"),
    }  # fmt: skip
    kernel = Kernel(name="k", label="rooflight:3", quantities=quantities)
    row = of_ops(ncu.attributed(ledger, [kernel, kernel]))[3]
    assert {name: value.value for name, value in row.items()} == {"tensor_flops_tf32": 14}


def test_what_was_measured_before_stays(ledger, kernels):
    timed = Measurement(scope="op", ops=(2,), quantities={"kernel_time_s": Value(5e-5, "kineto")})
    untouched = Measurement(scope="op", ops=(6,), quantities={"growth_bytes": Value(0, "allocator")})  # a view
    step = Measurement(scope="step", quantities={"wall_time_s": Value(1.0, "clock")})
    before = msgspec.structs.replace(ledger, measurements=(step, untouched, timed))
    assert ledger.ops[6].kind == "view"
    found = ncu.attributed(before, kernels)
    assert found.measurements[0] == step
    rows = of_ops(found)
    assert list(rows) == sorted(rows)
    assert rows[6] == untouched.quantities
    assert rows[2]["kernel_time_s"].value == 5e-5 and rows[2]["tensor_flops_tf32"].value == CONV2


def test_kernels_outside_of_ranges_are_told(ledger, kernels):
    strangers = [Kernel(name="k", label="step"), Kernel(name="k", label="rooflight:4000"), Kernel(name="k")]
    found = ncu.attributed(ledger, [*kernels, *strangers])
    assert any(note.startswith("3 of ncu's kernels lie in no op's range") for note in note_texts(found.header.notes))
    assert of_ops(found).keys() == of_ops(ncu.attributed(ledger, kernels)).keys()


def test_the_timelines_kernels_get_their_counters(ledger, kernels):
    """Where both saw the same kernels of an op, in their order; a copy in between is no kernel of ncu's."""
    launched = [kernel for kernel in kernels if ncu.op_of(kernel) in (0, 2)]
    ours = [Kernel(name=kernel.name, ops=(ncu.op_of(kernel),), time_s=1e-6) for kernel in launched]
    ours.insert(1, Kernel(name="Memset", kind="set", ops=(0,), time_s=1e-6))
    ours.append(Kernel(name="another", ops=(1,), time_s=1e-6))
    ours.append(Kernel(name="one more", ops=(1,), time_s=1e-6))  # ncu saw one kernel in op 1
    ours.append(Kernel(name="fused", ops=(0, 1), time_s=1e-6))
    found = ncu.attributed(msgspec.structs.replace(ledger, kernels=tuple(ours)), kernels).kernels
    assert [kernel.name for kernel in found] == [kernel.name for kernel in ours]
    joined = [kernel for kernel in found if kernel.quantities]
    assert [kernel.name for kernel in joined] == [kernel.name for kernel in launched]
    assert [k.quantities["tensor_flops_tf32"].value for k in joined if k.ops == (2,)] == [0, 0, CONV2, 0]


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


@pytest.mark.parametrize("capability", counter_tables.CHIPS_BY_CAPABILITY)
def test_targets_and_logs_mean_the_same_chips(capability):
    """One table: a target writes 12.1 as 121."""
    chip = ncu.chip_of(f"cuda:{capability.replace('.', '')}")
    assert chip == counter_tables.CHIPS_BY_CAPABILITY[capability] and counter_tables.cuda_core_counters(chip)


def test_chips_by_target():
    assert ncu.chip_of("cuda") == "GH100" and ncu.chip_of("cuda:80") == "GA100"
    assert (ncu.chip_of("cuda:110"), ncu.chip_of("cuda:121")) == ("GB10B", "GB20B")
    with pytest.raises(CannotMeasure, match=r"compute capability 6\.1"):
        ncu.chip_of("cuda:61")


def test_a_chip_without_counters_is_refused_before_ncu_runs(pretend, ledger):
    asked = pretend("")
    xavier = msgspec.structs.replace(ledger, header=msgspec.structs.replace(ledger.header, target="cuda:72"))
    with pytest.raises(CannotMeasure, match=r"7\.2 \(Jetson Xavier"):
        ncu.check_can_count("cuda:72")
    with pytest.raises(CannotMeasure, match=r"7\.2 \(Jetson Xavier"):
        ncu.count(xavier, ["step"], MeasureOptions(counters="ncu"))
    assert not asked.exists()


# --- the op a user means ---


def test_ops_are_found_by_number_name_and_module(ledger):
    ops = ledger.ops
    assert ncu.find_op(ops, "3") is ops[3]
    assert ncu.find_op(ops, "conv2") is ops[2]
    assert ncu.find_op(ops, "conv2:").module == "conv2"
    assert ncu.find_op(ops, "conv2:backward").name == "aten::convolution_backward"
    assert ncu.find_op(ops, "<loss>:nll").name == "aten::nll_loss_forward"
    for op in ops:
        assert ncu.find_op(ops, ncu.op_name(op)) is op


def test_a_number_is_an_op_although_a_module_has_that_name_too(numbered):
    assert numbered[2].module == "0"  # a linear layer has views around its product
    assert ncu.find_op(numbered, "2") is numbered[2]
    assert ncu.find_op(numbered, "2:").module == "2"
    assert ncu.find_op(numbered, "2:backward").name == "aten::convolution_backward"
    for op in numbered:
        assert ncu.find_op(numbered, ncu.op_name(op)) is op


@pytest.mark.parametrize("text", ["56", "99", "conv7", "conv2:softmax", "2:softmax", "²", "-1", "rooflight:3"])
def test_an_op_that_is_not_there_is_one_line(ledger, text):
    with pytest.raises(BadInput) as caught:
        ncu.find_op(ledger.ops, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["99", "conv7", "2:softmax", "²", "", "-1", "rooflight:3"])
def test_nor_is_it_where_modules_have_numbers(numbered, text):
    with pytest.raises(BadInput) as caught:
        ncu.find_op(numbered, text)
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
    assert any("exit code 9" in note for note in note_texts(found.header.notes))


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
    with pytest.raises(CannotMeasure, match=r'ncu is not on PATH.*counters="cupti"'):
        ncu.count(ledger, ["step"], MeasureOptions(counters="ncu"))


def test_a_step_on_the_cpu_has_nothing_for_ncu(ledger):
    header = msgspec.structs.replace(ledger.header, target="cpu")
    with pytest.raises(BadInput, match="measured on the CPU"):
        ncu.count(msgspec.structs.replace(ledger, header=header), ["step"], MeasureOptions(counters="ncu"))
