"""nvprof's tables of metrics, as text and as CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.notes import note_texts

TEXT = """\
==558094== NVPROF is profiling process 558094, command: python main.py
==558094== Some kernel(s) will be replayed on device 0 in order to collect all events/metrics.
epoch 1
==558094== Profiling application: python main.py
==558094== Profiling result:
==558094== Event result:
Invocations                                Event Name         Min         Max         Avg       Total
Device "Tesla V100-SXM2-16GB (0)"
    Kernel: saxpy(float*, int)
          1                            warps_launched          72          72          72          72

==558094== Metric result:
Invocations                               Metric Name                            Metric Description         Min         Max         Avg
Device "Tesla V100-SXM2-16GB (0)"
    Kernel: saxpy(float*, int)
          4                             flop_count_sp   Floating Point Operations(Single Precision)        1000        3000        2000
          4                             flop_count_dp   Floating Point Operations(Double Precision)           0           0           0
          4                           dram_read_bytes         Total bytes read from DRAM to L2 cache        960         960         960
          4                          dram_write_bytes      Total bytes written from L2 cache to DRAM     504608      504608      504608
          4                      dram_read_throughput                 Device Memory Read Throughput  16.202GB/s  16.202GB/s  16.201GB/s
          4                          dram_utilization                      Device Memory Utilization     Low (1)     Low (1)     Low (1)
          4                 warp_execution_efficiency                      Warp Execution Efficiency     100.00%     100.00%     100.00%
    Kernel: void at::native::fill<float, at::Fill<float> >(int, float)
          1                             flop_count_sp   Floating Point Operations(Single Precision)  2.4855e+10  2.4855e+10  2.4855e+10
"""
CSV = """\
==20858== NVPROF is profiling process 20858, command: ./test
==20858== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"Tesla K20c (0)","jacobi(float*, int)",3,"flop_count_sp","Floating Point Operations(Single Precision)",673384360,673384360,673384360
"Tesla K20c (0)","jacobi(float*, int)",3,"gld_throughput","Global Load Throughput",1.5GB/s,1.5GB/s,1.5GB/s
"""


def read_text(folder: Path, text: str) -> Ledger:
    path = folder / "nvprof.log"
    path.write_text(text)
    return read(path)


def totals(ledger: Ledger) -> dict[str, int | float]:
    return {name: value.value for name, value in ledger.measurements[0].quantities.items()}


def test_text(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, TEXT)
    assert [kernel.name for kernel in ledger.kernels] == ["saxpy(float*, int)"] * 4 + [
        "void at::native::fill<float, at::Fill<float> >(int, float)"
    ]
    first = ledger.kernels[0].quantities
    assert (first["cuda_flops_fp32"].value, first["cuda_flops_fp32"].low, first["cuda_flops_fp32"].high) == (
        2000,
        1000,
        3000,
    )
    assert first["dram_bytes_read"].value == 960
    assert first["dram_read_throughput"].value == 16_201_000_000
    assert "dram_utilization" not in first
    assert totals(ledger)["flop_count_sp"] == 4 * 2000 + 24_855_000_000
    assert totals(ledger)["dram_bytes_written"] == 4 * 504_608
    assert totals(ledger)["kernels"] == 5
    assert ledger.header.device == "Tesla V100-SXM2-16GB"
    assert any("does not count the tensor cores" in note for note in note_texts(ledger.header.notes))
    assert any("rounded" in note for note in note_texts(ledger.header.notes))


def test_csv(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, CSV)
    assert len(ledger.kernels) == 3
    assert totals(ledger)["cuda_flops_fp32"] == 3 * 673_384_360
    assert ledger.kernels[0].quantities["gld_throughput"].value == 1_500_000_000
    assert ledger.header.device == "Tesla K20c"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT[: TEXT.index("   Total bytes read")], "line 18: this is no row"),
        (TEXT[: TEXT.index("Device \"Tesla V100-SXM2-16GB (0)\"\n    Kernel: saxpy(float*, int)\n          4")], "a header and no rows"),
        (CSV[:-12], "line 5: 7 cells where the header has 8"),
        (CSV.strip(), "line 5: the last row has no line end"),
        (CSV.replace('"Tesla K20c (0)","jacobi(float*, int)",3,"flop', 'bi(float*, int)",3,"flop'), "line 4: this is a piece of a row"),
        (TEXT.strip(), "line 24: this is no row"),
        (CSV.replace("673384360\n", "many\n"), "line 4: flop_count_sp is 'many'"),
        (CSV.replace(",3,\"flop", ",0,\"flop"), "line 4: '0' is no number of calls"),
        ("==1== NVPROF is profiling process 1\n==1== Warning: ERR_NVGPUCTRPERM - The user does not have permission\n", "line 2"),
        ("==1== NVPROF is profiling process 1\n==1== Warning: No profile data collected.\n", "No profile data collected"),
    ],
)  # fmt: skip
def test_broken_logs(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_text(tmp_path, text)
    assert said in str(caught.value)
