"""Nsight Compute's console output, as `ncu --metrics ... python main.py > log` leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.import_logs import STYLES, console, in_style, real
from tests.fixtures.notes import note_texts

TF32 = "mnist_conv2_64_tf32"


def read_text(folder: Path, text: str) -> Ledger:
    path = folder / "log.txt"
    path.write_text(text)
    return read(path)


@pytest.fixture(scope="module")
def tf32(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return read_text(tmp_path_factory.mktemp("tf32"), real(TF32))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", [None, *STYLES])
def test_console_output_reads_like_the_csv(name: str | None, old: bool, tmp_path: Path, tf32: Ledger) -> None:
    text = real(TF32) if name is None else in_style(real(TF32), STYLES[name])
    ledger = read_text(tmp_path, console(text, old=old))
    assert len(ledger.kernels) == 4
    for kernel, before in zip(ledger.kernels, tf32.kernels, strict=True):
        assert (kernel.name, kernel.stream, kernel.time_s) == (before.name, before.stream, before.time_s)
        assert (kernel.grid, kernel.block) == ((None, None) if old else (before.grid, before.block))
        assert kernel.quantities == {name: before.quantities[name] for name in kernel.quantities}
    assert ledger.measurements[0].quantities["tensor_flops_tf32"].value == 1_358_954_496
    assert ledger.header.target == ("cuda" if old else "cuda:90")


SECTIONS = """\
==PROF== Profiling "sgemm" - 0: 0%....50%....100% - 8 passes
[3520] sgemm@127.0.0.1
  sgemm(int, const float *, float *) (128, 128, 1)x(32, 32, 1), Context 1, Stream 7, Device 0, CC 7.5
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ----------------
    Metric Name             Metric Unit     Metric Value
    ----------------------- ----------- ----------------
    DRAM Frequency                  Ghz             5.00
    Elapsed Cycles                cycle    3,548,923,287
    DRAM Throughput                   %             0.93
    Duration                          s             6.07
    ----------------------- ----------- ----------------

    OPT   This workload exhibits low compute throughput and memory bandwidth utilization.

    Section: Command line profiler metrics
    ------------------------------------------------------ ----------- ------------
    Metric Name                                            Metric Unit Metric Value
    ------------------------------------------------------ ----------- ------------
    dram__bytes_read.sum                                         Mbyte        20.68
    dram__throughput.avg_pct_of_peak_sustained_elapsed                      (!) n/a
    l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum                      0
    launch__waves_per_multiprocessor                                           4.36
    ------------------------------------------------------ ----------- ------------
"""


def test_sections_of_a_default_profile(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, SECTIONS)
    (kernel,) = ledger.kernels
    assert kernel.name == "sgemm(int, const float *, float *)"
    assert kernel.grid == (128, 128, 1) and kernel.block == (32, 32, 1)
    assert kernel.time_s == 6.07
    values = {name: value.value for name, value in kernel.quantities.items()}
    assert values["dram_bytes_read"] == 20_680_000
    assert values["DRAM Frequency"] == 5_000_000_000
    assert values["Elapsed Cycles"] == 3_548_923_287
    # The name is too long for its column, and pushes the value to the right.
    assert values["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] == 0
    assert "dram__throughput.avg_pct_of_peak_sustained_elapsed" not in values
    assert ledger.header.target == "cuda:75"


def test_a_summary(tmp_path: Path) -> None:
    text = """\
  transpose(const float *, int) (32, 32, 1)x(32, 32, 1), Device 0, CC 11.0, Invocations 14
    Section: Command line profiler metrics
    ---------------------------- ----------- ------- ------- -------
    Metric Name                  Metric Unit Minimum Maximum Average
    ---------------------------- ----------- ------- ------- -------
    dram__bytes_read.sum                byte   32.00   96.00   64.00
    ---------------------------- ----------- ------- ------- -------
"""
    ledger = read_text(tmp_path, text)
    assert len(ledger.kernels) == 14
    assert ledger.measurements[0].quantities["dram_bytes_read"].value == 14 * 64


def test_a_log_without_its_end(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"line 5: the table of this section has no end"):
        read_text(tmp_path, SECTIONS[: SECTIONS.index("DRAM Throughput")])
    with pytest.raises(BadFile, match=r"is no log that rooflight knows|no table of kernels"):
        read_text(tmp_path, SECTIONS[: SECTIONS.index("    Section")])
    for length in (3, 20, 70):
        with pytest.raises(BadFile, match=r"line 26: the heading of a kernel has no line end: the file is not whole"):
            read_text(tmp_path, SECTIONS + "\n" + SECTIONS.splitlines()[2][:length])
    with pytest.raises(BadFile, match=r"line 11: Duration is 'soon'"):
        read_text(tmp_path, SECTIONS.replace("  6.07", "  soon"))


def test_a_program_may_print_json_first(tmp_path: Path) -> None:
    text = '{"loss": 0.25}\n' + SECTIONS
    assert read_text(tmp_path, text).kernels == read_text(tmp_path, SECTIONS).kernels


def test_a_log_that_lost_kernels_says_so(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, '==PROF== Profiling "other" - 1: 100% - 8 passes\n' + SECTIONS)
    assert any("profiled 2 kernels, the log holds 1" in note for note in note_texts(ledger.header.notes))
