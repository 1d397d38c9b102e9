"""What nsys prints for people: tables in columns below rules, or in boxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.errors import BadFile
from rooflight.profiles import read
from tests.fixtures.notes import note_texts

COLUMN = """\
Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_api_sum.py]...

 ** CUDA API Summary (cuda_api_sum):

 Time (%)  Total Time (ns)  Num Calls    Avg (ns)    Med (ns)  Min (ns)   Max (ns)   StdDev (ns)         Name
 --------  ---------------  ---------  ------------  --------  --------  ----------  ------------  ----------------
     99.6       86,755,035          3  28,918,345.0   5,369.0     3,688  86,745,978  50,080,199.2  cudaMalloc

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)   Instances   Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)               Name
 --------  ---------------  ----------   --------  --------  --------  --------  -----------  ------------------------------
     99.9       21,570,333  16,777,216    1,285.7   1,248.0     1,184     5,120         67.6  void add<float>(T1 *, T1 *, T1…
      0.1            4,160           2    2,080.0   2,080.0     2,000     2,160          0.0  scale(float *, int)

 ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)   Med (ns)   Min (ns)  Max (ns)  StdDev (ns)           Operation
 --------  ---------------  -----  ---------  ---------  --------  --------  -----------  ----------------------------
     69.1          756,390      2  378,195.0  378,195.0   374,915   381,475      4,638.6  [CUDA memcpy Host-to-Device]
"""
BOX = """\
 +----------+-----------------+-----------+----------+---------------------+
 | Time (%) | Total Time (ns) | Instances | Avg (ns) |        Name         |
 +----------+-----------------+-----------+----------+---------------------+
 |    100.0 |           4,160 |         2 |  2,080.0 | scale(float *, int) |
 +----------+-----------------+-----------+----------+---------------------+
"""
TRACE = """\
 Start (ns)  Duration (ns)  CorrId  GrdX  GrdY  GrdZ  BlkX  BlkY  BlkZ      Device       Strm         Name
 ----------  -------------  ------  ----  ----  ----  ----  ----  ----  ---------------  ----  -------------------
  1,000,500          3,000     123    16     1     1   256     1     1  NVIDIA H200 (0)    13  scale(float *, int)
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "paste.txt"
    path.write_text(text)
    return path


def test_a_summary_as_it_is_pasted(tmp_path: Path) -> None:
    """Of a whole `nsys stats`, only kernels; sixteen million launches are one row."""
    ledger = read(written(tmp_path, COLUMN))
    add, scale = ledger.kernels
    assert (add.name, add.calls, add.time_s) == (
        "void add<float>(T1 *, T1 *, T1…",
        16_777_216,
        pytest.approx(21.570333e-3),
    )
    assert (scale.name, scale.calls, scale.time_s, scale.start_s) == ("scale(float *, int)", 2, 4.16e-6, None)
    totals = ledger.measurements[0].quantities
    assert totals["kernels"].value == 16_777_218
    assert totals["kernel_time_s"].value == pytest.approx(21.574493e-3)
    assert "gpu_busy_s" not in totals
    assert any("cut long names off" in note for note in note_texts(ledger.header.notes))
    assert any("no single one is known" in note for note in note_texts(ledger.header.notes))


def test_of_two_reports_of_the_same_launches_the_first_counts(tmp_path: Path) -> None:
    """`nsys stats` prints cuda_gpu_kern_sum, and the same kernels by grid and block in cuda_gpu_kern_gb_sum."""
    sums = "Time (%),Total Time (ns),Instances,Name\n100.0,4160,2,scale\n"
    by_grid = (
        "Time (%),Total Time (ns),Instances,GridXYZ,BlockXYZ,Name\n100.0,4160,2,  16    1    1, 256    1    1,scale\n"
    )
    head = "Processing [run.sqlite] with [reports/cuda_gpu_kern_gb_sum.py]...\n"
    for text in (BOX + BOX, sums + "\n" + by_grid, sums + head + by_grid, sums + "\n" + head + sums):
        (kernel,) = read(written(tmp_path, text)).kernels
        assert (kernel.calls, kernel.time_s) == (2, 4.16e-6)
    (kernel,) = read(written(tmp_path, by_grid)).kernels
    assert (kernel.grid, kernel.block) == ((16, 1, 1), (256, 1, 1))


def test_a_box(tmp_path: Path) -> None:
    (kernel,) = read(written(tmp_path, BOX)).kernels
    assert (kernel.name, kernel.calls, kernel.time_s) == ("scale(float *, int)", 2, 4.16e-6)


def test_a_trace(tmp_path: Path) -> None:
    ledger = read(written(tmp_path, TRACE))
    (kernel,) = ledger.kernels
    assert (kernel.name, kernel.grid, kernel.block, kernel.stream, kernel.time_s) == (
        "scale(float *, int)",
        (16, 1, 1),
        (256, 1, 1),
        13,
        pytest.approx(3e-6),
    )
    assert ledger.header.device == "NVIDIA H200"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOX.replace("|           4,160 |", "|           4,soon|"), "line 4: Total Time is '4,soon'"),
        (BOX.replace("         2 |", "         0 |"), "line 4: '0' is no number of calls"),
        (BOX.replace("         2 |", "       2.5 |"), "line 4: '2.5' is no number of calls"),
        (COLUMN[: COLUMN.index("scale(") - 20], "line 15: the cells of this row do not stand below their columns"),
        (COLUMN.replace("     99.9  ", "     99.9       1"), "line 14: the cells of this row do not stand"),
        ("\n".join(BOX.splitlines()[:3]), "a header and no rows"),
        (COLUMN[: COLUMN.index(" ** CUDA GPU Kernel")], "is no log that rooflight knows"),
    ],
)
def test_broken(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read(written(tmp_path, text))
    assert said in str(caught.value)


def test_a_csv_of_calls_of_the_runtime_is_none_of_kernels(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is no log that rooflight knows"):
        read(
            written(
                tmp_path, "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n99.6,86755035,3,28918345.0,cudaMalloc\n"
            )
        )


def test_a_table_of_ranges_is_none_of_kernels(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is no log that rooflight knows"):
        read(written(tmp_path, BOX.replace("| Avg (ns) |        Name  ", "| Style    |        Name  ")))
