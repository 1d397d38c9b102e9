"""Nsight Compute's CSV: real logs of an H200, the same numbers in other pages and locales, and broken files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.errors import BadFile
from rooflight.ledger import Kernel, Ledger
from rooflight.profiles import read
from rooflight.profiles.text_log import ranges
from tests.fixtures.import_logs import STYLES, details_page, in_style, printed, real, table
from tests.fixtures.notes import note_texts

TF32, FP32 = "mnist_conv2_64_tf32", "mnist_conv2_64_fp32"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
# conv2 of the MNIST network, batch 64: 2 * 3*3 * 32 * 64 channels * 24*24 places * 64 samples
CONV2_FLOPS = 2 * 9 * 32 * 64 * 24 * 24 * 64


def read_text(folder: Path, text: str, name: str = "log.csv") -> Ledger:
    path = folder / name
    path.write_text(text)
    return read(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadFile) as caught:
        read_text(folder, text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def read_or_refused(folder: Path, text: str) -> Ledger | None:
    """Anything but a ledger or one clear line is a bug."""
    try:
        return read_text(folder, text)
    except BadFile:
        return None


def value(kernel: Kernel, name: str) -> int | float:
    return kernel.quantities[name].value


def total(ledger: Ledger, name: str) -> int | float:
    (step,) = ledger.measurements
    return step.quantities[name].value


@pytest.fixture(scope="module")
def tf32(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return read_text(tmp_path_factory.mktemp("tf32"), real(TF32), f"{TF32}.csv")


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return read_text(tmp_path_factory.mktemp("fp32"), real(FP32), f"{FP32}.csv")


def test_tensor_cores_did_exactly_the_convolution(tf32: Ledger) -> None:
    assert CONV2_FLOPS == 1_358_954_496
    conv = next(kernel for kernel in tf32.kernels if "implicit_gemm" in kernel.name)
    assert value(conv, "tensor_flops_tf32") == CONV2_FLOPS
    assert value(conv, FFMA) == 0
    assert conv.grid == (1, 288, 1) and conv.block == (128, 1, 1) and conv.stream == 7
    assert conv.time_s == pytest.approx(22.304e-6)
    assert conv.label == "conv2"
    assert conv.tile == (128, 64, 32)


def test_without_tf32_the_cuda_cores_did(fp32: Ledger) -> None:
    conv = next(kernel for kernel in fp32.kernels if "xmma" in kernel.name)
    assert value(conv, FFMA) == 679_477_248 == CONV2_FLOPS // 2
    # The bias kernel: one multiply-add, one add and one multiply for each of 64*64*24*24 outputs.
    assert total(fp32, FFMA) == 679_477_248 + 64 * 64 * 24 * 24
    assert total(fp32, "cuda_flops_fp32") == 2 * 681_836_544 + 2 * 2_359_296


def test_header_tells_what_the_log_tells(tf32: Ledger) -> None:
    header = tf32.header
    assert (header.model, header.device, header.target) == (TF32, "NVIDIA H200", "cuda:90")
    assert header.traced_on == "import"
    assert (header.step, header.dtype, header.math, header.torch, header.batch) == (None, None, None, None, None)
    assert tf32.ops == ()
    assert [row.scope for row in tf32.measurements] == ["step"]


def test_totals_are_the_sums_of_the_kernels(tf32: Ledger) -> None:
    (step,) = tf32.measurements
    assert step.ops == ()
    for name in (
        "tensor_flops_tf32",
        "cuda_flops_fp32",
        "dram_bytes_read",
        "dram_bytes_written",
        "flop_count_sp",
        FFMA,
    ):
        assert total(tf32, name) == sum(value(kernel, name) for kernel in tf32.kernels)
    assert total(tf32, "kernel_time_s") == pytest.approx(41.024e-6)
    assert total(tf32, "kernels") == 4
    assert "bf16" not in step.quantities  # not counted is unknown, not zero


def test_flop_count_sp_sees_little_of_a_tf32_run(tf32: Ledger) -> None:
    # FADD and FMUL 2,359,296 each in the convolution, FMUL 1,384,448 + 18,432 in the layout kernels, and the bias
    # kernel's FFMA 2,359,296 twice: 10,840,064, less than a hundredth of what was executed.
    assert total(tf32, "flop_count_sp") == 2 * 2_359_296 + 1_384_448 + 18_432 + 2 * 2_359_296
    assert total(tf32, "flop_count_sp") / CONV2_FLOPS == pytest.approx(0.008, abs=0.0005)


def test_a_small_write_is_a_count_not_unknown(tf32: Ledger, fp32: Ledger) -> None:
    assert total(tf32, "dram_bytes_written") == 256
    assert total(fp32, "dram_bytes_written") == 0


def test_what_was_not_counted_is_said(tf32: Ledger) -> None:
    assert any("bf16_dst_fp32, fp16, fp8" in note for note in note_texts(tf32.header.notes))
    assert any("CUDA cores' work in fp16, fp64 was not counted" in note for note in note_texts(tf32.header.notes))
    assert any("caches" in note for note in note_texts(tf32.header.notes))


def test_averages_over_the_chip_are_left_out(tf32: Ledger) -> None:
    names = tf32.kernels[0].quantities
    assert "dram__bytes_read.sum" in names
    assert any(note.startswith("left out: ") for note in note_texts(tf32.header.notes))
    assert not [
        name for name in names if name.endswith((".avg", ".min", ".max")) or name.startswith(("device__", "launch__"))
    ]


def test_resnet50(tmp_path: Path) -> None:
    path = tmp_path / "resnet50.csv.gz"
    path.write_bytes(gzip.compress(real("resnet50_b16_tf32").encode()))
    ledger = read(path)
    assert ledger.header.model == "resnet50"
    assert len(ledger.kernels) == 239
    conv1 = ledger.kernels[2]
    # 7x7 kernels of 3 channels, K = 147, run with 160: 2 * 160 * 64 channels * 112*112 places * 16 samples
    assert value(conv1, "tensor_flops_tf32") == 2 * 160 * 64 * 112 * 112 * 16 == 4_110_417_920


@pytest.mark.parametrize("name", STYLES)
def test_every_locale_reads_the_same(name: str, tmp_path: Path, tf32: Ledger) -> None:
    ledger = read_text(tmp_path, in_style(real(TF32), STYLES[name]))
    assert ledger.kernels == tf32.kernels


@pytest.mark.parametrize("name", [None, *STYLES])
def test_the_details_page_reads_the_same(name: str | None, tmp_path: Path, tf32: Ledger) -> None:
    page = details_page(real(TF32) if name is None else in_style(real(TF32), STYLES[name]))
    ledger = read_text(tmp_path, page)
    assert len(ledger.kernels) == len(tf32.kernels)
    for kernel, before in zip(ledger.kernels, tf32.kernels, strict=True):
        assert (kernel.name, kernel.grid, kernel.block, kernel.time_s) == (
            before.name,
            before.grid,
            before.block,
            before.time_s,
        )
        assert kernel.quantities == {name: before.quantities[name] for name in kernel.quantities}
        assert value(kernel, "cuda_flops_fp32") == value(before, "cuda_flops_fp32")


HEADER = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
]
KERNEL = ["0", "9", "python", "127.0.0.1", "k(float *)", "1", "7", "(128, 1, 1)", "(4, 1, 1)", "0", "8.0"]


def raw(metrics: dict[str, tuple[str, str]], *, kernel: list[str] = KERNEL) -> str:
    """A raw page of one kernel, from names to units and values."""
    units = ["" for _ in HEADER] + [unit for unit, _ in metrics.values()]
    return printed([[*HEADER, *metrics], units, [*kernel, *(text for _, text in metrics.values())]])


def test_units_are_converted(tmp_path: Path) -> None:
    text = raw({"dram__bytes_read.sum": ("Mbyte", "20.68"), "dram__bytes_write.sum": ("Kbyte", "382.55"),
                "gpu__time_duration.sum": ("usecond", "2.86"), "lts__t_bytes.sum": ("Gbyte", "1.5"),
                "dram__bytes.sum.per_second": ("Gbyte/second", "141.25"), "dram__frequency": ("cycle/nsecond", "1.21"),
                "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "41.95")})  # fmt: skip
    ledger = read_text(tmp_path, text)
    (kernel,) = ledger.kernels
    assert value(kernel, "dram_bytes_read") == 20_680_000
    assert value(kernel, "dram_bytes_written") == 382_550
    assert value(kernel, "l2_bytes") == 1_500_000_000
    assert kernel.time_s == pytest.approx(2.86e-6)
    assert value(kernel, "dram__bytes.sum.per_second") == 141_250_000_000
    assert value(kernel, "dram__frequency") == 1_210_000_000
    assert value(kernel, "sm__throughput.avg.pct_of_peak_sustained_elapsed") == 41.95
    assert any("rounded" in note and "Mbyte" in note for note in note_texts(ledger.header.notes))
    # Only what adds up is in the totals.
    (step,) = ledger.measurements
    assert "dram__bytes.sum.per_second" not in step.quantities


def test_other_spellings_of_the_same_counter(tmp_path: Path) -> None:
    sass = "sm__sass_thread_inst_executed_op_{}_pred_on.sum"
    text = raw({sass.format("fadd"): ("inst", "10"), sass.format("fmul"): ("inst", "20"), sass.format("ffma"): ("inst", "300"),
                "dram__bytes_op_read.sum": ("byte", "64")})  # fmt: skip
    (kernel,) = read_text(tmp_path, text).kernels
    assert value(kernel, "cuda_flops_fp32") == 10 + 20 + 2 * 300
    assert value(kernel, "dram_bytes_read") == 64


def test_half_precision_is_packed_and_double_is_not(tmp_path: Path) -> None:
    sass = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    counts = {"hadd": 1, "hmul": 10, "hfma": 100, "dadd": 3, "dmul": 30, "dfma": 300}
    text = raw({sass.format(op): ("inst", str(count)) for op, count in counts.items()})
    (kernel,) = read_text(tmp_path, text).kernels
    assert value(kernel, "cuda_flops_fp16") == 2 * 1 + 2 * 10 + 4 * 100
    assert value(kernel, "cuda_flops_fp64") == 3 + 30 + 2 * 300
    assert "cuda_flops_fp32" not in kernel.quantities


def test_parts_of_a_family_are_never_added_to_it(tmp_path: Path) -> None:
    family = "sm__ops_path_tensor_src_fp16_dst_fp32"
    parts = {f"{family}_sparsity_on.sum": ("", "40"), f"{family}_sparsity_off.sum": ("", "60")}
    (both,) = read_text(tmp_path, raw({f"{family}.sum": ("", "100"), **parts})).kernels
    assert value(both, "tensor_flops_fp16") == 100
    (only,) = read_text(tmp_path, raw(parts)).kernels
    assert value(only, "tensor_flops_fp16") == 100
    (half,) = read_text(tmp_path, raw({f"{family}_sparsity_on.sum": ("", "40")})).kernels
    assert "tensor_flops_fp16" not in half.quantities
    assert value(half, f"{family}_sparsity_on.sum") == 40


def test_without_tensor_counters_the_log_says_so(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, raw({"dram__bytes_read.sum": ("byte", "64"), "dram__bytes_write.sum": ("byte", "32")}))
    assert any("tensor cores were not counted" in note for note in note_texts(ledger.header.notes))
    older = read_text(tmp_path, raw({"dram__bytes_read.sum": ("byte", "64")}, kernel=[*KERNEL[:-1], "6.0"]))
    assert not any("tensor" in note for note in note_texts(older.header.notes))


def test_missing_values_are_unknown(tmp_path: Path) -> None:
    text = raw({"dram__bytes_read.sum": ("byte", "n/a"), "dram__bytes_write.sum": ("byte", "0")})
    other = printed([["1", *KERNEL[1:], "64", "32"]])
    ledger = read_text(tmp_path, text + other)
    assert "dram_bytes_read" not in ledger.kernels[0].quantities
    assert value(ledger.kernels[0], "dram_bytes_written") == 0
    assert total(ledger, "dram_bytes_read") == 64
    assert any("dram_bytes_read has no value for 1 of 2 kernels" in note for note in note_texts(ledger.header.notes))


def test_words_around_and_between_the_rows(tmp_path: Path, tf32: Ledger) -> None:
    lines = [line for line in real(TF32).splitlines() if line.startswith('"')]
    text = "\n".join(
        ["==PROF== Connected", '{"loss": 0.25}', "no newline at the end" + lines[0], lines[1], "==PROF== Profiling", lines[2], "",
         '"quoted" says the program', *lines[3:], "==PROF== Disconnected from process 718", "accuracy: 98%"]
    )  # fmt: skip
    assert read_text(tmp_path, text).kernels == tf32.kernels
    assert read_text(tmp_path, text.replace("\n", "\r\n")).kernels == tf32.kernels


def test_utf16_as_powershell_redirects(tmp_path: Path, tf32: Ledger) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(real(TF32).encode("utf-16"))
    assert read(path).kernels == tf32.kernels


def test_two_runs_in_one_log(tmp_path: Path, tf32: Ledger, fp32: Ledger) -> None:
    both = read_text(tmp_path, real(TF32) + real(FP32))
    assert both.kernels == (*tf32.kernels, *fp32.kernels)


def test_a_summary_stands_for_all_its_launches(tmp_path: Path) -> None:
    header = ["Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Invocations",
              "Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]  # fmt: skip
    fixed = [
        "9",
        "python",
        "127.0.0.1",
        "k",
        "(128, 1, 1)",
        "(4, 1, 1)",
        "0",
        "9.0",
        "3",
        "Command line profiler metrics",
    ]
    rows = [
        header,
        [*fixed, "dram__bytes_read.sum", "byte", "32.00", "96.00", "64.00"],
        [*fixed, "Duration", "us", "1", "3", "2"],
    ]
    ledger = read_text(tmp_path, printed(rows))
    assert len(ledger.kernels) == 3
    read_bytes = ledger.kernels[0].quantities["dram_bytes_read"]
    assert (read_bytes.value, read_bytes.low, read_bytes.high) == (64, 32, 96)
    assert total(ledger, "dram_bytes_read") == 3 * 64
    assert total(ledger, "kernel_time_s") == pytest.approx(6e-6)
    assert any("average" in note for note in note_texts(ledger.header.notes))


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ('718  "<default domain>:conv2:none:none:none:none:none:none" ', ["conv2"]),
        ('1  "<default domain>:step:none:none:none:none:none:none"  "<default domain>:aten::conv2d:none:none:none:none:none:none" ',
         ["step", "aten::conv2d"]),
        ('1  "CCCL:cub::DeviceReduce:none:none:none:none:none:none" ', ["CCCL:cub::DeviceReduce"]),
        ("", []),
    ],
)  # fmt: skip
def test_nvtx_ranges(cell: str, names: list[str]) -> None:
    assert ranges(cell) == names


# Broken files -------------------------------------------------------------------------------------------------------


def test_a_cut_log_is_refused_with_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, real("resnet50_b16_tf32")[:9000])
    assert "line 4" in message and "not whole" in message


def test_a_header_without_rows(tmp_path: Path) -> None:
    lines = real(TF32).splitlines()
    assert "no rows" in refusal(tmp_path, "\n".join(lines[:5]) + "\n")
    assert "no rows" in refusal(tmp_path, "\n".join(lines[:6]) + "\n")  # with the row of units


def test_a_row_with_too_few_cells(tmp_path: Path) -> None:
    header, units, *rows = table(real(TF32))
    message = refusal(tmp_path, printed([header, units, rows[0], rows[1][:-1], rows[2]]))
    assert "line 4" in message and "302 cells where the header has 303" in message


@pytest.mark.parametrize("lost", [1, 3, 6, 7, 200])
def test_a_row_that_lost_its_beginning_is_refused_with_its_line(lost: int, tmp_path: Path) -> None:
    lines = real(TF32).splitlines()
    lines[7] = lines[7][lost:]
    assert "line 8" in (message := refusal(tmp_path, "\n".join(lines))) and "not whole" in message


@pytest.mark.parametrize("log", [real(TF32), details_page(real(TF32))], ids=["raw", "details"])
def test_a_row_that_lost_its_quotes_or_its_process_is_refused(log: str, tmp_path: Path) -> None:
    lines = log.splitlines()
    row = lines[-1]
    message = refusal(tmp_path, "\n".join([*lines[:-1], row.replace('"', ""), row]))
    assert f"line {len(lines)}: " in message and "the file is not whole" in message
    number, process, rest = row.split(",", 2)
    for cells, said in (((number, '"nan"'), "process is 'nan'"), (('"x"', process), "id is 'x'")):
        assert f"line {len(lines)}: {said}" in refusal(tmp_path, "\n".join([*lines[:-1], ",".join([*cells, rest])]))


@pytest.mark.parametrize("print_", ["x", "epoch 1", "[progress] ", "\r 50%|#####", '{"loss": 0.25}', "1"])
def test_a_print_on_the_line_of_a_row_is_refused_with_its_line(print_: str, tmp_path: Path) -> None:
    lines = real(TF32).splitlines()
    lines[7] = print_ + lines[7]
    message = refusal(tmp_path, "\n".join(lines))
    assert "line 8: this is a piece of a row" in message and "--log-file" in message


@pytest.mark.parametrize(
    "print_",
    ["", "accuracy: 98%", '"quoted" says the program', '{"loss":"0.25","epoch":"1"}', 'INFO {"a":"b","c":["d","e"]}', "{",
     '  "model": "resnet",', '  "layer": "conv2"', '  "conv2"', "}", '  File "/home/me/main.py", line 3, in <module>', "1,2,3",
     "Processing batch 3", "Generating samples ...", "==PROF== Profiling \"k\" - 0: 0%....100% - 3 passes", "1 \r 50%|#####", "['a', 'b']", "12", "saved to \"out.pt\""],
)  # fmt: skip
def test_prints_between_the_rows_are_passed_over(print_: str, tmp_path: Path, tf32: Ledger) -> None:
    for text in (real(TF32), details_page(real(TF32))):
        lines = text.splitlines()
        text = "\n".join(line for number, row in enumerate(lines) for line in ([print_, row] if number > 1 else [row]))
        assert [kernel.name for kernel in read_text(tmp_path, text).kernels] == [kernel.name for kernel in tf32.kernels]


def test_a_row_that_was_taken_out_is_told(tmp_path: Path, tf32: Ledger) -> None:
    lines = real(TF32).splitlines()
    for taken, left in ((6, []), (7, []), (6, [""]), (7, ["epoch 1"])):
        ledger = read_text(tmp_path, "\n".join([*lines[:taken], *left, *lines[taken + 1 :]]))
        assert len(ledger.kernels) == 3
        assert any("skip 1: rows were filtered out or lost" in note for note in note_texts(ledger.header.notes))
    assert not any("skip" in note for note in note_texts(tf32.header.notes))


def test_a_second_process_may_count_on(tmp_path: Path) -> None:
    rows = table(raw({"dram__bytes_read.sum": ("byte", "64")}))
    others = [[number, process, *KERNEL[2:], "64"] for number, process in (("1", "9"), ("5", "10"), ("6", "10"))]
    ledger = read_text(tmp_path, printed([*rows, *others]))
    assert len(ledger.kernels) == 4 and not any("skip" in note for note in note_texts(ledger.header.notes))


def test_nothing_counts_below_zero(tmp_path: Path) -> None:
    message = refusal(tmp_path, raw({"gpu__time_duration.sum": ("ns", "-5")}))
    assert "line 3: gpu__time_duration.sum is '-5': nothing counts below zero" in message


def test_a_missing_row_of_units(tmp_path: Path) -> None:
    header, _, *rows = table(real(TF32))
    assert "line 2: the row of units is missing" in refusal(tmp_path, printed([header, *rows]))


@pytest.mark.parametrize("text", ["12x4", "five", "1,2,3", "--"])
def test_a_number_that_is_none(text: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, raw({"dram__bytes_read.sum": ("byte", text)}))
    assert "line 3: dram__bytes_read.sum is" in message and "no number" in message


def test_an_unknown_unit_of_a_counter_that_matters(tmp_path: Path) -> None:
    message = refusal(tmp_path, raw({"dram__bytes_read.sum": ("Kfurlong", "12")}))
    assert "line 3" in message and "Kfurlong" in message
    (kernel,) = read_text(tmp_path, raw({"odd__metric.avg": ("furlong", "12")})).kernels
    assert value(kernel, "odd__metric.avg") == 12
    assert kernel.quantities["odd__metric.avg"].origin == "ncu, in furlong"


def test_ambiguous_numbers_are_refused_with_the_remedy(tmp_path: Path) -> None:
    message = refusal(tmp_path, raw({"sm__cycles_active.avg": ("cycle", "1,024")}))
    assert "line 3: 1,024 could be a thousand or a fraction" in message
    assert "LC_ALL=C" in message and "--print-units base" in message


def test_no_permission_for_counters(tmp_path: Path) -> None:
    text = (
        "==PROF== Connected to process 42 (/usr/bin/python3)\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
        "target device 0.\n==PROF== Disconnected from process 42\n"
    )
    message = refusal(tmp_path, text)
    assert "line 2" in message and "no permission" in message and "NVreg_RestrictProfilingToAdminUsers=0" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n", "error code (1)"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        ("==PROF== Connected to process 1\n", "no table of kernels"),
        ("hello\n", "is no log that rooflight knows"),
        ("   \n", "is empty"),
    ],
)  # fmt: skip
def test_logs_without_kernels(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, text)


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    for name, content in (("a", b"\x00\x01\x02"), ("b", b"\x1f\x8b\x08broken"), ("c", b"SQLite format 3\0...")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadFile):
            read(tmp_path / name)
    with pytest.raises(BadFile, match="does not exist"):
        read(tmp_path / "missing.csv")
    with pytest.raises(BadFile, match="folder"):
        read(tmp_path)
    whole = gzip.compress(real(TF32).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadFile, match="breaks off"):
        read(tmp_path / "cut.gz")


def test_a_report_that_nothing_here_can_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "ncu_report", None)  # as if it were not installed
    (tmp_path / "a.ncu-rep").write_bytes(b"NVR\0\2\0\0\0")
    with pytest.raises(BadFile, match=r"ncu --import a\.ncu-rep --csv --page raw --print-units base"):
        read(tmp_path / "a.ncu-rep")


WHOLE = {"raw": real(TF32), "details": details_page(real(TF32))}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_a_line_that_lost_its_beginning_never_makes_a_wrong_sum(page: str, data: st.DataObject, tmp_path: Path) -> None:
    """Of the header, the units or a row; with what a program prints without a line end before it, or nothing."""
    whole = WHOLE[page]
    lines = whole.splitlines()
    place = data.draw(st.sampled_from([number for number, line in enumerate(lines) if line.startswith('"')]))
    length = len(lines[place])
    # Short and long pieces alike: most characters are far from either end.
    lost = data.draw(st.integers(0, min(60, length - 1)) | st.integers(max(0, length - 60), length - 1)
                     | st.integers(0, length - 1))  # fmt: skip
    # A print and the end of a last cell together look like any print.
    before = data.draw(st.sampled_from(["", "x", "epoch 1: ", "0"] if lost < length // 2 else [""]))
    lines[place] = before + lines[place][lost:]
    ledger = read_or_refused(tmp_path, "\n".join(lines) + "\n")
    if ledger is not None:
        assert ledger.kernels == read_text(tmp_path, whole).kernels


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    page=st.sampled_from(sorted(WHOLE)),
    text=st.text(st.characters(codec="utf-8", exclude_characters='"')),
    data=st.data(),
)
def test_prints_without_quotes_are_passed_over(page: str, text: str, data: st.DataObject, tmp_path: Path) -> None:
    lines = WHOLE[page].splitlines()
    place = data.draw(st.integers(0, len(lines)))
    (tmp_path / "log.csv").write_bytes("\n".join([*lines[:place], text.replace("\0", ""), *lines[place:], ""]).encode())
    assert read(tmp_path / "log.csv").kernels == read_text(tmp_path, WHOLE[page]).kernels
