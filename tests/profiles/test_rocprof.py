"""AMD's logs: rocprofv3's tables, rocprof's before it, and PyTorch's traces of ROCm builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.notes import note_texts

TRACE = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 2",1,3,70,2,16,"void add<float>(float*, int, int)",8,8819330200120456,8819330200123456,0,0,4,4,16,64,1,1,1000,8,1
"KERNEL_DISPATCH","Agent 2",1,3,70,1,33,"__amd_rocclr_fillBufferAligned",7,8819330200067564,8819330200068564,0,0,12,4,48,256,1,1,256,1,1
"""
COUNTERS = """\
"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"
1,1,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"FETCH_SIZE",8
1,1,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"SQ_INSTS_VALU_MFMA_MOPS_F16",3
1,1,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"SQ_INSTS_VALU_MFMA_MOPS_F16",2
1,1,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"SQ_WAVES",16384
2,2,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"FETCH_SIZE",2
2,2,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"SQ_INSTS_VALU_MFMA_MOPS_F16",1
2,2,2,1,9,9,1048576,16,"void add<float>(float*, int, int)",64,0,0,8,16,"SQ_WAVES",16384
"""
STATS = """\
"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"
"MIOpenBatchNormBwdSpatial",1113,13283773,11935.106020,6.46,6009,51117,6712.148824
"copy_kernel(float*, float*, int, int) [clone .kd]",1,165920,165920,100.0,165920,165920,0.00000000e+00
"""
OLD = """\
Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj,WriteSize,FetchSize,DispatchNs,BeginNs,EndNs,CompleteNs

0,"bodyForce(Body*, float, int) [clone .kd]",0,0,0,3673711,3673711,65536,256,0,0,20,4,16,64,0x0,0x7f2b4d282500,4.0000000000,16.0000000000,100,200,1200,1300
"""


def of(folder: Path, text: str) -> Ledger:
    path = folder / "log"
    path.write_text(text)
    return read(path)


def test_a_kernel_trace_has_its_grid_in_threads(tmp_path: Path) -> None:
    ledger = of(tmp_path, TRACE)
    fill, add = ledger.kernels  # in the order they ran
    assert (add.name, add.block, add.stream) == ("void add<float>(float*, int, int)", (64, 1, 1), 3)
    assert add.grid == (16, 8, 1)  # 1,000 threads in a row: fifteen blocks of 64 and a part of one
    assert (fill.grid, fill.start_s, fill.time_s) == ((1, 1, 1), 0, 1e-6)
    assert (add.start_s, add.time_s) == (52_892e-9, 3e-6)  # exactly, though the machine has run for 102 days
    assert ledger.measurements[0].quantities["gpu_busy_s"].value == pytest.approx(4e-6)
    assert any("rocprofv3 --pmc" in note for note in note_texts(ledger.header.notes))


def test_counters(tmp_path: Path) -> None:
    """A counter of two parts of the chip is their sum; bytes come in KiB, matrix operations in 512 FLOPs."""
    ledger = of(tmp_path, COUNTERS)
    first, second = ledger.kernels
    assert first.quantities["dram_bytes_read"].value == 8 * 1024
    assert first.quantities["tensor_flops_fp16"].value == 5 * 512
    assert (first.quantities["SQ_WAVES"].value, first.time_s, first.grid) == (16384, None, None)
    assert second.quantities["tensor_flops_fp16"].value == 512
    totals = ledger.measurements[0].quantities
    assert (totals["dram_bytes_read"].value, totals["tensor_flops_fp16"].value) == (10 * 1024, 6 * 512)
    assert "dram_bytes_written" not in totals
    assert any("stay under their own names" in note for note in note_texts(ledger.header.notes))


def test_counters_with_the_times_of_a_trace(tmp_path: Path) -> None:
    counters, times = tmp_path / "counters.csv", tmp_path / "trace.csv"
    counters.write_text(COUNTERS)
    times.write_text(TRACE)
    ledger = read(counters, times)
    assert [kernel.time_s for kernel in ledger.kernels] == [pytest.approx(3e-6), pytest.approx(3e-6)]
    assert ledger.kernels[0].quantities["tensor_flops_fp16"].value == 2560


def test_statistics(tmp_path: Path) -> None:
    norm, copy = of(tmp_path, STATS).kernels
    assert (norm.name, norm.calls, norm.time_s) == ("MIOpenBatchNormBwdSpatial", 1113, pytest.approx(13.283773e-3))
    assert copy.name == "copy_kernel(float*, float*, int, int)"


def test_rocprof_before_the_third(tmp_path: Path) -> None:
    ledger = of(tmp_path, OLD)
    (kernel,) = ledger.kernels
    assert (kernel.name, kernel.time_s, kernel.start_s) == ("bodyForce(Body*, float, int)", 1e-6, 0)
    assert kernel.quantities["dram_bytes_read"].value == 16 * 1024
    assert kernel.quantities["dram_bytes_written"].value == 4 * 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACE.replace("8819330200123456", "soon"), "line 2: End_Timestamp is 'soon'"),
        (TRACE.replace("8819330200123456", "1"), "line 2: the kernel ends before it starts"),
        (TRACE[:-30], "line 3: 11 cells where the header has 22"),
        (TRACE[:-1], "line 3: the last row has no line end"),
        (TRACE.splitlines()[0] + "\n", "a header and no rows"),
        (COUNTERS.replace('"SQ_WAVES",16384', '"SQ_WAVES",-1'), "line 5: SQ_WAVES is '-1'"),
        ('"Name","Calls","TotalDurationNs"\n"hipMemcpy",2,100\n', "calls of the host, no kernels"),
    ],
)
def test_broken(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        of(tmp_path, text)
    assert said in str(caught.value)


def test_a_trace_of_pytorch_with_rocm(tmp_path: Path) -> None:
    """gfx90a calls itself 9.0, and is no Hopper."""
    kernel = {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk_Bjlk", "ts": 1, "dur": 1, "args": {"device": 2}}
    device = {"id": 0, "name": "AMD Instinct MI250X", "computeMajor": 9, "computeMinor": 0, "warpSize": 64}
    ledger = of(tmp_path, json.dumps({"traceEvents": [kernel], "deviceProperties": [device]}))
    assert (ledger.header.device, ledger.header.target) == ("AMD Instinct MI250X", "cuda")
