"""Traces: Nsight Systems' GPU trace, and Chrome traces of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA

NSYS = """\

NOTICE: Existing SQLite export found: x.sqlite
Processing [x.sqlite] with [/opt/nsys/reports/cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000500,3000,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA RTX 5000 Ada (0),1,,13,[CUDA memcpy Host-to-Device]
1005000,2000,128,4096,1,1,256,1,1,16,0.000,0.000,,,,,NVIDIA RTX 5000 Ada (0),1,,13,"saxpy(float, const float *, unsigned long)"
1006000,2000,129,4096,1,1,256,1,1,16,0.000,0.000,,,,,NVIDIA RTX 5000 Ada (0),1,,14,"saxpy(float, const float *, unsigned long)"
1000000,500,122,,,,,,,,,,0.001,1.0,,Device,NVIDIA RTX 5000 Ada (0),1,,13,[CUDA memset]
"""


def read_text(folder: Path, text: str, name: str = "trace.csv") -> Ledger:
    path = folder / name
    path.write_text(text)
    return read(path)


def totals(ledger: Ledger) -> dict[str, int | float]:
    return {name: value.value for name, value in ledger.measurements[0].quantities.items()}


def test_nsys(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, NSYS)
    assert [kernel.kind for kernel in ledger.kernels] == ["set", "copy", "kernel", "kernel"]  # in the order they ran
    fill, copy, first, second = ledger.kernels
    assert fill.start_s == 0
    assert (first.start_s, first.time_s) == (pytest.approx(5e-6), pytest.approx(2e-6))
    assert (first.grid, first.block, first.stream, second.stream) == ((4096, 1, 1), (256, 1, 1), 13, 14)
    assert copy.quantities["copied_bytes"].value == 4_194_000
    # The kernels overlap by 1 us: 0.5 + 3 + 2 + 2 - 1.
    assert totals(ledger)["kernel_time_s"] == pytest.approx(7.5e-6)
    assert totals(ledger)["gpu_busy_s"] == pytest.approx(6.5e-6)
    assert totals(ledger)["kernels"] == 2
    assert totals(ledger)["copied_bytes"] == 4_195_000
    assert ledger.header.device == "NVIDIA RTX 5000 Ada"
    assert any("no counters" in note for note in note_texts(ledger.header.notes))


@pytest.mark.parametrize(
    ("unit", "scale"), [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1), ("sec", 1)]
)
def test_nsys_units_stand_in_the_header(unit: str, scale: float, tmp_path: Path) -> None:
    ledger = read_text(tmp_path, NSYS.replace("Start (ns),Duration (ns)", f"Start ({unit}),Duration ({unit})"))
    assert ledger.kernels[2].time_s == pytest.approx(2000 * scale)


def test_nsys_before_2021(tmp_path: Path) -> None:
    """No column of green contexts, other spellings of throughput, every cell quoted."""
    rows = [line.split(",") for line in NSYS.splitlines()[3:5]]
    text = "\n".join(",".join(f'"{cell}"' for place, cell in enumerate(row) if place != 18) for row in rows)
    ledger = read_text(tmp_path, text.replace("MB/s", "MBps"))
    assert ledger.kernels[0].quantities["copied_bytes"].value == 4_194_000
    assert ledger.kernels[0].stream == 13


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NSYS[:310], "line 5: 8 cells where the header has 21"),
        (NSYS[:400], "line 5: the last row has no line end"),
        (NSYS.replace("1005000,2000", "1005000,soon"), "line 6: Duration is 'soon'"),
        (NSYS.replace("1005000,2000", "1005000,"), "line 6: Duration is"),
        (NSYS.replace("128,4096,", "128,4.5,"), "line 6: grid is '4.5,1,1'"),
        (NSYS.replace("Start (ns)", "Start (furlong)"), "is no log that rooflight knows"),
        (NSYS.replace(",Name", ",Nam"), "is no log that rooflight knows"),
        ("\n".join(NSYS.splitlines()[:4]), "no rows"),
        (NSYS[:-20] + '"unfinished', "line 8"),
        (NSYS.replace("1005000,2000", "1005000,-100"), "line 6: Duration is '-100'"),
        (NSYS.replace("1005000,2000", "1005000,1e9999"), "line 6: Duration is '1e9999'"),
        (NSYS.replace("4.194,", "-4.194,"), "line 5: Bytes is '-4.194'"),
        (NSYS.replace("128,4096,", "128,-4096,"), "line 6: grid is '-4096,1,1'"),
        (NSYS.replace("1005000,2000", "x1005000,2000"), "line 6: Start is"),
        (NSYS.replace("1005000,2000", ",2000"), "line 6: a row needs its start"),
        (NSYS.replace("1005000,2000", "\n1005000,2000"), "line 7: an empty line above"),
    ],
)
def test_broken_nsys(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_text(tmp_path, text)
    assert said in str(caught.value)


def test_nsys_tables_end_where_the_next_report_begins(tmp_path: Path) -> None:
    other = "Processing [x.sqlite] with [cuda_gpu_sum.py]...\nTime (%),Total Time (ns),Name\n50.0,4000,saxpy\n"
    alone = read_text(tmp_path, NSYS)
    for end in ("", "\n", "\n\n", "\nSKIPPED: x.sqlite does not contain NV Tools Extension data.\n\n"):
        assert read_text(tmp_path, NSYS + end + other).kernels == alone.kernels
    assert read_text(tmp_path, NSYS + "\nall done\n").kernels == alone.kernels
    assert len(read_text(tmp_path, NSYS + "\n" + NSYS).kernels) == 2 * len(alone.kernels)


API = """\
Processing [x.sqlite] with [/opt/nsys/reports/cuda_api_trace.py]...
Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
1000100,9000,cudaLaunchKernel,0,128,4711,4711,20,python
"""


def test_calls_of_the_runtime_are_no_kernels(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no log that rooflight knows"):
        read_text(tmp_path, API)
    alone = read_text(tmp_path, NSYS)
    assert (
        read_text(tmp_path, API + "\n" + NSYS).kernels
        == read_text(tmp_path, NSYS + "\n" + API).kernels
        == alone.kernels
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_nsys_row_that_lost_its_beginning_never_makes_a_wrong_sum(data: st.DataObject, tmp_path: Path) -> None:
    lines = NSYS.splitlines()
    place = data.draw(st.integers(3, len(lines) - 1))
    lines[place] = lines[place][data.draw(st.integers(1, len(lines[place]) - 1)) :]
    try:
        ledger = read_text(tmp_path, "\n".join(lines) + "\n")
    except BadFile:
        return
    assert len(ledger.kernels) == 4
    assert totals(ledger)["kernel_time_s"] == pytest.approx(7.5e-6)


# Chrome traces ------------------------------------------------------------------------------------------------------

RECORDED = DATA / "timeline"


def event(category: str, name: str, ts: float, dur: float, *, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def small_trace() -> dict[str, Any]:
    """A convolution forward in one thread and backward in another, a copy, and a kernel that nobody launched."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "computeMinor": 0}],
        "cuda_runtime_version": 12040,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "python"}},
            event("user_annotation", "ProfilerStep#3", 0, 1000),
            event("gpu_user_annotation", "ProfilerStep#3", 10, 3000, tid=70),
            event("python_function", "nn.Module: Conv2d_0", 4, 100),
            event("python_function", "torch/nn/modules/conv.py(50): forward", 5, 90),
            event("cpu_op", "aten::conv2d", 10, 80, **{"External id": 1}),
            event("cpu_op", "aten::cudnn_convolution", 20, 60, **{"External id": 2}),
            event("cuda_runtime", "cudaLaunchKernel", 30, 5, correlation=100, **{"External id": 2}),
            event("cpu_op", "aten::relu", 120, 20, **{"External id": 3}),
            event("cuda_runtime", "cudaMemcpyAsync", 125, 5, correlation=101),
            event("cpu_op", "ConvolutionBackward0", 200, 50, tid=2, **{"External id": 4}),
            event("cuda_driver", "cuLaunchKernel", 210, 5, tid=2, correlation=102),
            event(
                "kernel",
                "conv",
                50,
                100,
                tid=70,
                correlation=100,
                stream=7,
                device=0,
                grid=[4, 1, 1],
                block=[128, 1, 1],
            ),
            event(
                "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 200, 10, tid=70, correlation=101, stream=7, bytes=4096
            ),
            event("kernel", "conv_backward", 300.5, 100.25, tid=70, correlation=102, stream=7, grid=[4, 1, 1]),
            event("Kernel", "by_external_id", 500, 10, tid=70, stream=7, **{"external id": 3}),
            event("kernel", "alone", 600, 10, tid=70, correlation=999, stream=7),
            {"ph": "f", "cat": "ac2g", "id": 100, "pid": 7, "tid": 70, "ts": 50, "name": "ac2g", "bp": "e"},
        ],
    }


def test_chrome_trace_finds_the_ops(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, json.dumps(small_trace()), "step.pt.trace.json")
    assert {kernel.name: kernel.label for kernel in ledger.kernels} == {
        "conv": "Conv2d_0/aten::conv2d/aten::cudnn_convolution",
        "Memcpy HtoD (Pageable -> Device)": "aten::relu",
        "conv_backward": "ConvolutionBackward0",
        "by_external_id": "aten::relu",
        "alone": "",
    }
    conv, copy, backward, *_ = ledger.kernels
    assert (conv.grid, conv.block, conv.stream, conv.start_s, conv.time_s) == (
        (4, 1, 1),
        (128, 1, 1),
        7,
        0,
        pytest.approx(1e-4),
    )
    assert (backward.start_s, backward.time_s) == (pytest.approx(250.5e-6), pytest.approx(100.25e-6))
    assert copy.kind == "copy" and copy.quantities["copied_bytes"].value == 4096
    assert totals(ledger)["wall_time_s"] == pytest.approx(1e-3)
    assert totals(ledger)["gpu_busy_s"] == pytest.approx(230.25e-6)
    header = ledger.header
    assert (header.model, header.device, header.target, header.cuda) == (
        "step",
        "NVIDIA A100-SXM4-40GB",
        "cuda:80",
        "12.4",
    )
    assert any("1 kernels belong to no op" in note for note in note_texts(header.notes))


def test_chrome_trace_as_a_bare_list_and_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "list.json.gz"
    path.write_bytes(gzip.compress(json.dumps(small_trace()["traceEvents"]).encode()))
    ledger = read(path)
    assert len(ledger.kernels) == 5
    assert ledger.header.device is None


def test_several_profiler_steps(tmp_path: Path) -> None:
    trace = small_trace()
    trace["traceEvents"].append(event("user_annotation", "ProfilerStep#4", 1000, 500))
    ledger = read_text(tmp_path, json.dumps(trace))
    assert totals(ledger)["wall_time_s"] == pytest.approx(1.5e-3)
    assert any("2 steps" in note for note in note_texts(ledger.header.notes))


def test_a_recorded_training_step_of_an_h200() -> None:
    ledger = read(RECORDED / "resnet18_plain.json.gz")
    kernels = [kernel for kernel in ledger.kernels if kernel.kind == "kernel"]
    assert (len(kernels), len(ledger.kernels)) == (372, 380)
    assert all(kernel.label for kernel in kernels)
    assert ledger.header.device == "NVIDIA H200"
    # Of 20 convolutions; a label has all the ranges around a launch, the outermost first.
    within = "aten::conv2d/aten::convolution/aten::_convolution/aten::cudnn_convolution"
    forward = [kernel for kernel in kernels if kernel.label == within]
    assert len(forward) == sum("cudnn_convolution" in kernel.label for kernel in kernels) == 71
    assert sum("_xmma_fprop_" in kernel.name for kernel in forward) == 20
    node = "autograd::engine::evaluate_function: ConvolutionBackward0/ConvolutionBackward0/aten::convolution_backward"
    backward = [kernel for kernel in kernels if kernel.label == node]
    assert len(backward) == sum("convolution_backward" in kernel.label for kernel in kernels) == 171
    assert any("wgrad" in kernel.name for kernel in backward) and any("dgrad" in kernel.name for kernel in backward)
    assert 0 < totals(ledger)["gpu_busy_s"] <= totals(ledger)["kernel_time_s"]


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "cpu.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(4) + 1
    profiler.export_chrome_trace(str(path))
    assert [kernel.name for kernel in read(path).kernels] == ["aten::ones", "aten::add"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(small_trace(), indent=1)[:900], "breaks off"),
        ('{"traceEvents": [\n{"ph": "X",,}]}', "line 2"),
        ('{"a": 1}', "no Chrome trace"),
        ('{"traceEvents": 5}', "no Chrome trace"),
        ('{"format_version": 1, "batches": []}', "a file of rooflight's own, no log"),
        ('{"traceEvents": []}', "without GPU kernels"),
    ],
)
def test_broken_chrome_traces(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_text(tmp_path, text, "trace.json")
    assert said in str(caught.value)


def changed(index: int, **fields: Any) -> str:
    """The small trace with other fields in one event, or in its arguments: `args_correlation=...`."""
    trace = small_trace()
    event = trace["traceEvents"][index]
    for name, value in fields.items():
        if name.startswith("args_"):
            event["args"][name.removeprefix("args_").replace("External_id", "External id")] = value
        else:
            event[name] = value
    return json.dumps(trace)


KERNEL, OP, CALL, STEP = 12, 5, 7, 1


@pytest.mark.parametrize(
    ("index", "fields", "said"),
    [
        (KERNEL, {"args_correlation": [1]}, "event 13 of the trace is not as PyTorch's profiler writes it"),
        (KERNEL, {"args_correlation": 1.5}, "$.args.correlation"),
        (KERNEL, {"args_grid": [1, 2]}, "$.args.grid"),
        (KERNEL, {"args_grid": [1, -2, 3]}, "$.args.grid"),
        (KERNEL, {"args_stream": 10**400}, "$.args.stream"),
        (KERNEL, {"dur": -5}, "Expected `float` >= 0.0 - at `$.dur`"),
        (KERNEL, {"dur": 10**400}, "$.dur"),
        (KERNEL, {"ts": 10**400}, "$.ts"),
        (KERNEL, {"name": 5}, "$.name"),
        (KERNEL + 1, {"args_bytes": -1}, "event 14 of the trace"),
        (CALL, {"args_correlation": [1]}, "event 8 of the trace"),
        (CALL, {"pid": [7]}, "$.pid"),
        (OP, {"pid": [7]}, "event 6 of the trace"),
        (STEP, {"dur": -5}, "event 2 of the trace"),
    ],
)
def test_events_that_are_not_as_pytorch_writes_them(
    index: int, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFile) as caught:
        read_text(tmp_path, changed(index, **fields), "trace.json")
    message = str(caught.value)
    assert said in message and "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("field", "entry"),
    [("deviceProperties", [{"id": [0]}]), ("deviceProperties", 5), ("deviceProperties", [{"id": 0, "computeMajor": "9"}]),
     ("cuda_runtime_version", [12040]), ("cuda_runtime_version", 10**400)],
)  # fmt: skip
def test_a_head_that_is_not_as_pytorch_writes_it(field: str, entry: Any, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=field):
        read_text(tmp_path, json.dumps({**small_trace(), field: entry}), "trace.json")


@pytest.mark.parametrize(
    ("index", "fields"),
    [
        (KERNEL, {"ts": 50, "dur": 100}),
        (KERNEL, {"pid": [1], "tid": {}}),  # where a kernel ran is in its arguments
        (KERNEL, {"args_queued": [], "args_priority": "high"}),
        (KERNEL, {"args_External_id": "2"}),
        (CALL, {"dur": -1}),
        (OP, {"args_Input_Dims": [[1, 2], []]}),
        (3, {"dur": -1e9}),  # a module that was open when the profiler stopped
        (4, {"ts": None, "dur": "x", "args": 5}),  # a Python function that is no module
        (0, {"pid": [], "tid": None, "args": 3}),
        (17, {"cat": 5, "id": [], "ts": 10**400}),
    ],
)
def test_what_is_not_read_may_be_anything(index: int, fields: dict[str, Any], tmp_path: Path) -> None:
    before = read_text(tmp_path, json.dumps(small_trace()), "trace.json")
    ledger = read_text(tmp_path, changed(index, **fields), "trace.json")
    assert [(kernel.name, kernel.time_s) for kernel in ledger.kernels] == [
        (kernel.name, kernel.time_s) for kernel in before.kernels
    ]


def test_processes_threads_and_ids_may_be_words(tmp_path: Path) -> None:
    trace = small_trace()
    for entry in trace["traceEvents"]:
        if "args" in entry:
            ids = ("correlation", "External id", "external id")
            entry["args"] |= {name: f"0x{entry['args'][name]}" for name in ids if name in entry["args"]}
        entry |= {"pid": f"Process {entry['pid']}", "tid": f"thread {entry['tid']}"}
    ledger = read_text(tmp_path, json.dumps(trace), "trace.json")
    assert ledger.kernels == read_text(tmp_path, json.dumps(small_trace()), "trace.json").kernels


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "X", "kernel", "cpu_op", "cuda_runtime", "2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "bytes", "x"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
FIELDS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "args_correlation", "args_External_id",
                          "args_grid", "args_stream", "args_device", "args_bytes"])  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.integers(1, 16), field=FIELDS, anything=ANYTHING)
def test_anything_in_any_field_is_read_or_refused(index: int, field: str, anything: Any, tmp_path: Path) -> None:
    try:
        ledger = read_text(tmp_path, changed(index, **{field: anything}), "trace.json")
    except BadFile:
        return
    for kernel in ledger.kernels:
        assert kernel.time_s is not None and 0 <= kernel.time_s <= 1e6
    if field not in ("ph", "cat"):  # an event of another kind is not ours
        assert len(ledger.kernels) == 5


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(other=ANYTHING)
def test_events_of_others_are_passed_over(other: Any, tmp_path: Path) -> None:
    trace = small_trace()
    before = read_text(tmp_path, json.dumps(trace), "trace.json")
    trace["traceEvents"] += [
        other,
        {"ph": "X", "cat": "theirs", "name": other, "pid": other, "ts": other, "args": other},
    ]
    assert read_text(tmp_path, json.dumps(trace), "trace.json").kernels == before.kernels
