"""`rooflight calibrate --from`: what it prints and writes, what it never replaces, and files that cannot be used."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.files import load, save
from rooflight.hardware.calibration import Calibration, own_path, read, shipped
from rooflight.hardware.devices import find
from rooflight.hardware.recorded_tables import encode
from rooflight.ops.kernel_task import Task
from rooflight.prediction.possible_times import least_time
from rooflight.prediction.resolve_devices import predictor_of
from tests.fixtures.paths import DATA
from tests.test_fuzz_readers import damaged, exit_code, mangled, seeded, unpacked

RECORDED = "recorded:h200/mnist-cnn-train-tf32"
TRACE = DATA / "profiled" / "h200-small-amp.json.gz"
TABLE = "op,m,n,k,dtype,time_us\ngemm,512,4096,1024,fp32,460\ngemm,64,4096,1024,fp32,80\n"


@pytest.fixture
def rooflight(run, monkeypatch, tmp_path):
    """Run `rooflight ARGUMENTS` in this process: exit code, output, error output."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return run


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "run.csv"
    path.write_text(TABLE)
    return path


def test_a_recording_becomes_a_partial_calibration(rooflight, tmp_path):
    path = tmp_path / "mine.json.gz"
    code, out, _ = rooflight("calibrate", "--from", RECORDED, "-o", path)
    assert code == 0 and "100.0%" in out and f"predict resnet50 --on h200 --calibration {path}" in out
    made = read(path)
    assert made.partial and made.device == "NVIDIA H200" and made.torch == "2.11.0+cu130"
    assert all(RECORDED in group.source and "running model" in group.source for group in made.points)
    ledger = load(RECORDED)
    (pool,) = [group for group in made.points if group.family == "max-pool-forward"]
    index = next(op.index for op in ledger.ops if op.packet == "aten::max_pool2d_with_indices")
    (kernel,) = [kernel for kernel in ledger.kernels if kernel.ops == (index,)]
    # 64 images of 64 planes of 24 x 24, pooled by 2; warm and cold are what was measured; one kernel.
    nanoseconds = round(kernel.time_s * 1e9)
    assert pool.rows[0] == [64 * 64, 24, 24, 2, 2, 144, 0, nanoseconds, nanoseconds, 1]


def test_repeated_works_are_one_point_of_their_median(rooflight, tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(TABLE + "gemm,512,4096,1024,fp32,470\ngemm,512,4096,1024,fp32,900\n")
    assert rooflight("calibrate", "--from", path, "--on", "v100", "-o", tmp_path / "v100.json")[0] == 0
    (group,) = read(tmp_path / "v100.json").points
    assert group.rows == [
        [1, 512, 4096, 1024, 0, 0, 0, 470000, 470000, 1],
        [1, 64, 4096, 1024, 0, 0, 0, 80000, 80000, 1],
    ]
    assert group.source.startswith("run.csv, ")


def test_a_trace_says_what_is_left_out_and_why(rooflight, tmp_path):
    code, out, _ = rooflight("calibrate", "--from", TRACE, "-o", tmp_path / "mine.json.gz", "--json")
    summary = json.loads(out)
    assert code == 0 and summary["device"] == "h200" and summary["covered"] == pytest.approx(0.725, abs=0.001)
    ((reason, part),) = [(row["reason"], row["part_of_time"]) for row in summary["left_out"]]
    assert "convolutions" in reason and part == pytest.approx(1 - summary["covered"])
    assert sum(row["part_of_time"] for row in summary["families"]) == pytest.approx(summary["covered"])
    assert sum(row["points"] for row in summary["families"]) == summary["points"]


def test_several_files_are_joined_each_with_its_source(rooflight, tmp_path):
    path = tmp_path / "mine.json.gz"
    assert rooflight("calibrate", "--from", RECORDED, TRACE, "-o", path)[0] == 0
    sources = {group.source for group in read(path).points}
    assert len(sources) == 2 and any("torch.profiler" in source for source in sources)
    assert rooflight("calibrate", "--from", RECORDED, "--from", TRACE, "-o", path, "--force")[0] == 0
    assert {group.source for group in read(path).points} == sources


def test_without_o_it_goes_where_predictions_look_and_replaces_nothing_unasked(rooflight, table):
    code, out, _ = rooflight("calibrate", "--from", table, "--on", "v100-pcie-32")
    path = own_path("v100-pcie-32")
    assert code == 0 and str(path) in out and "--calibration" not in out and read(path).partial
    code, _, _ = rooflight("calibrate", "--from", table, "--on", "v100-pcie-32")
    assert (code, rooflight.code, rooflight.options) == (2, "file-exists", ("--force",))
    full = msgspec.structs.replace(read(path), partial=False, made="2026-01-01")
    path.write_bytes(encode(full))
    code, _, err = rooflight("calibrate", "--from", table, "--on", "v100-pcie-32")
    assert (code, rooflight.code) == (2, "file-exists") and "2026-01-01" in err
    assert not read(path).partial
    assert rooflight("calibrate", "--from", table, "--on", "v100-pcie-32", "--force")[0] == 0 and read(path).partial


def test_it_is_not_put_before_a_full_one_that_comes_along(rooflight):
    code, _, err = rooflight("calibrate", "--from", RECORDED)
    assert (code, rooflight.code) == (2, "file-exists") and not own_path("h200").exists()
    assert "-o FILE" in err and "--force" in rooflight.options


def other_device(folder: Path, name: str) -> Path:
    ledger = load(RECORDED)
    header = msgspec.structs.replace(ledger.header, device=name, recording="")
    return save(msgspec.structs.replace(ledger, header=header), folder / "other.json.gz")


def test_devices_must_agree(rooflight, tmp_path):
    a100 = other_device(tmp_path, "NVIDIA A100-SXM4-80GB")
    code, _, err = rooflight("calibrate", "--from", RECORDED, a100, "-o", tmp_path / "x.json")
    assert (code, rooflight.code) == (2, "several-devices")
    assert all(word in err for word in (RECORDED, "h200", str(a100), "a100-sxm-80"))


def test_a_gpu_that_is_not_in_the_database_needs_a_name(rooflight, tmp_path):
    unknown = other_device(tmp_path, "NVIDIA H999")
    code, _, err = rooflight("calibrate", "--from", unknown, "-o", tmp_path / "x.json")
    assert (code, rooflight.code) == (2, "device-not-in-database")
    assert str(unknown) in err and "'NVIDIA H999'" in err and "--on" in rooflight.options
    assert rooflight("calibrate", "--from", unknown, "--on", "h200", "-o", tmp_path / "x.json")[0] == 0


def test_a_recording_that_its_device_cannot_have_made_is_refused(rooflight, tmp_path):
    ledger = load("recorded:h200/vgg19-infer-bf16")
    header = msgspec.structs.replace(ledger.header, device="Tesla T4")
    path = save(msgspec.structs.replace(ledger, header=header), tmp_path / "t4.json.gz")
    code, _, err = rooflight("calibrate", "--from", path, "-o", tmp_path / "x.json")
    assert (code, rooflight.code) == (2, "impossible-time") and "NVIDIA T4" in err


def test_single_impossible_times_of_a_recording_are_left_out_and_counted(rooflight, tmp_path):
    ledger = load("recorded:h200/vgg19-infer-bf16")
    slow = max(ledger.kernels, key=lambda kernel: kernel.time_s or 0)
    kernels = [msgspec.structs.replace(k, time_s=1e-6) if k is slow else k for k in ledger.kernels]
    path = save(msgspec.structs.replace(ledger, kernels=tuple(kernels)), tmp_path / "run.json.gz")
    code, out, _ = rooflight("calibrate", "--from", path, "-o", tmp_path / "x.json", "--json")
    (row,) = json.loads(out)["left_out"]
    assert code == 0 and row["count"] == 1 and row["reason"]


def seconds_of(task: Task, path: Path | None, device: str) -> float:
    given = None if path is None else read(path)
    predictor, _ = predictor_of(find(device), None, given)
    return float(predictor.task_times([task]).warm_s[0])


@pytest.mark.parametrize("device", ["v100-pcie-32", "rtx-4070"])
def test_predictions_go_by_ones_own_times_first(rooflight, tmp_path, device):
    """With and without single ops that others published of the GPU: a work that was timed takes what it took."""
    path, table = tmp_path / "mine.json", tmp_path / "run.csv"
    tasks = [Task.of("gemm", "fp32", m=size, n=4096, k=1024, b_transposed=1) for size in (512, 1024, 2048, 4096, 8192)]
    before = [seconds_of(task, None, device) for task in tasks]
    rows = (f"gemm,{t.numbers[1]},4096,1024,1,fp32,{3e6 * spent:.3f}" for t, spent in zip(tasks, before, strict=True))
    table.write_text("op,m,n,k,b_transposed,dtype,time_us\n" + "\n".join(rows) + "\n")
    assert rooflight("calibrate", "--from", table, "--on", device, "-o", path)[0] == 0
    for task, spent in zip(tasks, before, strict=True):
        assert seconds_of(task, path, device) == pytest.approx(3 * spent, rel=0.15)
    # What has nothing to do with it stays as it was, and so does what is far away.
    other = Task("softmax-forward", "fp32", (4096, 1024))
    assert seconds_of(other, path, device) == pytest.approx(seconds_of(other, None, device))


def test_one_thin_product_says_little_of_large_ones(rooflight, tmp_path):
    """As the last layer of a ResNet, which took four times as long as its like on the H200."""
    thin, large = Task.of("gemm", "fp32", m=16, n=1000, k=2048), Task.of("gemm", "fp32", m=4096, n=4096, k=1024)
    path, table = tmp_path / "mine.json", tmp_path / "run.csv"
    table.write_text(f"op,m,n,k,dtype,time_us\ngemm,16,1000,2048,fp32,{4e6 * seconds_of(thin, None, 'rtx-4070'):.3f}\n")
    assert rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", path)[0] == 0
    assert seconds_of(thin, path, "rtx-4070") > 1.5 * seconds_of(thin, None, "rtx-4070")
    assert seconds_of(large, path, "rtx-4070") < 1.1 * seconds_of(large, None, "rtx-4070")


def tiny(count: int) -> str:
    """Rows that are all launch: of a few thousand elements, as a loop times them."""
    return "".join(f"add,{size}x64,fp32,5.6\n" for size in range(16, 16 + count))


def test_rows_that_tell_of_the_launch_alone_correct_nothing(rooflight, tmp_path):
    path, table = tmp_path / "mine.json", tmp_path / "run.csv"
    # 256 MB read and 128 MB written at 504 GB/s are 0.8 ms.
    table.write_text("op,shape,dtype,time_us\n" + tiny(12) + "add,8192x4096,fp32,900\n")
    code, out, _ = rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", path)
    assert code == 0 and re.search(r"\b12 of 13 rows\b", out)
    assert re.search(r"\b1 point\b", out) and sum(len(group.rows) for group in read(path).points) == 1
    _, out, _ = rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", path, "--json", "--force")
    (row,) = json.loads(out)["left_out"]
    assert row["count"] == 12 and "launch" in row["reason"]


def test_a_table_of_launches_is_refused(rooflight, tmp_path):
    table = tmp_path / "run.csv"
    table.write_text("op,shape,dtype,time_us\n" + tiny(17))
    code, out, err = rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", tmp_path / "x.json")
    assert (code, rooflight.code) == (2, "nothing-to-calibrate") and "17" in err and not out
    assert len(err.strip().splitlines()) == 1 and not (tmp_path / "x.json").exists()


def test_short_kernels_of_a_recording_are_real(rooflight, tmp_path):
    """Their times are those of the kernels alone, without a launch."""
    assert rooflight("calibrate", "--from", RECORDED, "-o", tmp_path / "mine.json")[0] == 0
    assert any(row[-3] < 5000 for group in read(tmp_path / "mine.json").points for row in group.rows)


@pytest.mark.parametrize(("factor", "ratio"), [(8, "8"), (1, ""), (1 / 3.4, "3.4")])
def test_a_table_that_is_hard_to_believe_says_so_in_every_prediction(rooflight, tmp_path, factor, ratio):
    path, table = tmp_path / "mine.json", tmp_path / "run.csv"
    tasks = [Task("embedding-forward", "fp32", (rows, 512)) for rows in (2048, 4096, 6144, 8192)]
    times = predictor_of(find("rtx-4070"), None, None)[0].task_times(tasks)
    spent = 1e6 * factor * (times.cold_s if factor > 1 else times.warm_s)
    rows = (f"embedding-forward,{t.numbers[0]},512,fp32,{time}\n" for t, time in zip(tasks, spent, strict=True))
    table.write_text("op,rows,columns,dtype,time_us\n" + "".join(rows))
    code, _, err = rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", path)
    told = re.compile(rf"run\.csv: .*\b4 works of embedding-forward in fp32\b.*\b{re.escape(ratio)} times\b")
    assert code == 0 and (told.search(err) if ratio else not err)
    _, notes = predictor_of(find("rtx-4070"), None, read(path))
    assert [note.code for note in notes] == (["calibration-doubt"] if ratio else [])
    assert all(told.search(note.text) for note in notes)


def test_rows_of_one_work_that_contradict_each_other_are_named(rooflight, tmp_path):
    path, table = tmp_path / "mine.json", tmp_path / "run.csv"
    table.write_text(
        "op,m,n,k,dtype,time_us\ngemm,4096,4096,4096,fp16,2600\ngemm,64,4096,4096,fp16,80\n"
        "gemm,4096,4096,4096,fp16,26000\ngemm,64,4096,4096,fp16,120\n"
    )
    code, _, err = rooflight("calibrate", "--from", table, "--on", "rtx-4070", "-o", path)
    told = re.compile(r"run\.csv, line 2 and line 4: .*\b2\.60 ms\b.*\b26\.0 ms\b")
    assert code == 0 and told.search(err) and "line 3" not in err
    assert any(told.search(note) for note in read(path).notes)


@pytest.mark.parametrize(("device", "tier"), [("rtx-4070", "transferred"), ("v100-pcie-32", "published")])
def test_it_says_how_to_undo_it(rooflight, tmp_path, device, tier):
    table = tmp_path / "run.csv"
    table.write_text(TABLE)
    code, out, _ = rooflight("calibrate", "--from", table, "--on", device)
    assert code == 0 and f"--tier {tier}" in out
    assert "--tier" not in rooflight("calibrate", "--from", table, "--on", device, "-o", tmp_path / "x.json")[1]


def test_python_takes_what_it_made(tmp_path):
    import rooflight as package

    table = tmp_path / "run.csv"
    table.write_text(TABLE)
    made = package.calibration_from(table, on="rtx-4070")
    for one in (made, made.calibration):
        assert package.predict("mnist-cnn", on="rtx-4070", calibration=one)[0].tier == "partial"
        assert len(repr(one)) < 200 and "2 " in repr(one)
    with pytest.raises(BadInput) as refused:
        package.predict("mnist-cnn", on="rtx-4070", calibration=[made])  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.options) == ("bad-option-type", ("--calibration",))
    assert "list" in str(refused.value) and len(str(refused.value)) < 200


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("source", [TRACE, DATA / "formats_6dd1d43" / "measured.json.gz"], ids=["trace", "ledger"])
def test_a_file_that_was_cut_is_one_line(rooflight, tmp_path, source, packed):
    content = source.read_bytes() if packed else gzip.decompress(source.read_bytes())
    path = tmp_path / ("cut.json.gz" if packed else "cut.json")
    for part in (0.3, 0.7, 0.99):
        path.write_bytes(content[: int(len(content) * part)])
        code, out, err = rooflight("calibrate", "--from", path, "--on", "h200", "-o", tmp_path / "x.json")
        assert code == 2 and str(path) in err and not out and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("kind", ["table", "trace", "ledger"])
@seeded
@given(draw=st.data())
def test_no_file_makes_it_fail_as_if_it_were_its_own_fault(kind, tmp_path, monkeypatch, capsys, draw):
    path = tmp_path / "file.json"
    if kind == "table":
        path.write_bytes(mangled(TABLE.encode(), draw))
    elif kind == "ledger":
        path.write_bytes(damaged(json.loads(unpacked(DATA / "formats_6dd1d43" / "measured.json.gz")), draw))
    else:
        trace = json.loads(unpacked(TRACE))
        trace["traceEvents"] = [event for event in trace["traceEvents"] if "Input Dims" in event["args"]][:40] + [
            event for event in trace["traceEvents"] if event["cat"] != "cpu_op"
        ]
        place = draw.draw(st.integers(0, 39))  # the first and the last event are what `damaged` changes
        events = trace["traceEvents"]
        events[0], events[place] = events[place], events[0]
        path.write_bytes(damaged(trace, draw))
    code = exit_code(monkeypatch, "calibrate", "--from", path, "--on", "h200", "-o", tmp_path / "out.json", "--force")
    assert code in (0, 2), capsys.readouterr().err


def test_no_shipped_point_of_the_h200_is_below_what_it_can_do():
    """The least times are honest: 60,000 micro-benchmarks of the device itself never beat them."""
    calibration, device = shipped("h200"), find("h200")
    assert isinstance(calibration, Calibration)
    for group in calibration.points:
        for task, row in list(zip(group.tasks(), group.rows, strict=True))[::20]:
            assert row[-3] * 1e-9 >= least_time(task, device).seconds, (task, row)
