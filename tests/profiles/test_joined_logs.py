"""Two logs of one program as one: counters of Nsight Compute, times of Nsight Systems or of a table."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from rooflight.errors import BadFile, BadInput
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.notes import note_texts
from tests.fixtures.nsys_logs import recorded, sum_csv, trace_csv
from tests.fixtures.paths import DATA

RESNET, MNIST = (DATA / "ncu" / name for name in ("resnet50_b16_tf32.csv.gz", "h200_mnist_ops.csv.gz"))
_HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
_METRICS = (
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
_UNITS = ("inst", "inst", "inst", "", "byte", "byte")
ADD = "void at::elementwise_kernel<4, at::AddFunctor<float>>(int, T2)"
ADD_OF_NSYS = "void at::native::elementwise_kernel<(int)4, at::native::AddFunctor<float>>(int, T2)"
MUL = "void at::elementwise_kernel<4, at::MulFunctor<float>>(int, T2)"
GEMM = "volta_sgemm_128x64_nn"


def ncu(
    folder: Path, launches: Sequence[tuple[str, int]], metrics: Sequence[str] = _METRICS, name: str = "n.csv"
) -> Path:
    """A raw page: every launch has as many of each instruction as told, and as many bytes each way."""
    rows = [
        ",".join((_HEADER, *(f'"{metric}"' for metric in metrics))),
        ",".join(['""'] * 11 + [f'"{_UNITS[_METRICS.index(metric)]}"' for metric in metrics]),
    ]
    for place, (kernel, count) in enumerate(launches):
        cells = [place, 1, "python", "h", kernel, 1, 7, "(256, 1, 1)", f"({count}, 1, 1)", 0, "7.0"]
        rows.append(",".join(f'"{cell}"' for cell in (*cells, *[count] * len(metrics))))
    path = folder / name
    path.write_text("\n".join(rows) + "\n")
    return path


def nsys(folder: Path, launches: Sequence[tuple[str, int, int]], device: str = "Tesla V100-SXM2-32GB") -> Path:
    """A GPU trace of launches: name, size of the grid, ns."""
    header = trace_csv([]).strip()
    rows, start = [header], 1000
    for place, (kernel, grid, time) in enumerate(launches):
        sizes = f"{grid},1,1,256,1,1" if grid else ",,,,,"
        rows.append(f'{start},{time},{place},{sizes},32,0.000,0.000,,,,,{device} (0),1,,7,"{kernel}"')
        start += time + 500
    path = folder / "s.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def times_us(ledger: Ledger) -> list[float | None]:
    return [None if kernel.time_s is None else round(kernel.time_s * 1e6, 4) for kernel in ledger.kernels]


def notes(ledger: Ledger) -> str:
    return "\n".join(note_texts(ledger.header.notes))


def test_in_order(tmp_path: Path) -> None:
    """Two launches of one kernel and one size keep their own times, and copies are said to be left out."""
    counted = ncu(tmp_path, [(ADD, 100), (GEMM, 8), (ADD, 100)])
    copy = ("[CUDA memcpy Host-to-Device]", 0, 700)
    ledger = read(counted, nsys(tmp_path, [copy, (ADD_OF_NSYS, 100, 2000), (GEMM, 8, 5000), (ADD_OF_NSYS, 100, 3000)]))
    assert times_us(ledger) == [2.0, 5.0, 3.0]
    assert "launch by launch: 3 kernels in the same order" in notes(ledger)
    assert "1 copies and fills of s.csv (700 ns) are left out" in notes(ledger)
    gemm = ledger.kernels[1]
    # 8 add + 8 multiply + 2 x 8 multiply-add on the CUDA cores, 8 bytes each way.
    assert gemm.quantities["cuda_flops_fp32"].value == 32
    assert gemm.quantities["dram_bytes_read"].value == 8
    assert gemm.quantities["dram_bytes_read"].origin == "ncu (n.csv): dram__bytes_read"
    totals = ledger.measurements[0].quantities
    assert totals["kernel_time_s"].value == pytest.approx(10e-6)
    assert totals["kernel_time_s"].origin == "nsys Duration in s.csv, sum over 3 launches"
    assert ledger.header.device == "Tesla V100-SXM2-32GB"  # only nsys tells it


def test_again_and_again(tmp_path: Path) -> None:
    """nsys saw three steps, ncu one: each kernel has the median of its three times."""
    steps = [
        (kernel, size, time * factor)
        for factor in (3, 1, 2)
        for kernel, size, time in ((ADD, 9, 1000), (GEMM, 8, 4000))
    ]
    ledger = read(ncu(tmp_path, [(ADD, 9), (GEMM, 8)]), nsys(tmp_path, [(MUL, 9, 50), *steps, (MUL, 9, 50)]))
    assert times_us(ledger) == [2.0, 8.0]
    assert "there 3 times in the same order" in notes(ledger)
    # 2 x 50 ns of 100 + 6 x 5,000 ns.
    assert "2 of 8 kernels of s.csv (0.3% of its kernel time) were not counted in n.csv and are left out" in notes(
        ledger
    )


def test_by_name(tmp_path: Path) -> None:
    """Another order: by name, grid and block, the mean of those alike; a sum is never timed by a product."""
    counted = ncu(tmp_path, [(ADD, 100), (GEMM, 8), (ADD, 7), (MUL, 100)])
    ledger = read(
        counted,
        nsys(tmp_path, [(GEMM, 8, 5000), (ADD_OF_NSYS, 7, 1000), (ADD, 100, 2000), (ADD, 100, 4000), ("x", 1, 8000)]),
    )
    assert times_us(ledger) == [3.0, 5.0, 1.0, None]
    said = notes(ledger)
    assert note_texts(ledger.header.notes)[0].startswith(
        "1 of 4 kernels of n.csv (25.0%) are not in s.csv"
    )  # before all others
    assert "by name or name without namespaces, grid and block" in said
    assert "1 of 4 kernels of n.csv (25.0%) are not in s.csv and have no time: elementwise_kernel<4, MulFunctor" in said
    assert (
        "1 of 5 kernels of s.csv (40.0% of its kernel time) were not counted in n.csv and are left out: x (1)" in said
    )
    # The three that have one: 4 x (100 + 8 + 7) FLOPs of the CUDA cores and 115 of the tensor cores, 2 x 115 bytes.
    assert "the 3 kernels with a time: 575 FLOPs, 230 B of DRAM traffic, 9.00 µs" in said
    assert "kernel_time_s" not in ledger.measurements[0].quantities  # of all kernels nobody knows it


def test_bare_names_leave_template_arguments_open(tmp_path: Path) -> None:
    """`cuda_gpu_trace:base` has no template arguments: all elementwise kernels of one size are alike."""
    counted = ncu(tmp_path, [(ADD, 100), (GEMM, 8), (MUL, 100)])
    bare = [("elementwise_kernel", 100, 1000), ("elementwise_kernel", 100, 3000), (GEMM, 8, 5000)]
    assert times_us(read(counted, nsys(tmp_path, bare))) == [2.0, 5.0, 2.0]


def test_a_mangled_name_is_read(tmp_path: Path) -> None:
    counted = ncu(tmp_path, [("void at::reduce_kernel<512, 1>(T3)", 10), (GEMM, 8)])
    mangled = "_ZN2at6native13reduce_kernelILi512ELi1EEEvT_"
    assert times_us(read(counted, nsys(tmp_path, [(GEMM, 8, 1000), (mangled, 10, 2000)]))) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("kernel,calls,time_us\nelementwise_kernel,2,10\nvolta_sgemm_128x64_nn,1,7\n", [5.0, 7.0]),
        ("Name,Avg (ns),Instances\nelementwise_kernel,5000,2\nvolta_sgemm_128x64_nn,7000,4\n", [5.0, 7.0]),
        ("kernel,time [ms]\nvolta_sgemm_128x64_nn,0.007\nelementwise_kernel,0.005\n", [5.0, 7.0]),
    ],
)
def test_a_table_of_times(table: str, expected: list[float], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table)
    ledger = read(ncu(tmp_path, [(ADD, 100), (GEMM, 8)]), tmp_path / "t.csv")
    assert times_us(ledger) == expected
    assert "times are of t.csv" in notes(ledger)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("kernel,calls,time_us\ngemm,none,10\n", "line 2: 'none' is no number of calls"),
        ("kernel,calls,time_us\ngemm,2.5,10\n", "line 2: '2.5' is no number of calls"),
        ("kernel,calls,time_us\ngemm,2.500,10\n", "line 2: '2.500' is no number of calls"),
        ("kernel,calls,time_us\ngemm,2,soon\n", "line 2: time_us is 'soon'"),
        ("kernel,calls,time_us\ngemm,2\n", "line 2: 2 cells where the header has 3"),
        ("kernel,calls,time_us\ngemm,2,10\nkernel,calls,time_us\ngemm,2,10\n", "line 3: a second header"),
        ("kernel,time_us,calls\na,10,2\n\nb,2.5,1\n", "line 4: an empty line above"),
        ("kernel,calls,time_us\n", "line 1: the table of kernels has a header and no rows"),
        ("kernel,calls,time\ngemm,2,10\n", "is no log that rooflight knows"),  # of no unit
    ],
)
def test_broken_tables(table: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(BadFile) as caught:
        read(tmp_path / "t.csv")
    assert said in str(caught.value)


def test_two_logs_of_counters(tmp_path: Path) -> None:
    """Metrics recorded in two runs of ncu stand beside each other, launch by launch."""
    launches = [(ADD, 100), (GEMM, 8)]
    first = ncu(tmp_path, launches, _METRICS[:3], "flops.csv")
    second = ncu(tmp_path, launches, _METRICS[4:], "bytes.csv")
    kernel = read(first, second).kernels[1]
    assert (kernel.quantities["cuda_flops_fp32"].value, kernel.quantities["dram_bytes_written"].value) == (32, 8)
    other = ncu(tmp_path, launches[:1], _METRICS[4:], "other.csv")
    with pytest.raises(BadFile, match=r"flops.csv \(2 kernels\) and other.csv \(1\) have not the same kernels"):
        read(first, other)


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    counted = ncu(tmp_path, [(ADD, 100), (GEMM, 8)])
    with pytest.raises(BadFile, match=r"only 0 of 2 kernels of n.csv are in s.csv.*n.csv begins with elementwise"):
        read(counted, nsys(tmp_path, [("somebody_elses", 1, 100)]))
    with pytest.raises(BadFile, match=r"have the same name and another grid.*same model, batch and precision"):
        read(counted, nsys(tmp_path, [(ADD, 200, 100), (GEMM, 16, 100)]))
    third = ncu(tmp_path, [(ADD, 100), (GEMM, 8), (MUL, 3)]).rename(tmp_path / "third.csv")
    with pytest.raises(BadFile, match=r"only 1 of 3 kernels of third.csv are in s.csv"):
        read(third, nsys(tmp_path, [(ADD, 100, 100), ("somebody_elses", 1, 100)]))
    counted, times = ncu(tmp_path, [(ADD, 100), (GEMM, 8)]), nsys(tmp_path, [(ADD, 100, 100), (GEMM, 8, 100)])
    with pytest.raises(BadInput, match="have times and no counters"):
        read(times, times)
    with pytest.raises(BadInput, match="both have times of kernels"):
        read(counted, times, times)
    with pytest.raises(BadFile, match=r"is of a NVIDIA H200, s.csv of a Tesla V100"):
        read(RESNET, times)


def test_a_device_that_no_log_names(tmp_path: Path) -> None:
    counted = ncu(tmp_path, [(GEMM, 8)])
    assert read(counted).header.device is None
    ledger = read(counted, device="v100-sxm2-32gb")
    assert ledger.header.device == "Tesla V100-SXM2-32GB"
    assert "was said with --device" in notes(ledger)
    with pytest.raises(BadInput, match="the log is of a NVIDIA H200, not of"):
        read(RESNET, device="v100-sxm2-32gb")
    with pytest.raises(BadInput, match="only a device that rooflight knows by name"):
        read(counted, device="memory=24GB,bandwidth=864GB/s,fp32=91.6T")


def test_real_logs_of_one_gpu(tmp_path: Path) -> None:
    """ResNet-50 by ncu, and the same step timed on the same kind of GPU with the classifier in full precision: its one
    kernel finds no partner, all others do."""
    ledger = read(RESNET, DATA / "nsys" / "resnet50_b16_cuda_gpu_trace.csv.gz")
    assert sum(kernel.time_s is not None for kernel in ledger.kernels) == 237
    assert "2 of 239 kernels of resnet50_b16_tf32.csv.gz (0.8%) are not in resnet50_b16_cuda_gpu_trace.csv.gz" in notes(
        ledger
    )
    by_sum = read(RESNET, DATA / "nsys" / "resnet50_b16_cuda_gpu_kern_sum.csv.gz")
    sums = [sum(kernel.time_s or 0.0 for kernel in log.kernels) for log in (ledger, by_sum)]
    timed = sum(kernel.time_s or 0.0 for kernel in recorded("resnet50_b16"))
    classifier = next(kernel.time_s or 0.0 for kernel in recorded("resnet50_b16") if "simt_sgemm_64x64" in kernel.name)
    assert sums == pytest.approx([timed - classifier] * 2)  # as many launches of each on both sides: nothing is lost


def test_the_logs_are_those_of_the_recordings() -> None:
    for name in ("resnet50_b16", "mnist_b64_train"):
        for report, text in (("trace", trace_csv(recorded(name))), ("kern_sum", sum_csv(recorded(name)))):
            stored = gzip.decompress((DATA / "nsys" / f"{name}_cuda_gpu_{report}.csv.gz").read_bytes()).decode()
            assert stored == text


def test_what_no_kernel_has_is_not_told_as_nothing(tmp_path: Path) -> None:
    """Multiply-adds alone are no FLOP count: of one kernel with a time there are bytes, and no rate."""
    few = ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
    table = tmp_path / "t.csv"
    table.write_text("kernel,calls,time_us\ngemm,1,10\n")
    said = note_texts(read(ncu(tmp_path, [("gemm", 1000), ("relu", 1000)], few), table).header.notes)
    assert "the 1 kernel with a time: 2,000 B of DRAM traffic, 10.0 µs" in said
    assert any(note.startswith("t.csv: the log is a summary: a row is all launches") for note in said)
