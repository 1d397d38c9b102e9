"""Tables of times: what rows mean, by hand; every refusal with its line; and that what is written is read again."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.calibration.points_csv import read_table, works_of
from rooflight.errors import RooflightError
from rooflight.hardware.devices import find
from rooflight.ops.kernel_task import FAMILIES, Task
from rooflight.prediction.recorded_calibration import calibration_from

V100, H200 = find("v100"), find("h200")


def written(folder: Path, text: str, name: str = "run.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def tasks(path: Path, device=H200) -> list[tuple[Task, float]]:
    return [(work.task, work.seconds) for work in works_of(read_table(path), device, name=str(path))]


def test_products(tmp_path):
    path = written(
        tmp_path,
        "op,shape,m,n,k,batch,bias,dtype,time_us\n"
        "gemm,,512,4096,1024,,,fp16,12.5\n"
        "matmul,512x1024 1024x4096,,,,,,fp16,12.5\n"
        "bmm,8x128x64 8x64x256,,,,,,torch.float32,30\n"
        'linear,"[4, 128, 1024] [4096, 1024]",,,,,1,bfloat16,12.5\n',
    )
    assert tasks(path) == [
        (Task("gemm", "fp16", (1, 512, 4096, 1024, 0, 0, 0)), pytest.approx(12.5e-6)),
        (Task("gemm", "fp16", (1, 512, 4096, 1024, 0, 0, 0)), pytest.approx(12.5e-6)),
        (Task("gemm", "fp32", (8, 128, 256, 64, 0, 0, 0)), pytest.approx(30e-6)),
        # A linear layer of 4 x 128 rows; torch keeps its weight as n x k.
        (Task("gemm", "bf16", (1, 512, 4096, 1024, 0, 1, 1)), pytest.approx(12.5e-6)),
    ]


def test_convolutions(tmp_path):
    path = written(
        tmp_path,
        "op;shape;stride;padding;groups;layout;dtype;time_ms\n"
        "conv2d;16x64x56x56 128x64x3x3;2;1;;nhwc;tf32;0.4\n"
        "conv2d-wgrad;16x64x56x56 64x1x3x3;;1;64;;fp32;0.4\n",
    )
    assert tasks(path) == [
        (Task("conv-forward", "tf32", (16, 64, 56, 56, 128, 3, 3, 2, 1, 1, 1, 1)), pytest.approx(0.4e-3)),
        (Task("conv-wgrad", "fp32", (16, 64, 56, 56, 64, 3, 3, 1, 1, 1, 64, 0)), pytest.approx(0.4e-3)),
    ]


def test_sequences_and_volumes(tmp_path):
    """A sequence is an image of one row, a volume one of stacked slices; where the output's sides do not follow from
    one stride and padding for both, they stand at the end."""
    path = written(
        tmp_path,
        "op,shape,padding,layout,dtype,time_us\n"
        "conv1d,16x64x1000 128x64x3,1,,fp16,400\n"
        "conv1d-dgrad,16x64x1000 128x64x1,,,fp16,400\n"
        "conv3d,4x64x16x56x56 128x64x3x3x3,1,nhwc,fp16,1000\n"
        "conv3d-wgrad,4x64x16x56x56 128x64x1x1x1,,,fp16,1000\n",
    )
    assert [task for task, _ in tasks(path)] == [
        Task("conv-forward", "fp16", (16, 64, 1, 1000, 128, 1, 3, 1, 1, 1, 1, 0, 1, 1000)),
        Task("conv-dgrad", "fp16", (16, 64, 1, 1000, 128, 1, 1, 1, 0, 1, 1, 0)),
        # 16 slices of 56 rows; 3 x 3 taps over slices and rows.
        Task("conv3d-forward", "fp16", (4, 64, 896, 56, 128, 9, 3, 1, 1, 1, 1, 1, 896, 56)),
        Task("conv3d-wgrad", "fp16", (4, 64, 896, 56, 128, 1, 1, 1, 0, 1, 1, 0)),
    ]
    assert calibration_from(path, on="h200").points == 4


def test_two_inputs_of_an_elementwise_op(tmp_path):
    path = written(
        tmp_path,
        "op,shape,dtype,time_us\n"
        "add,4096x768,fp32,20\n"
        "add,4096x768 4096x768,fp32,20\n"
        'mul,"[4096, 768] [768]",fp32,20\n'
        "mul,4096x1 1x768,fp32,20\n"
        "div,4096x768 1,fp32,20\n",
    )
    # 3,145,728 elements of 4 bytes are 12,582,912 bytes: read once for each input, written once.
    both, written_once = Task("plain", "fp32", (3145728, 25165824, 12582912)), (3145728, 12582912)
    assert [task for task, _ in tasks(path)] == [
        both,
        both,
        Task("broadcast", "fp32", (written_once[0], 12582912 + 768 * 4, written_once[1])),
        Task("broadcast", "fp32", (written_once[0], (4096 + 768) * 4, written_once[1])),
        Task("plain", "fp32", (written_once[0], 12582912 + 4, written_once[1])),
    ]


def test_a_last_row_that_is_whole_needs_no_line_end(tmp_path):
    text = HEAD + GOOD + "relu,2048x1024,,fp32,17"
    assert tasks(written(tmp_path, text)) == tasks(written(tmp_path, text + "\n", "ended.csv"))


def test_rows_elements_and_counts(tmp_path):
    path = written(
        tmp_path,
        "# a comment\n\nop,shape,dtype,count,kernels,time_ns\n"
        "softmax,8x12x128x128,fp16,1,1,9000\n"
        "layer_norm,4096x768,fp32,1,1,9000\n"
        "add,4096x768,fp32,10,1,90000\n"
        "gelu,4096x768,bf16,1,2,9000\n",
    )
    # What is bound by memory is known by the width of its elements; an addition reads two tensors.
    assert tasks(path) == [
        (Task("softmax-forward", "bf16", (8 * 12 * 128, 128)), pytest.approx(9e-6)),
        (Task("layer-norm-forward", "fp32", (4096, 768)), pytest.approx(9e-6)),
        (Task("plain", "fp32", (3145728, 25165824, 12582912)), pytest.approx(9e-6)),
        (Task("math", "bf16", (3145728, 6291456, 6291456)), pytest.approx(9e-6)),
    ]
    assert works_of(read_table(path), H200, name="")[3].kernels == 2


@pytest.mark.parametrize(
    ("device", "dtype", "kernel"),
    [
        ("h200", "bf16", "cudnn"),
        ("a100", "bf16", "flash"),
        ("v100", "fp16", "efficient"),
        ("h200", "fp32", "efficient"),
    ],
)
def test_attention_runs_in_the_kernel_that_torch_takes_there(tmp_path, device, dtype, kernel):
    path = written(
        tmp_path, f"op,batch,heads,length,head_dim,causal,dtype,time_us\nattention,4,12,1024,64,yes,{dtype},90\n"
    )
    ((task, _),) = tasks(path, find(device))
    assert task == Task(f"attention-{kernel}-forward", dtype, (4, 12, 12, 1024, 1024, 64, 1, 0))


@pytest.mark.parametrize(
    "column", ["time_us", "time [us]", "time (us)", "gpu_time_us", "Time_us", "time us", "time µs"]
)
def test_units_of_a_header(tmp_path, column):
    assert tasks(written(tmp_path, f"op,shape,dtype,{column}\nrelu,1024x1024,fp32,7\n"))[0][1] == pytest.approx(7e-6)


HEAD = "op,shape,stride,dtype,time_us\n"
GOOD = "relu,1024x1024,,fp32,9\n"
REFUSED = {
    # text: what is said, and the line
    "": ("is empty", None),
    "   \n": ("is empty", None),
    HEAD: ("no row of times", 2),
    "op,shape,dtype,time\n" + GOOD: ("column time has no unit", 1),
    "op,shape,dtype,time_hours\nrelu,8x8,fp32,1\n": ("'hours', which is no unit", 1),
    "op,shape,dtype\nrelu,8x8,fp32\n": ("no column holds times", 1),
    "op,shape,dtype,time_us,time_ms\nrelu,8x8,fp32,1,1\n": ("2 columns hold times", 1),
    "op,shape,dtype,striide,time_us\nrelu,8x8,fp32,1,1\n": ("'striide' is not known: did you mean stride?", 1),
    "op,shape,time_us\nrelu,8x8,1\n": ("column dtype is missing", 1),
    "op,op,dtype,time_us\nrelu,relu,fp32,1\n": ("column op is there 2 times", 1),
    HEAD + GOOD + "sofmax,8x8,,fp32,9\n": ("column op: there is no op 'sofmax': did you mean softmax?", 3),
    HEAD + GOOD + ",8x8,,fp32,9\n": ("column op: empty", 3),
    HEAD + "relu,8x8,,fp33,9\n": ("column dtype: 'fp33' is none of", 2),
    HEAD + "relu,8x8,,fp32,fast\n": ("column time_us: 'fast' is no number", 2),
    "op;shape;dtype;time_us\nrelu;8x8;fp32;1,5\n": ("write decimals with a point", 2),
    HEAD + "relu,8x8,,fp32,0\n": ("column time_us: '0' is no time", 2),
    HEAD + "relu,8x8,,fp32,-3\n": ("'-3' is no time", 2),
    HEAD + "relu,8x8,,fp32,nan\n": ("'nan' is no time", 2),
    HEAD + "relu,8x8,,fp32,1e300\n": ("is its unit right?", 2),
    HEAD + "relu,8y8,,fp32,9\n": ("column shape: '8y8' is no list of shapes", 2),
    HEAD + "relu,8x0,,fp32,9\n": ("has a side that no tensor has", 2),
    HEAD + "relu,,,fp32,9\n": ("column elements: relu needs a number here", 2),
    HEAD + "relu,8x8 8x8,,fp32,9\n": ("relu has 2 shapes here and needs one", 2),
    HEAD + "relu,8x8,2,fp32,9\n": ("column stride: relu takes no such number", 2),
    HEAD + "conv2d,8x8x8x8 8x8x3x3,0.5,fp32,9\n": ("column stride: '0.5' is no whole number", 2),
    HEAD + "conv2d,8x8x8x8 8x8x3x3,0,fp32,9\n": ("no pixel of output", 2),
    HEAD + "conv2d,8x8x8x8 8x4x3x3,1,fp32,9\n": ("is no weight for 8 channels", 2),
    HEAD + "conv2d,8x8x8 8x8x3,1,fp32,9\n": ("an input N x C x H x W", 2),
    HEAD + "conv1d,,1,fp32,9\n": ("conv1d has 0 shapes here and needs two: input 16x64x1000", 2),
    HEAD + "conv3d,8x8x8x8 8x8x3x3,1,fp32,9\n": ("an input N x C x D x H x W", 2),
    HEAD + "add,8x8 8x4,,fp32,9\n": ("8x8 and 8x4 are not alike", 2),
    HEAD + "matmul,8x16 8x16,,fp32,9\n": ("8x16 and 8x16 cannot be multiplied", 2),
    HEAD + "gemm,,,fp32,9\n": ("column m: gemm needs a number here", 2),
    HEAD + "plain,8x8,,fp32,9\n": ("the family plain is given by its numbers: elements", 2),
    HEAD + GOOD + "relu,8x8,,fp32\n": ("4 cells where the header has 5", 3),
    HEAD + GOOD + "relu,8x8,,fp32": ("4 cells where the header has 5: the file is not whole", 3),
    HEAD + GOOD + "relu,8x8,,fp32,1e": ("column time_us: '1e' is no number", 3),
    HEAD + GOOD + 'relu,"8x8,,fp32,9\n': ("breaks off inside a quoted cell", 3),
    "op,shape,count,dtype,time_us\nrelu,8x8,0,fp32,9\n": ("column count: 0 of them", 2),
    "op,m,n,k,batch,dtype,time_us\ngemm,8,8,8,0,fp32,9\n": ("column batch: gemm needs at least 1", 2),
    "op,shape,m,dtype,time_us\ngemm,8x8 8x8,8,fp32,9\n": ("column m: gemm takes no such number beside its shapes", 2),
    "op,shape,layout,dtype,time_us\nconv2d,8x8x8x8 8x8x3x3,nwhc,fp32,9\n": ("column layout: 'nwhc'", 2),
    "op,shape,device,dtype,time_us\nrelu,8x8,v100,fp32,9\nrelu,8x8,a100,fp32,9\n": ("a100 here and v100 above", 3),
    # 8192^3 x 2 FLOPs at 15.7 TFLOP/s take 70 ms; 1 GB at 900 GB/s more than 1 ms.
    "op,m,n,k,dtype,time_ms\ngemm,8192,8192,8192,fp32,70\ngemm,8192,8192,8192,fp32,20\n": (
        "20.0 ms is faster than NVIDIA Tesla V100", 3),
    HEAD + "relu,16384x16384,,fp32,9000\nrelu,16384x16384,,fp32,500\n": ("GB/s of memory", 3),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text)[:60])
def test_bad_tables_are_refused_with_line_and_column(tmp_path, text):
    path = written(tmp_path, text)
    said, line = REFUSED[text]
    with pytest.raises(RooflightError) as refusal:
        calibration_from(path, on=None if "device" in text else "v100-sxm2-16")
    message = str(refusal.value)
    assert said in message and "\n" not in message and str(path) in message
    if line is not None:
        assert f"{path}, line {line}: " in message


def test_a_time_that_tf32_explains_says_so(tmp_path):
    path = written(tmp_path, "op,m,n,k,dtype,time_ms\ngemm,8192,8192,8192,fp32,4\n")
    with pytest.raises(RooflightError, match=r"line 2: 4.00 ms is faster than .* did it run in tf32\?"):
        calibration_from(path, on="h200")


@pytest.mark.parametrize(("unit", "said"), [("ns", "below"), ("s", "above")])
def test_a_wrong_unit_is_told_from_all_rows_together(tmp_path, unit, said):
    rows = "".join(f"gemm,{size},4096,4096,fp32,{size * 0.0024:.3f}\n" for size in (2048, 4096, 8192))
    right = written(tmp_path, "op,m,n,k,dtype,time_ms\n" + rows)
    assert calibration_from(right, on="v100").points == 3
    wrong = written(tmp_path, f"op,m,n,k,dtype,time_{unit}\n" + rows, "wrong.csv")
    with pytest.raises(RooflightError, match=f"all 3 times of .* {said} what .* is the unit"):
        calibration_from(wrong, on="v100")


@st.composite
def directly(draw: st.DrawFn) -> tuple[Task, int]:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    flags = ("a_transposed", "b_transposed", "bias", "causal", "channels_last", "contiguous", "innermost")
    numbers = tuple(draw(st.integers(0, 1) if name in flags else st.integers(1, 2**20)) for name in FAMILIES[family])
    matrix = family.startswith(("gemm", "conv", "attention"))
    precision = draw(st.sampled_from(["fp32", "bf16", "fp16", "tf32"] if matrix else ["fp32", "bf16"]))
    return Task(family, precision, numbers), draw(st.integers(1, 10**12))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(directly(), min_size=1, max_size=8))
def test_what_is_written_by_family_is_read_again(tmp_path, rows):
    columns = sorted({name for task, _ in rows for name in FAMILIES[task.family]})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["op", "dtype", *columns, "time_ns"])
    for task, nanoseconds in rows:
        numbers = dict(zip(FAMILIES[task.family], task.numbers, strict=True))
        writer.writerow([task.family, task.precision, *(numbers.get(name, "") for name in columns), nanoseconds])
    found = tasks(written(tmp_path, text.getvalue()))
    assert [task for task, _ in found] == [task for task, _ in rows]
    assert [round(seconds * 1e9) for _, seconds in found] == [nanoseconds for _, nanoseconds in rows]


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), noise=st.text(max_size=6))
def test_a_cut_or_damaged_table_is_one_line_or_whole_rows(tmp_path, cut, noise):
    text = HEAD + "".join(f"relu,{side}x1024,,fp32,{side}\n" for side in range(64, 80))
    path = tmp_path / "run.csv"
    path.write_bytes((text[:cut] + noise + text[cut + len(noise) :]).encode("utf-8", "replace")[: max(cut, 1)])
    refusal = ""
    try:
        found = tasks(path)
    except RooflightError as error:
        found, refusal = [], str(error)
    assert bool(found) != bool(refusal) and "\n" not in refusal
    assert found or re.search(r"line \d+|is empty|no text", refusal)
