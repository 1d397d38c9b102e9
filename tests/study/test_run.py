"""Studies that run: what cells find is what the verbs find, folders resume, and several processes share one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import rooflight
from rooflight.errors import BadFile, BadInput, RooflightError
from rooflight.hardware.devices import find, recognise_name
from rooflight.machine.recognise import Recognised
from rooflight.study import local, machine, values
from rooflight.study.api import prepare
from rooflight.study.cell import QUANTITIES, StudyCell
from rooflight.study.launch import outline
from rooflight.study.plan import plan_of, read_plan
from rooflight.study.store import Store, begin, open_study, read
from rooflight.study.work import run_cell, run_side
from tests.fixtures.notes import note_texts

pytestmark = pytest.mark.usefixtures("one_thread")


TOO_SMALL = "1x2x2"
"""An image that is smaller than the network's windows."""


def plan(grid, **rest):
    return plan_of({"grid": grid, **rest}, "the study")


def ran(folder: Path, grid, **rest) -> Store:
    """All cells of a plan, in this process."""
    store = begin(folder, plan(grid, **rest))
    for cell in store.cells:
        run_cell(folder, cell.id)
    store.refresh()
    return store


def rooflight_study(*arguments: object, **more) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rooflight", "study", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=600, **more)


def done_lines(folder: Path) -> Counter:
    """How often each side of each cell is done in the journal."""
    found: Counter = Counter()
    for segment in (folder / "journal").iterdir():
        for line in segment.read_bytes().splitlines():
            entry = json.loads(line)
            found[entry["key"], entry["side"]] += entry["state"] == "done"
    return +found


def test_every_cell_has_its_gain_however_many_batches_share_a_trace(tmp_path):
    store = begin(tmp_path / "many", plan({"model": ["mnist-cnn"], "batch": list(range(1, 16)), "on": ["h200"]}))
    run_side(store, store.cells, "predicted")
    gains = {row.cell.batch: row.values.get("gain.predicted") for row in map(store.row, store.cells)}
    assert None not in gains.values()
    assert gains[8] == pytest.approx(rooflight.predict("mnist-cnn", batch=8, on="h200")[0].gain, rel=1e-6)


def test_a_compiled_step_as_one_graph_is_predicted_and_says_why_it_is_not_measured(tmp_path):
    grid = {"model": "mnist-cnn", "on": "h200", "compile": [False, True], "graphs": [False, True]}
    store = begin(tmp_path / "s", plan(grid, measure=True))
    asked = {(cell.compile, cell.graphs): store.sides(cell) for cell in store.cells}
    assert [how for how, sides in asked.items() if "measured" not in sides] == [(True, True)]
    both = next(cell for cell in store.cells if cell.compile and cell.graphs)
    run_cell(store.folder, both.id)
    store.refresh()
    row = store.row(both)
    assert row.state == "done" and row.values["time.predicted"] > 0
    assert note_texts(row.notes)[0].startswith("not measured: a compiled step is not captured as one CUDA graph")


STEPS: list[dict[str, Any]] = [
    {"model": "mnist-cnn", "step": "train"},
    {"model": "mnist-cnn", "set": {"channels": "20,40"}},
    {"model": "resnet18", "step": "train", "dtype": "bf16"},
    {"model": "gpt2", "seq": 16, "step": "train", "autocast": "bf16", "set": {"n_layer": 2}},
    {"model": "gpt2", "step": "decode", "past": 7, "set": {"n_layer": 2}},
    {"model": "transformer", "step": "infer", "tf32": True},
    {"model": "word-lm", "step": "train", "loss": "mse", "optimizer": "adam"},
]


@pytest.mark.parametrize("grid", STEPS, ids=[" ".join(map(str, grid.values())) for grid in STEPS])
def test_ledgers_over_batches_are_those_of_estimate(tmp_path, grid):
    """One trace serves all batches but 1, and nobody can tell."""
    store = begin(tmp_path / "s", plan({**grid, "batch": [1, 2, 3, 64]}))
    run_side(store, store.cells, "estimated")
    for row in store.rows:
        cell = row.cell
        saved = rooflight.load(store.folder / row.ledgers["estimated"])
        found = rooflight.estimate(
            cell.model, batch=cell.batch, seq=cell.seq, past=cell.past, step=cell.step, dtype=cell.dtype,
            autocast=cell.autocast, tf32=cell.tf32, loss=cell.loss, optimizer=cell.optimizer, overrides=cell.settings,
            command=saved.header.command,
        )  # fmt: skip
        assert saved == found
        assert row.values["flops.estimated"] == sum(op.cost.flops or 0 for op in found.ops if op.cost)


def test_the_command_in_a_ledger_makes_the_same_ledger(tmp_path):
    grid = {"model": "mnist-cnn", "batch": 3, "step": "train", "dtype": "bf16", "tf32": False, "loss": "mse",
            "optimizer": "sgd", "set": {"channels": "8,16"}}  # fmt: skip
    store = ran(tmp_path / "s", grid)
    name = store.rows[0].ledgers["estimated"]
    saved = rooflight.load(store.folder / name)
    words = saved.header.command.split()
    assert words[:2] == ["rooflight", "estimate"]
    from click.testing import CliRunner

    from rooflight.commands.main import cli

    out = tmp_path / "again.json"
    result = CliRunner().invoke(cli, [*words[1:], "-o", str(out)])
    assert result.exit_code == 0, result.output
    again = rooflight.load(out)
    assert replace(again, header=replace(again.header, command="")) == replace(
        saved, header=replace(saved.header, command="")
    )


def test_a_model_whose_ops_change_with_the_batch_is_traced_for_each(tmp_path, monkeypatch):
    (tmp_path / "turning.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(8, 8)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.fc(x)) if 16 <= len(x) < 100 else self.fc(x)\n"
        "def net(batch=1):\n"
        "    return Net(), torch.zeros(batch, 8)\n"
    )
    monkeypatch.chdir(tmp_path)
    store = ran(tmp_path / "s", {"model": "turning.py:net", "batch": [2, 4, 32]})
    once = 2 * 8 * 8
    assert [row.values["flops.estimated"] for row in store.rows] == [2 * once, 4 * once, 2 * 32 * once]


def test_predictions_are_those_of_predict(tmp_path):
    grid = {"model": ["mnist-cnn"], "batch": [1, 4, 16], "step": "train", "on": ["v100", "h200"]}
    store = begin(tmp_path / "s", plan([grid, {"model": "mnist-cnn", "batch": 8, "on": "h200", "gpus": [2], "parallel": "fsdp"}]))  # fmt: skip
    for device in ("v100", "h200"):
        run_side(store, [cell for cell in store.cells if cell.on == device and cell.gpus == 1], "predicted")
    run_side(store, [cell for cell in store.cells if cell.gpus == 2], "predicted")
    for cell in store.cells:
        row = store.row(cell)
        (found,) = rooflight.predict(cell.model, on=cell.on, batch=cell.batch, step=cell.step, gpus=cell.gpus,
                                     parallel=cell.parallel, advice=False)  # fmt: skip
        assert row.values["time.predicted"] == pytest.approx(found.time_s, rel=1e-9)
        assert row.values["gpu_busy.predicted"] == pytest.approx(found.gpu_time_s, rel=1e-9)
        assert row.values["throughput.predicted"] == pytest.approx(found.throughput, rel=1e-9)
        assert row.values["memory.predicted"] == found.memory.peak_allocated_bytes
        assert row.values["reserved.predicted"] == found.memory.peak_reserved_bytes
        assert row.facts["tier"] == found.tier
        # What bounds a step on one GPU alone says nothing of two.
        assert row.facts.get("bound.predicted") == (found.bound if cell.gpus == 1 else None)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured") / "s"
    return ran(folder, {"model": "mnist-cnn", "batch": 2, "on": "cpu"}, layers=["conv2", "nosuch"], repeat=3)


def test_a_cell_on_this_machine_is_measured(measured):
    (row,) = measured.rows
    assert row.state == "done"
    ledger = rooflight.load(measured.folder / row.ledgers["measured"])
    assert (ledger.header.batch, ledger.header.target) == (2, "cpu")
    step = next(one for one in ledger.measurements if one.scope == "step")
    assert row.values["time.measured"] == step.quantities["wall_time_s"].value
    assert row.values["throughput.measured"] == pytest.approx(2 / row.values["time.measured"])
    assert row.values["memory.measured"] == step.quantities["peak_allocated_bytes"].value
    assert row.facts["device"] == ledger.header.device
    assert row.seconds["measured"] > 0


def test_an_uncalibrated_processor_has_a_note_and_no_failure(measured):
    (row,) = measured.rows
    assert not row.failures
    assert "time.predicted" in row.values or any("calibrat" in note for note in note_texts(row.notes))


def test_values_of_layers_are_kept(measured):
    (row,) = measured.rows
    whole = rooflight.load(measured.folder / row.ledgers["estimated"])
    inside = sum(op.cost.flops or 0 for op in whole.ops if op.module == "conv2" and op.cost)
    assert row.values["conv2/flops.estimated"] == inside > 0
    assert row.values["conv2/share.estimated"] == inside / row.values["flops.estimated"]
    assert "mnist-cnn has no layer nosuch" in note_texts(row.notes)


def test_a_layers_predicted_time_is_its_ops(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [2, 4, 8], "on": "h200"}, layers=["conv2", "conv1"])
    for row in store.rows:
        (found,) = rooflight.predict("mnist-cnn", on="h200", batch=row.cell.batch, advice=False)
        ledger = rooflight.estimate("mnist-cnn", batch=row.cell.batch)
        for layer in ("conv1", "conv2"):
            times = [time for op, time in zip(ledger.ops, found.op_times_s, strict=True) if op.module == layer]
            assert row.values[f"{layer}/kernel_time.predicted"] == pytest.approx(sum(times), rel=1e-9)


def test_predicted_mfu_is_of_the_peaks_of_the_ops_precisions_whatever_layers_are_kept(tmp_path):
    """resnet18 in fp32: its convolutions are in TF32 on an H200 and its linear layer is not; a V100 has no TF32."""
    grid = {"model": "resnet18", "batch": [1, 4], "on": ["h200", "v100"]}
    linear = 2 * 512 * 1000
    plain, kept = ran(tmp_path / "s", grid), ran(tmp_path / "t", grid, layers=["conv1"])
    for row, other in zip(plain.rows, kept.rows, strict=True):
        assert row.values["mfu.predicted"] == other.values["mfu.predicted"]
        device, last = find(row.cell.on), linear * row.cell.batch
        at_peak_s = (row.values["flops.estimated"] - last) / device.peak("tf32").value + last / device.peak(
            "fp32"
        ).value
        assert row.values["mfu.predicted"] == pytest.approx(at_peak_s / row.values["time.predicted"])


def test_a_device_of_a_users_file_is_predicted_on(tmp_path):
    path = tmp_path / "mine.toml"
    shipped = Path(rooflight.__file__).parent / "hardware" / "specs" / "a100-pcie-40.toml"
    text = re.sub(r'(?m)^(title = ").*(")$', r"\1Mine\2", shipped.read_text())
    path.write_text(re.sub(r"(?m)^(aliases|recognised_as) = .*$", r"\1 = []", text))
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [1, 4], "on": str(path)})
    for row in store.rows:
        (found,) = rooflight.predict("mnist-cnn", batch=row.cell.batch, on=str(path), advice=False)
        assert row.state == "done", row.failures
        assert row.values["mfu.predicted"] == pytest.approx(found.mfu)


def test_columns_stay_in_their_order():
    of_layer = "flops macs other_flops bytes intensity params param_bytes output footprint share".split()
    estimated = values.estimated(rooflight.estimate("mnist-cnn"), ["conv2"])
    assert [name for name in estimated if name.startswith("conv2/")] == [f"conv2/{name}.estimated" for name in of_layer]
    predicted, _ = values.predicted(rooflight.predict("mnist-cnn", on="h200")[0])
    order = "time time_low time_high gpu_busy throughput mfu percent_of_roof gain kernels memory reserved "
    order += "host_time gpu_busy_low gpu_busy_high host_low host_high"
    assert list(predicted) == [f"{name}.predicted" for name in order.split()]


def test_names_of_values_are_those_of_the_contract(measured):
    (row,) = measured.rows
    for name in row.values:
        quantity, _, side = name.rpartition("/")[2].rpartition(".")
        assert side in QUANTITIES[quantity.partition(".")[0]].sides
    types = [name for name in row.values if name.startswith("share.")]
    assert set(types) == {"share.Conv2d.estimated", "share.Linear.estimated"}
    assert sum(row.values[name] for name in types) == pytest.approx(1)


def test_what_cannot_exist_is_not_tried_and_has_not_failed(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "dtype": ["fp32", "bf16"], "on": "k80"})
    single, half = store.rows
    assert (single.state, half.state) == ("done", "impossible")
    assert half.failures == {} and half.values == {}


def test_what_fails_fails_alone(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "input": ["1x28x28", TOO_SMALL], "on": "k80"})
    whole, small = store.rows
    assert (whole.state, small.state) == ("done", "failed")
    assert small.failures and not whole.failures


def test_devices_share_their_estimate(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [1, 2], "on": ["v100", "h200"]})
    assert len(list((store.folder / "ledgers").iterdir())) == 2
    assert len({row.ledgers["estimated"] for row in store.rows}) == 2
    assert Counter(side for _, side in done_lines(store.folder)) == {"estimated": 2, "predicted": 4}


def test_a_device_that_is_not_here_is_not_measured_and_has_not_failed(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "on": "k20x"})
    (row,) = store.rows
    assert row.state == "done"
    assert not any(name.endswith(".measured") for name in row.values)


def test_what_must_be_measured_waits_for_its_device(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "on": "k20x"}, measure=True)
    (row,) = store.rows
    assert row.state == "waiting"
    assert "time.predicted" in row.values


def test_nothing_that_is_done_is_done_again(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [1, 2], "on": "h200"})
    before = {
        path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file() and path.stat().st_size
    }
    for cell in store.cells:
        assert run_cell(store.folder, cell.id).state == "done"
    after = {
        path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file() and path.stat().st_size
    }
    assert before == after


def test_what_another_has_is_left_to_it(tmp_path):
    """The lock is one open file's, so a second store in this process is another process as far as it can tell."""
    store = begin(tmp_path / "s", plan({"model": "mnist-cnn", "batch": [2, 3]}))
    other = open_study(store.folder)
    first, _ = store.cells
    assert other.locks.take(f"{first.alone.id}.estimated")
    run_side(store, store.cells, "estimated")
    assert [row.state for row in store.rows] == ["waiting", "done"]
    other.close()
    run_side(store, store.cells, "estimated")
    assert [row.state for row in store.rows] == ["done", "done"]
    assert set(done_lines(store.folder).values()) == {1}


def test_failures_are_forgiven_once(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "input": TOO_SMALL})
    assert store.rows[0].state == "failed"
    assert store.forgive() == 1
    other = open_study(store.folder)
    assert other.rows[0].state == "waiting"
    assert other.forgive() == 0
    run_cell(store.folder, store.cells[0].id)
    store.refresh()
    assert store.rows[0].state == "failed"
    assert store.failures(store.cells[0].key("estimated")) == 2


def test_a_torn_line_is_no_line(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [2, 3]})
    (segment, *_) = sorted((store.folder / "journal").iterdir())
    whole = segment.read_bytes()
    for length in (1, len(whole) // 2, len(whole) - 1):
        segment.write_bytes(whole[:length])
        torn = read(store.folder)
        assert {row.state for row in torn} <= {"done", "waiting"}
        assert sum(row.state == "waiting" for row in torn) >= 1
    segment.write_bytes(whole[:-1] + b"x\n")
    with pytest.raises(BadFile, match="is damaged"):
        read(store.folder)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn"})
    (segment,) = (store.folder / "journal").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:40])
    reader = open_study(store.folder)
    assert reader.rows[0].state == "waiting"
    segment.write_bytes(whole)
    reader.refresh()
    assert reader.rows[0].state == "done"


def test_a_study_grows(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [1, 2]})
    larger = begin(store.folder, plan({"model": "mnist-cnn", "batch": [2, 4]}))
    assert [row.state for row in larger.rows] == ["done", "done", "waiting"]
    assert [row.cell.batch for row in read(store.folder)] == [1, 2, 4]
    with pytest.raises(BadInput, match="layers"):
        begin(store.folder, plan({"model": "mnist-cnn"}, layers=["conv1"]))


def test_the_plan_stays_as_it_was_written(tmp_path):
    text = 'title = "t"  # a comment\n[grid]\nmodel = "mnist-cnn"\n[[claim]]\nclaim = "flops > 0"\n'
    path = tmp_path / "plan.toml"
    path.write_text(text)
    result = rooflight_study(path, "-o", tmp_path / "s", "--no-measure")
    assert result.returncode == 2  # a file has its own plan
    result = rooflight_study(path, "-o", tmp_path / "s", "--dry-run")
    assert "1 steps to be estimated" in result.stdout
    assert not (tmp_path / "s").exists()
    store = prepare(path, tmp_path / "s", {})
    assert (store.folder / "study.toml").read_text() == text


def test_results_without_a_journal_can_be_read(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": [1, 2], "on": "h200"})
    index = store.write_index()
    other = tmp_path / "passed-on"
    other.mkdir()
    for path in (index, store.folder / "study.toml"):
        (other / path.name).write_bytes(path.read_bytes())
    assert read(other) == store.rows
    with pytest.raises(BadFile, match="without their journal"):
        open_study(other)


def test_places_that_are_no_study(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for where, said in ((file, "is a file"), (tmp_path / "none", "does not exist"), (tmp_path, "is no study's folder")):
        with pytest.raises(BadFile, match=said):
            open_study(where)
    grid = plan({"model": "mnist-cnn"})
    with pytest.raises(BadFile, match="is a file"):
        begin(file, grid)
    with pytest.raises(BadFile, match="holds other things"):
        begin(tmp_path, grid)
    with pytest.raises(BadFile, match="cannot make"):
        begin(file / "below", grid)


@pytest.mark.parametrize("text", ["[courses]\nname = 'physics'\n", "no toml", "[grid]\nmodel = 'vgg19'\nrepeat = 1\n"])
def test_another_programs_study_toml_is_refused_and_nothing_is_left(tmp_path, text):
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(RooflightError):
        begin(tmp_path, plan({"model": "mnist-cnn"}))
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.slow
def test_two_processes_share_a_folder(tmp_path):
    """Both end, the work is done once, and each cell is there."""
    line = [sys.executable, "-m", "rooflight", "study", "mnist-cnn", "--batch", "1,2,3,4,5,6", "--step", "infer,train",
            "--on", "v100,h200", "-o", str(tmp_path / "s"), "--workers", "1"]  # fmt: skip
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for one in both:
        out, err = one.communicate(timeout=600)
        assert one.returncode == 0, err
        assert "24 cells, 24 done" in out
    assert {row.state for row in read(tmp_path / "s")} == {"done"}
    assert set(done_lines(tmp_path / "s").values()) == {1}
    assert len(done_lines(tmp_path / "s")) == 12 + 24
    index = json.loads((tmp_path / "s" / "index.json").read_bytes())
    assert msgspec.convert(index["rows"], list[type(read(tmp_path / "s")[0])]) == read(tmp_path / "s")  # type: ignore[misc]


def test_from_python(tmp_path):
    found = rooflight.study("mnist-cnn", batch=[1, 2], on=["h200"], folder=tmp_path / "s")
    assert [row.state for row in found.rows] == ["done", "done"]
    frame = found.to_pandas()
    assert list(frame["batch"]) == [1, 2]
    assert frame["flops.estimated"].tolist() == [row.values["flops.estimated"] for row in found.rows]
    assert rooflight.study(tmp_path / "s").rows == found.rows


def test_reports(tmp_path):
    from click.testing import CliRunner

    from rooflight.commands.main import cli

    (tmp_path / "odd.py").write_text("def net():\n    raise KeyError('<script>alert(1)</script>')\n")
    store = ran(
        tmp_path / "s", [{"model": "mnist-cnn", "batch": [1, 2], "on": "h200"}, {"model": f"{tmp_path}/odd.py:net"}]
    )

    def report(*options: str) -> str:
        result = CliRunner().invoke(cli, ["report", str(store.folder), *options])
        assert result.exit_code == 0, result.output
        return result.output

    for form in ((), ("--md",), ("--csv",), ("--to", "html")):
        assert "mnist-cnn" in report(*form)
    document = json.loads(report("--json"))
    assert [row["cell"]["model"] for row in document["rows"]][:2] == ["mnist-cnn", "mnist-cnn"]
    page = report("--to", "html")
    assert "default-src 'none'" in page
    plain = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)  # without the page's own scripts
    assert "<script" not in plain
    assert "&lt;script&gt;" in plain
    assert "http://" not in plain
    assert "https://" not in plain
    out = tmp_path / "r.html"
    assert CliRunner().invoke(cli, ["report", str(store.folder), "-o", str(out)]).exit_code == 0
    assert out.read_text() == page
    lines = report("--csv").splitlines()
    assert lines[0].startswith("cell,model,batch")
    assert lines[1].split(",")[0] == store.cells[0].id
    wrong = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert isinstance(wrong.exception, BadFile)


def test_a_cell_that_is_none_of_the_study(tmp_path):
    store = begin(tmp_path / "s", plan({"model": "mnist-cnn"}))
    with pytest.raises(BadInput, match="has no cell"):
        run_cell(store.folder, StudyCell(model="resnet18").id)


def test_what_would_be_run(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from rooflight.commands.main import cli

    monkeypatch.chdir(tmp_path)
    line = ["study", "mnist-cnn", "--batch", "1,2,4", "--on", "a100,cpu", "--dtype", "bf16", "--dry-run"]
    shown = CliRunner().invoke(cli, line).output
    for said in ("6 cells into FOLDER", "3 steps to be estimated, with 1 traces", "3 on a100", "3 measurements here",
                 "rooflight estimate mnist-cnn --dtype bf16", "python -m rooflight.study.worker"):  # fmt: skip
        assert said in shown
    assert list(tmp_path.iterdir()) == []
    ran(tmp_path / "s", {"model": "mnist-cnn", "batch": 2})
    shown = CliRunner().invoke(cli, ["study", "mnist-cnn", "--batch", "2,4", "-o", "s", "--dry-run"]).output
    assert "1 of them are finished already" in shown
    assert "1 steps to be estimated" in shown
    assert len(read(tmp_path / "s")) == 1


def test_on_a_cluster_the_nodes_decide_what_is_measured(tmp_path, capsys):
    from rooflight.commands.study import _show
    from rooflight.study.slurm.launcher import SlurmLauncher

    grid = {"model": "mnist-cnn", "input": ["1x28x28", TOO_SMALL], "on": "k80"}
    store = begin(tmp_path / "s", plan(grid))
    assert "nothing to be measured: none of the devices is here" in outline(store)
    said = outline(store, elsewhere=True)
    assert "up to 2 measurements: of those cells whose device their node has" in said
    assert not any("is here" in line for line in said)
    assert not any("measurements" in line for line in outline(begin(tmp_path / "t", plan(grid, measure=False)),
                                                              elsewhere=True))  # fmt: skip
    store = ran(tmp_path / "s", grid)
    _show(store, SlurmLauncher({"partition": "old", "time": "90"}))
    again = f"try again what failed with: rooflight study {store.folder} --launcher slurm --partition old --time 90"
    assert f"{again} --retry" in capsys.readouterr().err
    _show(store, local.LocalLauncher())
    assert f"try again what failed with: rooflight study {store.folder} --retry" in capsys.readouterr().err


def test_a_users_file_does_not_take_the_place_of_pythons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine.py").write_text(
        "import torch\ndef net(batch=1):\n    return torch.nn.Linear(4, 4), torch.zeros(batch, 4)\n"
    )
    found = rooflight.study("mine.py:net", batch=[1, 2], measure=False, folder="s")
    assert [row.state for row in found.rows] == ["done", "done"]


@pytest.mark.parametrize(
    ("visible", "names"), [("0,1", ["0", "1"]), ("GPU-8f2a", ["GPU-8f2a"]), ("", []), ("-1", []), ("1,-1,0", ["1"])]
)
def test_only_gpus_that_can_be_seen_are_measured_on(monkeypatch, visible, names):
    recognised = Recognised("NVIDIA H200", "gpu", "a test", find("h200"))
    monkeypatch.setattr(machine, "_first_gpu", lambda: recognised)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_names() == names
    assert machine.gpu() == (recognised if names else None)
    assert machine.is_here("h200") == bool(names)
    assert not machine.is_here("a100")
    assert machine.place_of("here") == ("cuda" if names else "cpu")
    assert machine.place_of("cpu") == "cpu"
    slots = [slot for slot in local._places(StudyCell(model="mnist-cnn", on="here")) if slot.gpu is not None]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == names
    assert len({slot.alone for slot in slots}) == len(names)


class TwoKindsOfGpu:
    """NVML of a machine with unlike GPUs; the name of each is its handle."""

    names = ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA H200")

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.names[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return {"GPU-aaaa": self.names[0], "GPU-bbbb": self.names[1]}[uuid]

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return handle


@pytest.fixture
def unlike_gpus(monkeypatch):
    monkeypatch.setattr(machine.nvml, "connect", lambda: machine.nvml.Nvml(TwoKindsOfGpu()))  # type: ignore[attr-defined]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    caches = (machine._told, machine._first_gpu)
    for one in caches:
        one.cache_clear()
    yield
    monkeypatch.undo()
    for one in caches:
        one.cache_clear()


def test_every_gpu_of_a_machine_is_looked_at(unlike_gpus, monkeypatch):
    first = recognise_name(TwoKindsOfGpu.names[0])
    assert [machine.gpus_of(on) for on in (first.name, "h200", "here", "v100")] == [["0"], ["1", "2"], ["0"], []]
    assert [machine.is_here(on) for on in (first.name, "h200", "v100")] == [True, True, False]
    assert [machine.place_of(on) for on in (first.name, "h200", "here", "cpu")] == ["cuda", "cuda:1", "cuda", "cpu"]
    slots = local._places(StudyCell(model="mnist-cnn", on="h200"))
    assert [slot.environment for slot in slots] == [
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": number} for number in ("1", "2")
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb,GPU-aaaa")
    assert machine.gpus_of("h200") == ["GPU-bbbb"]
    assert machine.gpus_of("here") == ["GPU-bbbb"]
    assert machine.place_of(first.name) == "cuda:1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert not machine.is_here("h200")


def test_cells_go_where_their_device_is(unlike_gpus):
    first = recognise_name(TwoKindsOfGpu.names[0]).name
    cells = [StudyCell(model="mnist-cnn", on=on) for on in ("cpu", "h200", first, "here")]
    placed = [([slot.gpu for slot in slots], [cell.on for cell in some]) for slots, some in local._by_places(cells)]
    assert placed == [(["1", "2"], ["h200"]), (["0"], [first, "here"]), ([None], ["cpu"])]


def test_cells_of_two_gpus_go_where_two_are(unlike_gpus):
    """Two H200 and one A100: a cell that wants two of a kind gets both, or is only predicted."""
    first = recognise_name(TwoKindsOfGpu.names[0]).name
    cells = [StudyCell(model="mnist-cnn", step="train", gpus=2, on=on) for on in ("h200", first, "cpu")]
    assert [machine.can_measure(cell) for cell in cells] == [True, False, True]
    three = StudyCell(model="mnist-cnn", step="train", gpus=3, on="h200")
    assert not machine.can_measure(three)
    (slot,) = local._places(cells[0])
    assert slot.environment["CUDA_VISIBLE_DEVICES"] == "1,2"
    alone = {name for other in local._places(StudyCell(model="mnist-cnn", on="h200")) for name in other.alone}
    assert set(slot.alone) == alone  # nobody measures on one of them meanwhile


@pytest.mark.slow
def test_two_processes_are_measured_beside_one(tmp_path):
    """Strong scaling on the CPU: the same total batch by one process and by two, both really run."""
    grids = [{"batch": 8, "gpus": 1}, {"batch": 4, "gpus": 2}]
    store = ran(
        tmp_path / "s", [{"model": "mnist-cnn", "step": "train", "on": "cpu", **grid} for grid in grids], repeat=3
    )
    one, two = store.rows
    assert [row.state for row in (one, two)] == ["done", "done"], [row.failures for row in (one, two)]
    for row, processes in ((one, 1), (two, 2)):
        samples = row.cell.batch * processes
        assert row.values["throughput.measured"] == pytest.approx(samples / row.values["time.measured"])
    assert any("2 processes" in note for note in note_texts(two.notes))
    ledger = rooflight.load(store.folder / two.ledgers["measured"])
    assert (ledger.header.world, ledger.header.batch) == (2, 4)


def test_a_measurement_on_another_device_is_none_of_the_cells(tmp_path, monkeypatch):
    """It says where it ran: the processor, which is no H200, whatever the driver told before."""
    recognised = Recognised("NVIDIA H200", "gpu", "a test", find("h200"))
    monkeypatch.setattr(machine, "_first_gpu", lambda: recognised)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("rooflight.study.work.place_of", lambda on: "cpu")
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "on": ["h200", "here"]}, repeat=3)
    named, unnamed = store.rows
    assert named.failures.keys() == {"measured"}
    assert "which is no NVIDIA H200" in named.failures["measured"]
    assert f"it ran on {unnamed.facts['device']}" in named.failures["measured"]
    assert not any(name.endswith(".measured") for name in named.values)
    assert "time.measured" in unnamed.values


def test_a_factorys_own_batch_is_not_taken_for_the_cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def two():\n    return torch.nn.Linear(4, 4), torch.zeros(2, 4)\n"
        "def one():\n    return torch.nn.Linear(4, 4), torch.zeros(1, 4)\n"
    )
    store = ran(tmp_path / "s", {"model": ["own.py:two", "own.py:one"], "on": ["h200", "cpu"]}, repeat=3)
    for row in store.rows:
        if row.cell.model == "own.py:one":
            assert row.state == "done", row.failures
            continue
        sides = {"estimated", "predicted"} if row.cell.on == "h200" else {"estimated", "measured"}
        assert sides <= row.failures.keys()
        assert not row.values
        for side in sides:
            assert row.failures[side].startswith("the inputs that own.py:two makes have a batch of 2, and the cell one")  # type: ignore[index]


def test_without_a_word_on_where_it_is_this_machines_gpu(tmp_path, monkeypatch):
    """And the folder says so: whoever reads it elsewhere has no such GPU."""
    monkeypatch.setattr(machine, "_first_gpu", lambda: Recognised("NVIDIA H200", "gpu", "a test", find("h200")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    store = prepare(["mnist-cnn"], tmp_path / "s", {"batch": [1, 2]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [row.cell.on for row in read(tmp_path / "s")] == ["here", "here"]
    assert "on" not in read_plan(tmp_path / "s" / "study.toml")[1].replace('on = "here"', "")
    assert prepare(["mnist-cnn"], tmp_path / "t", {}).cells == [StudyCell(model="mnist-cnn")]
    assert store.is_measurable(store.cells[0])


def test_an_index_has_what_others_added_meanwhile(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn", "batch": 1})
    begin(store.folder, plan({"model": "mnist-cnn", "batch": [1, 2]}))
    index = json.loads(store.write_index().read_bytes())
    assert [row["cell"].get("batch", 1) for row in index["rows"]] == [1, 2]


def test_only_our_own_rubbish_is_removed(tmp_path):
    store = ran(tmp_path / "s", {"model": "mnist-cnn"})
    name = Path(store.rows[0].ledgers["estimated"]).name
    ours = [f"ledgers/.{name}.a8_x2k1z", ".index.json.abcd1234", ".study.toml.abcd1234", "journal/.host-a-4711"]
    theirs = [".gitignore", ".git", "notes.txt", "ledgers/.keep", "journal/.nfs0001"]
    for one in (*ours, *theirs):
        (store.folder / one).write_text("x")
    other = open_study(store.folder)
    assert other.locks.is_free("anything")  # it is at work here
    store.tidy()
    assert all((store.folder / one).exists() for one in (*ours, *theirs))
    other.close()
    store.tidy()
    assert [one for one in (*ours, *theirs) if (store.folder / one).exists()] == theirs
